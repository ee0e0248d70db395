"""What must never happen, checked at each write of an operator."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Collection

from chaos.apiserver import Ask
from chaos.clock import Pace
from chaos.kubernetes import Cluster, Kubernetes
from chaos.store import Json, Refused
from dask_adaptive.kube import api
from dask_adaptive_agent import wire

#: Who has lost the lease may write for so long: until it has to know.
NOTICED_S = 10.5

#: The agent was asked about a worker that long before it was taken away, at most.
ASKED_S = 12.0

#: A write that fails is tried no more often than this in a minute.
MOST_FAILURES, MINUTE_S = 25, 60.0

#: All that an operator may write, by verb (of most kinds any), kind and part.
_MAY = {
    ("", api.GROUPS, "scale"), ("", api.POLICIES, "status"), ("delete", api.PODS, ""),
    ("", api.EVENTS, ""), ("", api.CONFIG_MAPS, ""), ("", api.LEASES, ""),
    ("delete", api.DEPLOYMENTS, ""),
}  # fmt: skip


class Judge:
    """
    Args:
        operators: All that ever were.
        wrong: Told of what must never happen.
    """

    def __init__(
        self, kubernetes: Kubernetes, operators: Collection[str], pace: Pace,
        tell: Callable[[str], None], wrong: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._kubernetes, self._operators = kubernetes, operators
        self._pace, self._tell, self._wrong = pace, tell, wrong
        self._holders = deque([(-math.inf, "")], maxlen=3)  # of the lease
        self._failures: dict[str, deque[float]] = {}
        self._wait_until: dict[str, float] = {}  # who was told to come later
        self._clock = asyncio.get_running_loop().time

    def write(self, ask: Ask, before: Json | None, after: Json) -> None:
        """Look at a write that was carried out."""
        if ask.kind is api.LEASES:
            return self.holds(after)
        if ask.who not in self._operators:
            return
        if not {("", ask.kind, ask.part), (ask.verb, ask.kind, ask.part)} & _MAY:
            self._wrong(f"{ask.who} may not {ask}")
        self._leads(ask)
        cluster = self._cluster(ask, before)
        if cluster is not None and before is not None and ask.kind in (api.GROUPS, api.DEPLOYMENTS):
            if ask.part == "scale":
                self._scales(ask, cluster, before)
            elif ask.verb == "delete":
                self._deletes(ask, cluster, before)

    def refused(self, ask: Ask, no: Refused) -> None:
        """Look at a write that was not carried out."""
        if not ask.writes or ask.kind is api.LEASES or ask.who not in self._operators:
            return
        what, now = f"{ask.who}: {ask}", self._clock()
        if now < self._wait_until.get(what, 0.0):
            self._wrong(f"{what}: again, before it was to come again")
        self._wait_until[what] = now + 0.9 * (no.after_s or 0.0)
        times = self._failures.setdefault(what, deque())
        times.append(now)
        while times[0] < now - MINUTE_S:
            times.popleft()
        if len(times) == MOST_FAILURES:
            self._wrong(f"{what}: refused {len(times)} times in a minute")

    def holder(self) -> str:
        """Who has the lease."""
        return self._holders[-1][1]

    def holds(self, lease: Json) -> None:
        """Look who has the lease from now on."""
        holder = (lease.get("spec") or {}).get("holderIdentity") or ""
        if holder != self.holder():
            self._holders.append((self._clock(), holder))
            self._tell(f"the lease is held by {holder or 'nobody'}")

    def _leads(self, ask: Ask) -> None:
        since, holder = self._holders[-1]
        lately = {name for _, name in self._holders}
        is_over = self._is_over(since, NOTICED_S)
        if holder != ask.who and (ask.who not in lately or is_over):
            self._wrong(f"{ask.who} writes ({ask}), {holder or 'nobody'} has the lease")

    def _scales(self, ask: Ask, cluster: Cluster, before: Json) -> None:
        old, new = before["spec"]["worker"]["replicas"], ask.body["spec"]["replicas"]
        exist = len(self._kubernetes.deployments(cluster))
        self._tell(f"{ask.who} sets {cluster.group} from {old} to {new} replicas, {exist} exist")
        if new < exist:
            self._wrong(f"{cluster.group} was lowered to {new} replicas, {exist} workers exist")
        if "resourceVersion" not in (ask.body.get("metadata") or {}):
            self._wrong(f"{cluster.group} was scaled whatever had changed: no resourceVersion")

    def _deletes(self, ask: Ask, cluster: Cluster, before: Json) -> None:
        name = before["metadata"]["name"].removesuffix("-ab-x")
        self._tell(f"{ask.who} deletes {ask.kind.kind} {ask.name}")
        if (ask.body.get("preconditions") or {}).get("uid") != before["metadata"]["uid"]:
            self._wrong(f"{ask.kind.kind} {ask.name} was deleted without its uid")
        at, state = cluster.scheduler.told.get(name, (-math.inf, "nothing"))
        if self._is_over(at, ASKED_S) or state not in (wire.DRAINED, "gone"):
            self._wrong(f"{name} was deleted on a guess: the agent had said {state}")
        why = cluster.scheduler.keeps(name)
        # Who joins between the answer and the deletion is nobody's fault.
        if why and state != "gone":
            self._wrong(f"{name} was deleted: {why}")
        if not cluster.is_up and name in cluster.joined.values():
            self._wrong(f"{name} was deleted while its scheduler was away")

    def _is_over(self, since: float, limit_s: float) -> bool:
        return self._clock() - since > limit_s + self._pace.late_s(since)

    def _cluster(self, ask: Ask, before: Json | None) -> Cluster | None:
        labels = ((before or {}).get("metadata") or {}).get("labels") or {}
        key = ask.namespace, labels.get("dask.org/cluster-name", "")
        found = (c for c in self._kubernetes.clusters if (c.namespace, c.name) == key)
        return next(found, None)
