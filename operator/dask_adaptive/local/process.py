"""One child process: started with a log file, ended politely, then firmly."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from dask_adaptive.deadline import timeout

#: After SIGTERM, how long a process may take before it is killed.
PATIENCE_S = 5.0


class Process:
    """A child process whose output goes to a file. Only ever signals the pid it started itself."""

    def __init__(self, command: Sequence[str], *, log: Path, env: Mapping[str, str]) -> None:
        self._command, self._log, self._env = list(command), log, dict(env)
        self._child: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._child = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._env},
                start_new_session=True,  # a Ctrl-C at the terminal is for us to pass on
            )

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def has_ended(self) -> bool:
        return self._child is None or self._child.returncode is not None

    def send(self, number: signal.Signals) -> None:
        """Signal the process if it still runs."""
        if self._child is not None and self._child.returncode is None:
            self._child.send_signal(number)

    async def wait(self) -> int:
        """The exit code, once there is one."""
        assert self._child is not None
        return await self._child.wait()

    async def end(self, patience_s: float = PATIENCE_S) -> None:
        """SIGTERM, then SIGKILL; returns when the process is gone."""
        if self.has_ended:
            return
        self.send(signal.SIGTERM)
        try:
            async with timeout(patience_s):
                await self.wait()
        except asyncio.TimeoutError:
            self.send(signal.SIGKILL)
            await self.wait()

    def log_tail(self, lines: int = 20) -> str:
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
