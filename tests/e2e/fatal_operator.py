"""
The operator, which kills itself (SIGKILL) right before or after one step of a worker's leaving.

    python fatal_operator.py POINT before|after run …

POINT: retire (begin to drain), recheck (ask again before deletion), delete, settle (lower
`replicas`), surge (raise it), restart (delete a pod), limit (tell the agent of quotas), report
(write the status that tells of a worker on its way out).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from dask_adaptive.cli.main import cli
from dask_adaptive.controller import compose
from dask_adaptive.loop.ports import Ports
from dask_adaptive.model.observed import Leaving


class Fatal:
    """Knows the point; `strike` is called around each call of a port."""

    def __init__(self, point: str, when: str) -> None:
        self._point, self._when = point, when

    def strike(self, point: str, when: str) -> None:
        if (point, when) == (self._point, self._when):
            print(f"killed {when} {point}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


class Watched:
    """A port whose calls pass by `Fatal`."""

    def __init__(self, port: Any, fatal: Fatal, leaving: set[str]) -> None:
        self._port, self._fatal, self._leaving = port, fatal, leaving
        self._replicas = 2  # of the cluster whose workers are replaced; the others only lower it

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._port, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            point = self._point(name, args)
            self._fatal.strike(point, "before")
            answer = await real(*args, **kwargs)
            self._fatal.strike(point, "after")
            if name == "observe":
                self._leaving.clear()
                rows = answer.workers
                self._leaving.update(w.name for w in rows if w.leaving is not Leaving.NO)
            return answer

        return call if name in _STEPS else real

    def _point(self, name: str, args: tuple[Any, ...]) -> str:
        if name == "retire" and set(args[0]) <= self._leaving:
            return "recheck"
        if name == "set_replicas":
            is_more, self._replicas = args[1] > self._replicas, args[1]
            return "surge" if is_more else "settle"
        if name == "status":
            told = {row.state for row in args[0].workers}
            return "report" if told & {"Draining", "Drained", "Going"} else "another report"
        return _STEPS[name]


_STEPS = {
    "observe": "observe",
    "retire": "retire",
    "limit": "limit",
    "delete_worker": "delete",
    "restart_worker": "restart",
    "set_replicas": "another number",
    "status": "report",
}


def main() -> None:
    fatal, leaving = Fatal(sys.argv[1], sys.argv[2]), set[str]()

    def watched_ports(*, platform: Any, link: Any, reporter: Any, **more: Any) -> Ports:
        watched = (Watched(port, fatal, leaving) for port in (platform, link, reporter))
        return Ports(*watched, **more)

    compose.Ports = watched_ports  # type: ignore[assignment,misc]
    cli(sys.argv[3:])


if __name__ == "__main__":
    main()
