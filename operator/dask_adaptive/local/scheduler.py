"""A real Dask scheduler as a child process, with the agent preloaded."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dask_adaptive.local.process import Process

#: How long a scheduler may take to say where it listens; imports are slow on a busy machine.
START_S = 60.0


class LocalScheduler:
    """
    `dask scheduler` on the loopback interface.

    Args:
        directory: For its log and the file that says where it listens.
        port: 0 takes a free one; a fixed one lets workers find a scheduler that is started again.
        inject: Preload the agent, as the webhook does in a cluster.
        python: The interpreter, and with it the release of distributed.
        env: Further variables, as the webhook sets them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        inject: bool = True,
        python: str = sys.executable,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._file = directory / "scheduler.json"
        preload = {"DASK_DISTRIBUTED__SCHEDULER__PRELOAD": "dask_adaptive_agent.preload"}
        self.process = Process(
            [
                python, "-m", "distributed.cli.dask_scheduler",
                "--host", "127.0.0.1", "--port", str(port), "--dashboard-address", "127.0.0.1:0",
                "--scheduler-file", str(self._file),
            ],
            log=directory / "scheduler.log",
            env={**preload, **env} if inject else env,
        )  # fmt: skip
        self.address = ""
        self.dashboard = ""

    async def start(self) -> None:
        """
        Start, or start again, and wait until it listens.

        Raises:
            RuntimeError: It ended or said nothing in time; the message holds the end of its log.
        """
        self._file.unlink(missing_ok=True)
        await self.process.start()
        for _ in range(int(START_S / 0.05)):
            if self.process.has_ended:
                break
            if (said := self._read()) is not None:
                self.address = said["address"]
                port = said.get("services", {}).get("dashboard")
                self.dashboard = f"http://127.0.0.1:{port}/status" if port else ""
                return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"the scheduler did not start:\n{self.process.log_tail()}")

    def _read(self) -> dict[str, Any] | None:
        try:
            return json.loads(self._file.read_text())  # type: ignore[no-any-return]
        except (FileNotFoundError, json.JSONDecodeError):
            return None  # not written, or half written
