"""What the schedulers of a process share of what the agent has patched."""

from __future__ import annotations

from dask_adaptive_agent.patching import _Shared


def clear_shared() -> None:
    """Put all of it back: schedulers of other tests may have closed without doing so."""
    for layer in _Shared._all.values():
        for patch in list(layer.patches):
            patch.remove()
