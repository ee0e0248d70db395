"""How benches draw: without a screen, and the same figures give the same file."""

from __future__ import annotations

from typing import Any


def pyplot(salt: str) -> Any:
    """Matplotlib's module of that name; it is imported late, because only benches have it."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = salt
    import matplotlib.pyplot as plt

    return plt
