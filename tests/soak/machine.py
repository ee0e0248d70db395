"""The processes of the local node and of its pods, as this machine sees them: without an API."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

from support.kube_server import CACHE, ROOT

STATE = Path(os.environ.get("LOCALNODE_STATE") or CACHE / "node")


def kill(process: str) -> None:
    """One that `localnode/up.sh` has started, by its pid file."""
    pid = int((STATE / "run" / f"{process}.pid").read_text().split()[0])
    _kill(pid)


async def bring_back() -> str:
    """Start what was killed; what the script says if it fails."""
    process = await asyncio.create_subprocess_exec(
        str(ROOT / "localnode/up.sh"), "--no-build",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await process.communicate()
    return said.decode() if process.returncode else ""


def pids_of(uid: str) -> list[int]:
    """Of a pod's containers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            is_here = f"pod{uid}" in (folder / "cgroup").read_text()
            if is_here and (folder / "comm").read_text().strip() != "pause":
                found.append(int(folder.name))
    return found


def kill_pod(uid: str) -> None:
    """All processes of its containers; kubelet starts them again, if it is there."""
    for pid in pids_of(uid):
        _kill(pid)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
