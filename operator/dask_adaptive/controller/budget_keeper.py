"""Divides shared budgets while this process leads, wakes affected clusters, and reports."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from dask_adaptive.backoff import heard
from dask_adaptive.budget.board import Division, Holder, Pool, allowances, divide
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.api import BUDGETS, Json, KubeApi, KubeError, NotFound
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.objects import BudgetObject, GroupObject, PolicyObject
from dask_adaptive.kube.shared_budgets import BudgetStatus, budget_status, pools_of, read_budgets
from dask_adaptive.kube.status_json import merge_patch, stamped
from dask_adaptive.loop.status import READY, Condition
from dask_adaptive.model.amounts import LAST, counted, instant
from dask_adaptive.model.codec import InvalidPolicy, encode, recover
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.plan import Claimed
from dask_adaptive.model.policy import DEFAULT_CONTROLLER
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Allowance

logger = logging.getLogger(__name__)

#: Bounds of the pause after a division. Changes come in bursts; a pause ten times as long as the
#: division keeps its cost to a tenth of a core, however many clusters there are.
GATHERED_S, REST, LONGEST_REST_S = 0.3, 10, 1.0

#: Longest time between divisions: `reclaim.after` ends without an event.
LOOK_S = 5.0

#: Shortest time between two writes of a status.
STATUS_EVERY_S = 5.0


class BudgetKeeper:
    """
    Divides budgets among the loops: each claims workers, and reads its allowance.

    Args:
        wake: Called with each cluster whose allowance has changed.
        controller: Divides the budgets of this controllerName.
        clock: Seconds, as that of the loops; `wall_clock`: since 1970.
    """

    def __init__(
        self, world: World, api: KubeApi, metrics: Metrics, *, wake: Callable[[ClusterKey], None],
        controller: str = DEFAULT_CONTROLLER,
        clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._world, self._api, self._metrics, self._wake = world, api, metrics, wake
        self._controller, self._clock, self._wall_clock = controller, clock, wall_clock
        self._claims: dict[ClusterKey, Mapping[str, Claimed]] = {}
        self._divisions: dict[tuple[str, ...], Division] = {}  # by pool
        self._allowances: dict[Holder, Allowance] = {}
        self._since: dict[str, dict[Holder, float]] = {}  # waiting groups, by uid of the budget
        #: By uid, because a recreated budget has no status; None: writing failed.
        self._written: dict[str, tuple[float, Json | None]] = {}
        self._wrong: Mapping[str, InvalidPolicy] = {}
        self._seen = set[Holder]()  # clusters of the last division, sharing or not
        self._changed = asyncio.Event()

    def on_change(self, _: ClusterKey) -> None:
        self._changed.set()

    def want(self, key: ClusterKey, claims: Mapping[str, Claimed]) -> None:
        """Take the budget claims of a cluster's groups; those of other clusters stay."""
        if self._claims.get(key) != claims:
            self._claims[key] = claims
            self._changed.set()

    def allowed(self, key: ClusterKey, group: str) -> Allowance | None:
        """Return a group's allowance; None if it shares nothing."""
        holder = Holder(key, group)
        if holder not in self._seen:  # a new one must not grow before its first division
            self.settle()
        return self._allowances.get(holder)

    async def run(self) -> None:
        """Divide until cancelled."""
        try:
            while True:
                self._changed.clear()
                began = time.perf_counter()
                pools = self.settle()
                took_s = time.perf_counter() - began
                await self._report(pools)
                await asyncio.sleep(min(max(GATHERED_S, REST * took_s), LONGEST_REST_S))
                await heard(self._changed, within_s=LOOK_S)
        finally:
            self._metrics.budgets({})  # the next leader reports them

    def settle(self) -> dict[str, tuple[Pool, Division]]:
        """Divide all pools, wake clusters whose part changed; return the budgets by name."""
        budgets, self._wrong = read_budgets(self._mine())
        self._seen = {Holder(g.key, g.meta.name) for g in self._world.all(GroupObject)}
        # Workers of another operator's clusters count as held.
        ours = (p for p in self._world.all(PolicyObject) if p.controller == self._controller)
        governed = {p.key for p in ours if not p.meta.deleting}
        self._claims = {key: claims for key, claims in self._claims.items() if key in governed}
        claims = {
            Holder(key, group): claim
            for key, claims in self._claims.items()
            for group, claim in claims.items()
        }
        pools = pools_of(self._world, budgets, claims)
        found = {pool.key: (pool, self._divided(pool)) for pool in pools}
        self._divisions = {key: division for key, (_, division) in found.items()}
        before, self._allowances = self._allowances, allowances(found.values())
        # Messages contain others' numbers, too; these may wait for the cluster's next pass.
        for key in {
            holder.cluster
            for holder in before.keys() | self._allowances.keys()
            if _workers(before.get(holder)) != _workers(self._allowances.get(holder))
        }:
            self._wake(key)
        return {pool.name: (pool, part) for pool, part in found.values() if not pool.namespace}

    def _divided(self, pool: Pool) -> Division:
        before = self._divisions.get(pool.key, Division())
        try:
            return divide(pool, before.grants, now=self._clock())
        except Exception:  # one budget's error must not affect others
            logger.exception("%s can't be shared out: its groups keep their parts", pool.name)
            return before

    def _mine(self) -> list[BudgetObject]:
        every = self._world.all(BudgetObject)
        return [budget for budget in every if budget.controller == self._controller]

    async def _report(self, pools: Mapping[str, tuple[Pool, Division]]) -> None:
        every = self._mine()
        shared = {b.title: pools.get(f"AdaptiveBudget {b.title}") for b in every}
        self._metrics.budgets({name: s[1].rows for name, s in shared.items() if s is not None})
        for budget in every:
            meta, title = budget.meta, budget.title
            status = self._status(budget, shared[title])
            at, written = self._written.get(meta.uid, (-STATUS_EVERY_S, None))
            if status == written or self._clock() - at < STATUS_EVERY_S:
                continue
            self._written[meta.uid] = (self._clock(), None)
            try:
                path = BUDGETS.path(meta.namespace or None, meta.name, "status")
                await self._api.patch(path, {"status": status})
            except NotFound:
                continue
            except KubeError as exc:
                logger.warning("The status of AdaptiveBudget %s can't be written: %s", title, exc)
                continue
            self._written[meta.uid] = (self._clock(), status)

    def _status(self, budget: BudgetObject, shared: tuple[Pool, Division] | None) -> Json:
        written: Json = msgspec.json.decode(budget.status_json)
        before = recover(BudgetStatus, written) or BudgetStatus()
        if shared is None:
            status = BudgetStatus()
            why = str(self._wrong.get(budget.title))
            ready = Condition(READY, False, Reason.INVALID_SPEC, why)
        else:
            pool, division = shared
            status = budget_status(pool, division.rows, self._waiting(budget, division, before))
            shared_by = f"shared by {counted(status.clusters, 'cluster')}: {pool.limits_text}"
            message = f"{shared_by}; {counted(status.waiting, 'group')} waiting"
            ready = Condition(READY, True, Reason.RECONCILED, message)
        generation, now = budget.generation, instant(self._wall_clock())
        rows = stamped([ready], before.conditions, generation=generation, now=now)
        new: Json = encode(replace(status, generation=generation, conditions=rows))
        if shared is None:
            new = {key: new[key] for key in ("observedGeneration", "conditions")}
        patch: Json = merge_patch(written, new)
        return patch

    def _waiting(
        self, budget: BudgetObject, division: Division, before: BudgetStatus
    ) -> dict[Holder, float]:
        """Return since when each waiting group waits (1970), at first from the written status."""
        earlier = {
            row.holder: row.waiting_since for row in before.groups if row.waiting_since <= LAST
        }
        known, now = self._since.get(budget.meta.uid) or earlier, self._wall_clock()
        waiting = [row.holder for row in division.rows if row.waits]
        self._since[budget.meta.uid] = {holder: known.get(holder, now) for holder in waiting}
        return self._since[budget.meta.uid]


def _workers(allowance: Allowance | None) -> int | None:
    return None if allowance is None else allowance.workers
