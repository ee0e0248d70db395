"""
The demo's acts on a real cluster: run the script, show what the operator says, add up.

    python scripts/demo_on_kubernetes.py NAMESPACE POLICY SCHEDULER_ADDRESS

The operator acts; this only looks: at the policy's status and events through kubectl, and at the
workers through the agent.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from rich.console import Console

from dask_adaptive.model.observed import ObservedScheduler
from dask_adaptive.model.policy import Policy, parse_policy
from dask_adaptive.scheduler.calls import SchedulerCalls
from dask_adaptive.scheduler.link import Link, connect
from dask_adaptive_lab.rehearse import demo
from dask_adaptive_lab.rehearse.rehearsal import run_script
from dask_adaptive_lab.rehearse.views import PlainView, RehearsalFigures
from dask_adaptive_lab.tally import tally_of

LOOK_S = 0.5

#: After the script, the time for the last worker to be seen gone.
SETTLE_S = 3.0


async def kubectl(namespace: str, *words: str) -> Any:
    """The JSON of one `kubectl get`; raises `RuntimeError` with kubectl's words."""
    process = await asyncio.create_subprocess_exec(
        "kubectl", "--namespace", namespace, "get", *words, "-o", "json",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    if process.returncode:
        raise RuntimeError(err.decode())
    return json.loads(out)


class Onlooker:
    """Looks at one policy and its scheduler every half second, and tells what is new."""

    def __init__(
        self, namespace: str, name: str, link: Link, calls: SchedulerCalls, view: PlainView
    ) -> None:
        self._namespace, self._name, self._view = namespace, name, view
        self._link, self._calls = link, calls
        self._told = set[str]()
        self._line = ""
        self.figures: RehearsalFigures | None = None

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        found = await kubectl(self._namespace, "adaptivepolicy", self._name)
        policy, status = parse_policy(found["spec"]), found.get("status", {})
        scheduler = await self._link.observe(policy)
        self._record(policy, status, scheduler)
        assert self.figures is not None
        self.figures.counted(await tally_of(self._calls))
        self._tell_status(status)
        await self._tell_events()

    def _record(self, policy: Policy, status: Any, scheduler: ObservedScheduler) -> None:
        if self.figures is None:
            self.figures = RehearsalFigures(policy.max_replicas)
        self.figures.add(
            present=max(len(scheduler.workers), status.get("replicas", 0)),
            connected=len(scheduler.workers),
            recycled=status.get("recycled", {}),
        )

    def _tell_status(self, status: Any) -> None:
        shown = ("replicas", "desiredReplicas", "pending", "idle", "busy", "pinned", "retiring")
        line = "  status: " + ", ".join(f"{k} {status.get(k, 0)}" for k in shown)
        if line != self._line:
            self._line = line
            self._view.said(line)

    async def _tell_events(self) -> None:
        events = (await kubectl(self._namespace, "events"))["items"]
        for event in events:
            if event["involvedObject"]["kind"] != "AdaptivePolicy":
                continue  # those on pods say the same again
            mark = f"{event['metadata']['uid']} {event.get('count', 1)}"
            if mark not in self._told:
                self._told.add(mark)
                self._view.said(f"  {event['reason']}: {event['message']}")


async def main(namespace: str, name: str, address: str) -> int:
    console = Console()
    link, calls = connect(address, attach=False), SchedulerCalls(address)
    view = PlainView(console)
    onlooker = Onlooker(namespace, name, link, calls, view)
    await onlooker.look()
    looking = asyncio.create_task(onlooker.run())
    code = await run_script([sys.executable, str(demo.__file__)], address, view.said)
    await asyncio.sleep(SETTLE_S)
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    await link.close()
    await calls.close()
    figures = onlooker.figures
    assert figures is not None
    console.print(figures.table())
    if figures.tally is None or figures.tally.redone:
        return code or 5
    return code


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:4])))
