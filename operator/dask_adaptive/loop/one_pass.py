"""One pass over one cluster: observe, plan, act, report. Each pass reads the world anew."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dask_adaptive.loop.act import Attempts, StillUnused, act
from dask_adaptive.loop.decisions import DecisionHistory, page_content
from dask_adaptive.loop.events import (
    events_of_aborts,
    events_of_advice,
    events_of_annotations,
    events_of_conditions,
    events_of_notes,
    events_of_outcomes,
)
from dask_adaptive.loop.join import JoinedWorkers, join
from dask_adaptive.loop.ports import Event, LinkError, PlatformError, Ports
from dask_adaptive.loop.status import Status
from dask_adaptive.loop.summary import Calendar, status_of, wants_meters
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import Note, ObservedCluster, ObservedScheduler, PlatformView
from dask_adaptive.model.past import GroupPast, Past
from dask_adaptive.model.plan import Claimed, DeleteCluster, Outcome, Plan
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import RecyclePast
from dask_adaptive.planner.capacity import READY_S
from dask_adaptive.planner.caps import deletion
from dask_adaptive.planner.context import PassContext
from dask_adaptive.planner.memory import heard, remember
from dask_adaptive.planner.plan import plan
from dask_adaptive.planner.quotas import with_walltimes

#: The time between passes where nobody tells of changes: of a scheduler without the agent or that
#: does not answer, of quotas, or that what was done did not come about.
POLL_S = 5.0

#: The shortest time between two passes.
SHORTEST_S = 0.5

#: Figures that move with the load are written at most once in so long, in seconds.
STATUS_EVERY_S = 10.0

#: They wait for so long for what is about to be decided of them.
STATUS_AFTER_S = 5.0

NO_STATUS = Status()


@dataclass(frozen=True, slots=True)
class PassResult:
    """Observation, decisions and results of one pass."""

    observed: ObservedCluster
    plan: Plan
    outcomes: tuple[Outcome, ...]
    status: Status
    again_in_s: float  # when the next pass should be, if nothing happens before
    policy: Policy  # as it was read, with a number wherever `Auto` stands


class ClusterLoop:
    """
    The passes over one cluster. Not reentrant: one pass at a time.

    Args:
        before: The policy's status as an earlier process has left it. Workers that it had on their
            way out explain, once they are missing, why `replicas` is too high; what it replaced
            within the hour counts for `maxPerHour`.
        name: Of the policy, for people; empty: the cluster's.
    """

    def __init__(
        self, key: ClusterKey, ports: Ports, before: Status = NO_STATUS, *, name: str = ""
    ) -> None:
        self._key, self._ports, self._name = key, ports, name or key.name
        groups = {
            group: GroupPast(arrival_s=known.start_s, starts=(known.start_s,))
            for group, known in before.idle_times.items()
            if known.start_s != READY_S  # else it may not have been measured
        }
        recycle = RecyclePast(totals=before.recycles)
        self._past = Past(leaving=frozenset(before.leaving), groups=groups, recycle=recycle)
        self._calendar, self._joined = Calendar(before.recent), JoinedWorkers()
        self._status: Status | None = None  # as it was told last
        self._status_at = 0.0
        self._unwritten = NO_STATUS
        self._status_due_at = math.inf  # when that is to be written, if it was held back
        self._reported = frozenset[Event]()
        self._attempts = Attempts(ports.clock)
        self._unanswered = 0  # questions in a row that the scheduler did not answer
        self._late: tuple[Note, ...] = ()  # heard while looking once more
        self._chronicle = DecisionHistory(before.last_decision)

    async def one_pass(self, policy: Policy, generation: int = 0) -> PassResult:
        """
        Bring the cluster a step closer to its policy.

        Args:
            generation: Of the spec that the policy was read from; the status names it.

        Raises:
            PlatformError: The cluster cannot be seen.
        """
        ports = self._ports
        view = await ports.platform.look()
        self._recall(view)
        answer = await self._ask_scheduler(view, policy)
        if answer.followed and answer.session == self._past.session:
            self._past = heard(self._past, now=ports.clock())
        seen = join(self._key, view, answer, self._joined)
        observed = self._with_late(with_walltimes(seen, policy))
        context = PassContext.of(observed, policy, self._past, now=ports.clock())
        policy, decided = context.policy, plan(context)
        ports.claim(_claims(decided, policy))
        outcomes = await act(decided, policy, ports, self._attempts, self._still_unused(policy))
        unheard = await self._limit(observed, decided)
        before, now = self._past.recycle, ports.clock()
        self._past = remember(context, decided, outcomes, now=now)
        self._chronicle.note(observed, policy, decided, outcomes, now=now)
        await self._announce(observed, policy, decided)
        recycle = self._past.recycle
        status = status_of(
            observed, policy, decided, outcomes, now=now, before=self._status,
            recycled=recycle.totals, recent=self._calendar.dates(recycle.begun, observed, now),
            unheard=unheard, last=self._chronicle.last, idle=context.idle_times,
            generation=generation,
        )  # fmt: skip
        aborts = events_of_aborts(recycle, before)
        await self._report(observed, status, decided, outcomes, aborts)
        await self._chronicle.write(ports.reporter, now=now)
        until_s = decided.valid_until - ports.clock()
        unwritten_s = min(self._status_due_at, self._chronicle.due_at) - ports.clock()
        waits = (_next(observed, outcomes), until_s, self._attempts.left_s(), unwritten_s)
        again_in_s = max(min(waits), SHORTEST_S)
        return PassResult(observed, decided, outcomes, status, again_in_s, policy)

    def claim_nothing(self) -> None:
        """Withdraw this cluster's claim while no pass can tell what it needs."""
        self._ports.claim({})

    def _with_late(self, observed: ObservedCluster) -> ObservedCluster:
        """Add what was reported during the second look."""
        if not self._late:
            return observed
        notes, self._late = (*self._late, *observed.scheduler.notes), ()
        return replace(observed, scheduler=replace(observed.scheduler, notes=notes))

    def _recall(self, view: PlatformView) -> None:
        """Take over what an earlier process has begun, once there is a date to go by."""
        begun = self._calendar.begun(view, self._ports.clock())
        if begun:
            old = self._past.recycle
            both = tuple(sorted((*begun, *old.begun)))
            self._past = replace(self._past, recycle=replace(old, begun=both))

    async def _limit(self, observed: ObservedCluster, decided: Plan) -> str:
        """
        Tell the agent how long workers may go on: after what was done, because one that has been
        retired needs the place of a stopped one no more. Returns what kept it from hearing; the
        next pass tells it again.
        """
        if not _is_ours(observed):
            return ""
        try:
            await self._ports.link.limit(decided.limits)
        except LinkError as exc:
            return str(exc)
        return ""

    async def _ask_scheduler(self, view: PlatformView, policy: Policy) -> ObservedScheduler:
        # A cluster that is not there, or not ours, is not even asked.
        if not view.found:
            return ObservedScheduler(Reason.CLUSTER_NOT_FOUND, "there is no cluster to ask")
        if view.conflict:
            return ObservedScheduler(Reason.OWNERSHIP_CONFLICT, view.conflict)
        answer = await self._ports.link.observe(policy, meters=wants_meters(view, policy))
        is_silent = answer.problem in (Reason.SCHEDULER_UNREACHABLE, Reason.AGENT_INVALID)
        self._unanswered = self._unanswered + 1 if is_silent else 0
        return replace(answer, unanswered=self._unanswered) if is_silent else answer

    def _still_unused(self, policy: Policy) -> StillUnused:
        async def look_again(action: DeleteCluster) -> bool:
            view = await self._ports.platform.look()
            observed = join(self._key, view, await self._ask_scheduler(view, policy))
            self._late = (*self._late, *observed.scheduler.notes)  # each is heard only once
            again = deletion(observed, policy)
            return again is not None and again.uid == action.uid

        return look_again

    async def _announce(self, observed: ObservedCluster, policy: Policy, decided: Plan) -> None:
        """For shuffles that are about to begin, and the page: nothing depends on it here."""
        if not _is_ours(observed):
            return
        recent = self._chronicle.recent
        content = page_content(self._name, observed, policy, decided, self._past, recent)
        with contextlib.suppress(LinkError):
            await self._ports.link.announce(decided.arriving, content)

    async def _report(
        self,
        observed: ObservedCluster,
        status: Status,
        decided: Plan,
        outcomes: tuple[Outcome, ...],
        once: Iterable[Event],
    ) -> None:
        """Tell people of what is new: an unchanged world causes no call."""
        happened = frozenset(events_of_outcomes(outcomes))
        happened |= {*events_of_advice(decided), *events_of_annotations(observed)}
        new = sorted(happened - self._reported, key=lambda e: (e.worker, e.reason.value, e.message))
        noted = events_of_notes(observed)  # each comes only once, and may well say the same again
        news = (*events_of_conditions(status, self._status), *new, *noted, *once)
        await self._ports.reporter.tell(news)
        self._reported = happened
        self._status_due_at = self._due_at(status)
        self._unwritten = status
        if self._status_due_at <= self._ports.clock():
            await self._write_status()

    async def _write_status(self) -> None:
        await self._ports.reporter.status(self._unwritten)
        self._status, self._status_at = self._unwritten, self._ports.clock()
        self._status_due_at = math.inf

    def _due_at(self, status: Status) -> float:
        if status == self._status:
            return math.inf
        if self._status is None or not write_throttle(status, self._status):
            return -math.inf
        soon = self._ports.clock() + STATUS_AFTER_S
        return min(self._status_due_at, max(soon, self._status_at + STATUS_EVERY_S))

    async def flush(self) -> None:
        """Write the figures and decisions that wait for others: this process stops."""
        if self._status_due_at < math.inf:
            with contextlib.suppress(PlatformError):
                await self._write_status()
        await self._chronicle.write(self._ports.reporter, now=math.inf)


def _is_ours(observed: ObservedCluster) -> bool:
    return observed.found and not observed.conflict and observed.scheduler.is_connected


def _claims(decided: Plan, policy: Policy) -> dict[str, Claimed]:
    """Nothing of a cluster whose number stays as it is, whatever it needs."""
    if policy.mode is not Mode.AUTO:
        return {}
    return {g.group: g.claim for g in decided.groups if g.claim is not None}


def _next(observed: ObservedCluster, outcomes: tuple[Outcome, ...]) -> float:
    """Seconds until another look is worth it, because not all that may change is told."""
    is_blind = not observed.scheduler.is_connected
    is_limited = any(g.room for g in observed.groups)
    if outcomes or is_blind or is_limited:
        return POLL_S
    return math.inf


def write_throttle(new: Status, old: Status) -> bool:
    """
    Whether nobody has begun to leave or to be replaced, and no condition has turned. Figures of
    workers that were asked for come with them, if they come soon.
    """
    return set(_pressing(new)) <= set(_pressing(old)) and _milestones(new) == _milestones(old)


def _pressing(status: Status) -> Iterator[object]:
    """
    What has to be told as soon as it is there; that it is no more can wait. Workers on their way
    out are by their absence why `replicas` is too high, to an operator that comes after this one.
    """
    for row in status.workers:
        if row.state in {"Due", "Surging"}:
            yield row.name, row.reason, row.state
        elif row.state not in {"Active", "Pending"}:
            yield row.name
    yield from status.recycled.items()
    yield from status.recent


def _milestones(status: Status) -> object:
    """Changes that people and other programs wait for."""
    return (
        status.generation,
        status.scheduler,
        [(c.type, c.status, c.reason) for c in status.conditions],
    )
