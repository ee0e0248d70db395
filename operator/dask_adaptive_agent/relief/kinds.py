"""The reliefs that there are, in the order in which they are applied."""

from __future__ import annotations

from dask_adaptive_agent.relief.base import Relief

KINDS: tuple[type[Relief], ...] = ()
