"""
Code that runs inside Dask schedulers and workers, and for code that runs on them: `pinned`, `want`.

Imports the standard library and `distributed` only, in Python 3.9 syntax, so that it runs in any
image that runs Dask. Importing this package must never fail and never have side effects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_adaptive_agent.client.client_lease import Pin as Pin
    from dask_adaptive_agent.client.client_lease import PinRefused as PinRefused
    from dask_adaptive_agent.client.client_lease import PinUnavailable as PinUnavailable
    from dask_adaptive_agent.client.pinned import pinned as pinned
    from dask_adaptive_agent.client.pinned import want as want

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    # Late, because `client` imports `distributed`, which takes a second.
    if name in ("pinned", "want", "Pin", "PinRefused", "PinUnavailable"):
        from dask_adaptive_agent.client import pinned

        return getattr(pinned, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
