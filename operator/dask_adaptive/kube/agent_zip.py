"""The agent as one zip file: the same sources give the same bytes, and its name says which."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

PACKAGE = "dask_adaptive_agent"
MOUNT = "/opt/dask-adaptive"
ZIP = "agent.zip"
BOOT = "dask_adaptive_boot.py"

#: What a scheduler preloads. By path, so that PYTHONPATH, which the image may set itself, is left
#: alone; and guarded, because an error at import would end the scheduler (exit 1). Dask executes a
#: preload that is a path twice, which does no harm here.
BOOT_SOURCE = f'''\
"""Bring the dask-adaptive agent into this scheduler. Must never raise."""
import logging
import sys

if "{MOUNT}/{ZIP}" not in sys.path:
    sys.path.append("{MOUNT}/{ZIP}")  # last: it must not shadow anything

try:
    from dask_adaptive_agent.preload import *  # noqa: F403
    from dask_adaptive_agent.preload import dask_setup  # noqa: F401
except Exception:
    logging.getLogger("distributed.dask_adaptive").exception(
        "The dask-adaptive agent can't be loaded; this scheduler runs without it"
    )
'''


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is mounted into a scheduler."""

    name: str  # of the ConfigMap; another content has another name
    zip: str  # base64
    boot: str


@functools.lru_cache(maxsize=1)
def bundle() -> Bundle:
    """The agent that this operator brings."""
    content = agent_zip()
    digest = hashlib.sha256(content + BOOT_SOURCE.encode()).hexdigest()[:8]
    return Bundle(f"dask-adaptive-agent-{digest}", base64.b64encode(content).decode(), BOOT_SOURCE)


def agent_zip() -> bytes:
    """All sources of the agent; stored, not deflated, for images whose Python has no zlib."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(_sources(resources.files(PACKAGE), PACKAGE)):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return packed.getvalue()


def _sources(folder: Any, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = f"{prefix}/{entry.name}"
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _sources(entry, name)
        elif entry.name.endswith(".py"):
            yield name, entry.read_bytes()
