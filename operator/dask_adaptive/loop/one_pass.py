"""One pass over one cluster: observe, plan, act, report. Each pass reads all state again."""

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
from dask_adaptive.planner.quotas import walltimes

#: Interval of passes while changes are not reported: the scheduler has no agent or does not answer,
#: a ResourceQuota limits the group, or actions may have failed silently.
POLL_S = 5.0

#: The shortest time between two passes.
SHORTEST_S = 0.5

#: Shortest time between two writes of figures that move with the load.
STATUS_EVERY_S = 10.0

#: Figures wait this long, to be written together with the decision that follows from them.
STATUS_AFTER_S = 5.0

NO_STATUS = Status()


@dataclass(frozen=True, slots=True)
class PassResult:
    """Observation, decisions and results of one pass."""

    observed: ObservedCluster
    plan: Plan
    outcomes: tuple[Outcome, ...]
    status: Status
    again_in_s: float  # until the next pass, if nothing happens before
    policy: Policy  # with a number for each `Auto`


class ClusterLoop:
    """
    The passes over one cluster. Not reentrant: one pass at a time.

    Args:
        before: The policy's status as an earlier process left it. Its leaving workers explain,
            once they are gone, why `replicas` is too high; its replacements of the last hour count
            for `maxPerHour`.
        name: Name of the policy, for people; empty: the cluster's.
    """

    def __init__(
        self, key: ClusterKey, ports: Ports, before: Status = NO_STATUS, *, name: str = ""
    ) -> None:
        self._key, self._ports, self._name = key, ports, name or key.name
        groups = {
            group: GroupPast(arrival_s=known.start_s, starts=(known.start_s,))
            for group, known in before.idle_times.items()
            if known.start_s != READY_S  # that is the default, not a measurement
        }
        recycle = RecyclePast(totals=before.recycles)
        self._past = Past(leaving=frozenset(before.leaving), groups=groups, recycle=recycle)
        self._calendar, self._joined = Calendar(before.recent), JoinedWorkers()
        self._status: Status | None = None  # as last written
        self._status_at = 0.0
        self._unwritten = NO_STATUS
        self._status_due_at = math.inf  # when to write it, if it was held back
        self._reported = frozenset[Event]()
        self._attempts = Attempts(ports.clock)
        self._unanswered = 0  # consecutive requests that the scheduler did not answer
        self._late: tuple[Note, ...] = ()  # from the second look before a deletion
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
        ends = walltimes(view.groups, policy)
        seen = join(self._key, view, answer, self._joined, ends)
        observed = self._with_late(seen)
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
        """Withdraw this cluster's budget claim while its needs are unknown."""
        self._ports.claim({})

    def _with_late(self, observed: ObservedCluster) -> ObservedCluster:
        """Add what was reported during the second look."""
        if not self._late:
            return observed
        notes, self._late = (*self._late, *observed.scheduler.notes), ()
        return replace(observed, scheduler=replace(observed.scheduler, notes=notes))

    def _recall(self, view: PlatformView) -> None:
        """Take over the recycles of an earlier process, once the platform's date is known."""
        begun = self._calendar.begun(view, self._ports.clock())
        if begun:
            old = self._past.recycle
            both = tuple(sorted((*begun, *old.begun)))
            self._past = replace(self._past, recycle=replace(old, begun=both))

    async def _limit(self, observed: ObservedCluster, decided: Plan) -> str:
        """
        Send the limits of workers to the agent, after the actions: a worker that was just retired
        no longer uses a cordon slot. Returns the error, if any; the next pass sends them again.
        """
        if not _is_ours(observed):
            return ""
        try:
            await self._ports.link.limit(decided.limits)
        except LinkError as exc:
            return str(exc)
        return ""

    async def _ask_scheduler(self, view: PlatformView, policy: Policy) -> ObservedScheduler:
        # Do not contact the scheduler of a cluster that is missing or not ours.
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
            self._late = (*self._late, *observed.scheduler.notes)  # each comes only once
            again = deletion(observed, policy)
            return again is not None and again.uid == action.uid

        return look_again

    async def _announce(self, observed: ObservedCluster, policy: Policy, decided: Plan) -> None:
        """Send expected workers and the page to the scheduler. Failures are ignored."""
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
        """Report new events and the status; an unchanged world causes no call."""
        happened = frozenset(events_of_outcomes(outcomes))
        happened |= {*events_of_advice(decided), *events_of_annotations(observed)}
        new = sorted(happened - self._reported, key=lambda e: (e.worker, e.reason.value, e.message))
        noted = events_of_notes(observed)  # each comes only once; equal ones are separate news
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
        if self._status is None or not only_figures_changed(status, self._status):
            return -math.inf
        soon = self._ports.clock() + STATUS_AFTER_S
        return min(self._status_due_at, max(soon, self._status_at + STATUS_EVERY_S))

    async def flush(self) -> None:
        """Write pending figures and decisions before this process stops."""
        if self._status_due_at < math.inf:
            with contextlib.suppress(PlatformError):
                await self._write_status()
        await self._chronicle.write(self._ports.reporter, now=math.inf)


def _is_ours(observed: ObservedCluster) -> bool:
    return observed.found and not observed.conflict and observed.scheduler.is_connected


def _claims(decided: Plan, policy: Policy) -> dict[str, Claimed]:
    """Return the budget claim of each group; none unless the mode is Auto."""
    if policy.mode is not Mode.AUTO:
        return {}
    return {g.group: g.claim for g in decided.groups if g.claim is not None}


def _next(observed: ObservedCluster, outcomes: tuple[Outcome, ...]) -> float:
    """Return seconds until the next poll; infinite if every change is reported."""
    is_blind = not observed.scheduler.is_connected
    is_limited = any(g.room for g in observed.groups)
    if outcomes or is_blind or is_limited:
        return POLL_S
    return math.inf


def only_figures_changed(new: Status, old: Status) -> bool:
    """
    True unless a worker has begun to leave or to be replaced, or a condition has turned. Such a
    status may wait, so that figures of requested workers are written together with their arrival.
    """
    return set(_pressing(new)) <= set(_pressing(old)) and _milestones(new) == _milestones(old)


def _pressing(status: Status) -> Iterator[object]:
    """
    Yield entries whose appearance is urgent and whose disappearance is not. A later operator needs
    the leaving workers: once gone, they explain why `replicas` is too high.
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
