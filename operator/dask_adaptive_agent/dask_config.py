"""
The values of Dask's configuration with which this scheduler runs, for the keys that people set.

Nothing is set here: a running scheduler does not read again what it has read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask.config

from dask_adaptive_agent.protocol.handlers import sendable

#: Characters of one value. A policy's values are shorter, so one that is cut is unlike all of them.
LONGEST = 50_000

_ABSENT: Any = object()


def in_force(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """
    Plain values by dotted key; a key without a value is left out.

    Where a wanted value is a mapping, the names in it have dots, and only those are looked up.
    """
    found = {}
    for key, value in wanted.items():
        running = dask.config.get(_new_name(key), _ABSENT)
        if running is not _ABSENT:
            plain = sendable(_value(running, value))
            text = repr(plain)
            found[key] = plain if len(text) <= LONGEST else text[:LONGEST]
    return found


def _new_name(key: str) -> str:
    """The name under which this release has the key (dask.config.check_deprecations)."""
    renamed: Mapping[str, Any] = dask.config.deprecations
    return renamed.get(key.replace("_", "-")) or renamed.get(key) or key


def _value(running: Any, wanted: Any) -> Any:
    if isinstance(wanted, Mapping) and isinstance(running, Mapping):
        # The spelling that is there already: a hyphen or an underscore.
        canonical: Any = dask.config.canonical_name
        names = {name: canonical(name, running) for name in wanted}
        return {
            name: _value(running[own], wanted[name])
            for name, own in names.items()
            if own in running
        }
    return running
