"""
The quotas: one rule for each reason to replace a worker, and all that is known of it.

A rule says what a worker has used and what its limit is, when it is due, and how that is written.
What goes over all quotas (who is due, metrics, `explain`, whether a drain still has its reason)
goes over the one table `RULES`. When a worker is replaced, and how many at once: `select`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from dask_adaptive.model.amounts import format_duration
from dask_adaptive.model.observed import Clocks, Deleting, ObservedGroup, ObservedWorker
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Quota, QuotaUse, Recycle, RecyclePast
from dask_adaptive.planner.context import PassContext
from dask_adaptive.planner.effective_quotas import (
    has_spent,
    life_of,
    own_lifetime_s,
    own_margin_s,
    own_tasks,
)

#: Seconds over which the pace of a worker is averaged at least.
PACE_S = 10.0

#: Of those that are due, but for urgent ones, they go first.
_FIRST = (Reason.FAILURES, Reason.RECYCLE_REQUESTED)

#: As much as is shown of a failure's text.
SHOWN = 120

Workers = Sequence[ObservedWorker]
Figures = dict[str, "float | str"]
Number = Callable[[ObservedWorker], float]

_NO_PAST, _NO_PACE, _NO_CLOCKS = RecyclePast(), (0.0, 0, 0.0), Clocks()


class RecycleCandidate(NamedTuple):
    """A worker that is to be replaced, now or soon, if budgets and windows allow it."""

    worker: str
    reason: Reason
    message: str  # the quota and its use, in words
    ratio: float = 1.0  # use of the quota; 1: used up
    is_over: bool = True  # False: will be within the time that a new worker takes
    is_urgent: bool = False  # windows and minAge do not hold it
    is_manual: bool = False  # maxPerHour does not count it
    #: It gets no more tasks, whatever is decided: to hold it back would save no capacity.
    is_spent: bool = False
    rises: float = 0.0  # by so much a second the ratio grows at most, if nothing happens
    rest: tuple[RecycleCandidate, ...] = ()  # what else it is due for, if that is not allowed


#: Of one rule about one worker; None: it is not due.
Verdict = RecycleCandidate | None


@dataclass(frozen=True, slots=True)
class QuotaContext:
    """What a rule may look at besides the worker."""

    recycle: Recycle  # the quotas of the worker's group
    past: RecyclePast = _NO_PAST
    now: float = 0.0
    clocks: Clocks = _NO_CLOCKS
    expected_s: float = 0.0  # of the longest unfinished task

    def margin_s(self, worker: ObservedWorker) -> float:
        return own_margin_s(worker, self.recycle.lifetime, self.clocks)


class QuotaRule:
    """
    One reason to replace a worker; most often, that a number has come to its limit.

    Attributes:
        quota: What is rationed; None: nothing, so no use is shown.
        is_urgent: Neither windows nor minAge hold it back.
        used: What a worker has used of it.
        words: The message when it is over its limit, and when it will be soon; what stands in
            braces is in `figures`.
        shown: Use and limit of a quota, for `explain`.
    """

    quota: Quota | None = None
    reason: Reason
    is_urgent = False
    used: Number
    words = "", ""
    shown = "", ""

    def limit(self, worker: ObservedWorker, at: QuotaContext) -> float:
        """What a worker may use; infinite: it has no such quota."""
        return math.inf

    def lowest(self, workers: Workers, at: QuotaContext) -> float:
        """The lowest limit that any of these workers may have, if any."""
        return self.limit(workers[0], at)

    def use(self, at: QuotaContext) -> Number:
        """Gives what a worker has used."""
        return self.used

    def soon(self, at: QuotaContext) -> Number:
        """Gives what it will have used when a replacement that is asked for now is there."""
        return self.use(at)

    def ratio(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> float | None:
        """The part of its limit that a worker has used; None: it has none."""
        return self.use(at)(worker) / limit if limit < math.inf else None

    def applies(self, worker: ObservedWorker, at: QuotaContext) -> bool:
        """Whether a worker could be due by this rule, however little it has used so far."""
        return self.limit(worker, at) < math.inf

    def figures(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Figures:
        return {"use": self.use(at)(worker), "limit": limit}

    def judge(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Verdict:
        """Why a worker is due by this rule, or None if it is not."""
        use = self.use(at)(worker)
        is_over = use >= limit
        if not is_over and self.soon(at)(worker) < limit:
            return None
        words, ratio = self.words[not is_over], use / limit
        message = words.format(**self.figures(worker, at, limit))
        return RecycleCandidate(worker.name, self.reason, message, ratio, is_over, self.is_urgent)

    def near(self, workers: Workers, at: QuotaContext) -> Workers:
        """
        Those that may be due, and the one of the highest use: a cheap look at many.

        Only they are judged. It may name too many, never too few.
        """
        if not workers or not self.applies(workers[0], at):
            return ()
        line, use, soon = self.lowest(workers, at), self.use(at), self.soon(at)
        used = list(map(use, workers))
        most = max(used)
        first = workers[used.index(most)]
        limit = self.limit(first, at)
        if line < limit > most:  # with jitter another may have used more of a lower limit
            least = line * (most / limit)
            close = [w for w, u in zip(workers, used, strict=True) if u >= least]
            first = max(close, key=lambda w: use(w) / self.limit(w, at), default=first)
        if soon is use and most < line:
            return (first,)
        every = zip(workers, used, strict=True)
        return [w for w, u in every if u >= line or soon(w) >= line or w is first]


class TaskRuns(QuotaRule):
    quota, reason, used = Quota.TASKS, Reason.TASK_QUOTA, attrgetter("use.runs")
    words = "{use:,} tasks run ({source})", "will soon have run {limit:,} tasks ({source})"
    shown = "{use:,} tasks run", "{limit:,}"

    def limit(self, worker: ObservedWorker, at: QuotaContext) -> float:
        return own_tasks(worker, at.recycle.tasks) or math.inf

    def lowest(self, workers: Workers, at: QuotaContext) -> float:
        return at.recycle.tasks.max * (1 - at.recycle.tasks.jitter)

    def soon(self, at: QuotaContext) -> Number:
        paces, ready_s, over_s = at.past.pace, at.past.ready_s, paced_over_s(at.past)
        is_exact = at.recycle.tasks.exact

        def runs(worker: ObservedWorker) -> float:
            seen_at, _, pace = paces.get(life_of(worker), _NO_PACE)
            # A short rest changes nothing. Of a long one nobody knows the end, and a replacement
            # that came too early would stand beside it all the while.
            is_resting = not worker.processing and at.now - seen_at > over_s
            more = (0.0 if is_resting else pace * ready_s) + is_exact * worker.processing
            return worker.use.runs + more

        return runs

    def judge(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Verdict:
        found, is_spent = super().judge(worker, at, limit), has_spent(worker, at.recycle)
        if is_spent and worker.use.runs < limit < math.inf:
            # What is left of its quota is assigned.
            message = worker.cordon.message if worker.cordon else ""
            return RecycleCandidate(worker.name, self.reason, message, is_spent=True)
        return found._replace(is_spent=True) if found and is_spent else found

    def figures(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Figures:
        source = _source("tasks", str(at.recycle.tasks.max), str(limit))
        return {"use": worker.use.runs, "limit": limit, "source": source}


class TasksThatFit(QuotaRule):
    """The quota of tasks that is computed from the time a worker has left."""

    reason = Reason.TASK_QUOTA

    def applies(self, worker: ObservedWorker, at: QuotaContext) -> bool:
        return at.recycle.tasks.from_walltime

    def near(self, workers: Workers, at: QuotaContext) -> Workers:
        return [w for w in workers if w.has_end] if at.recycle.tasks.from_walltime else ()

    def judge(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Verdict:
        expected_s = at.expected_s
        left_s = at.clocks.ends_in_s(worker) - at.margin_s(worker)
        is_on = at.recycle.tasks.from_walltime and expected_s > 0
        if not is_on or left_s >= at.past.ready_s + expected_s:
            return None
        message = "no other task fits before it ends (recycle.tasks.fromWalltime)"
        ratio = 2 * expected_s / (expected_s + max(left_s, 0.0))
        is_over = left_s < expected_s
        return RecycleCandidate(
            worker.name, self.reason, message, ratio, is_over,
            is_spent=has_spent(worker, at.recycle), rises=2 / expected_s,
        )  # fmt: skip


class PodAge(QuotaRule):
    quota, reason = Quota.LIFETIME, Reason.LIFETIME
    words = "is older than {own} ({source})", "will soon be older than {own} ({source})"
    shown = "{age} old", "{own}"

    def limit(self, worker: ObservedWorker, at: QuotaContext) -> float:
        return own_lifetime_s(worker, at.recycle.lifetime)

    def lowest(self, workers: Workers, at: QuotaContext) -> float:
        return at.recycle.lifetime.max_s * (1 - at.recycle.lifetime.jitter)

    def use(self, at: QuotaContext) -> Number:
        return at.clocks.pod_age_s

    def soon(self, at: QuotaContext) -> Number:
        clocks, ready_s = at.clocks, at.past.ready_s
        return lambda worker: clocks.pod_age_s(worker) + ready_s

    def judge(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Verdict:
        found = super().judge(worker, at, limit)
        return found and found._replace(rises=1 / limit)

    def figures(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Figures:
        own = format_duration(limit)
        source = _source("lifetime", format_duration(at.recycle.lifetime.max_s), own)
        return {"age": format_duration(at.clocks.pod_age_s(worker)), "own": own, "source": source}


class EndOfLife(QuotaRule):
    """An end that others have set: its pod's deadline, an annotation, Dask's own --lifetime."""

    quota, reason = Quota.LIFETIME, Reason.LIFETIME
    shown = "ends in {left}", "{margin} before its end"

    def limit(self, worker: ObservedWorker, at: QuotaContext) -> float:
        return at.margin_s(worker) if worker.has_end else math.inf

    def ratio(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> float | None:
        """How much of its life it has behind it, up to its margin."""
        if not self.applies(worker, at):
            return None
        left_s = max(0.0, at.clocks.ends_in_s(worker) - limit)
        age_s = at.clocks.pod_age_s(worker)
        return age_s / (age_s + left_s) if left_s else 1.0

    def figures(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Figures:
        left = format_duration(max(0.0, at.clocks.ends_in_s(worker)))
        return {"left": left, "margin": format_duration(limit)}

    def near(self, workers: Workers, at: QuotaContext) -> Workers:
        return [w for w in workers if w.has_end or w.too_short]

    def judge(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Verdict:
        margin_s, ready_s = at.margin_s(worker), at.past.ready_s
        left_s, ratio = at.clocks.ends_in_s(worker) - margin_s, 1.0
        is_ending = left_s <= 0
        if is_ending:
            message = f"it ends in less than {format_duration(margin_s)} (recycle.lifetime.margin)"
            ratio = 1 - left_s
        elif worker.too_short:
            message = "a task waits that it is not expected to finish before it ends"
        elif left_s <= at.expected_s + ready_s:
            # The last task that fits is done by then, and the replacement is to be there.
            message = "it ends soon, and has no time for any task that waits or runs"
            ratio = ready_s / (ready_s + left_s)
        else:
            return None
        is_over = is_ending or worker.too_short
        return RecycleCandidate(worker.name, self.reason, message, ratio, is_over, is_urgent=True)


class SoftMemory(QuotaRule):
    """Memory that has been above the soft line for long; the past knows since when."""

    quota, reason, used = Quota.MEMORY, Reason.MEMORY_SOFT, attrgetter("use.unmanaged")
    shown = "unmanaged {use:.0%}", "soft {limit:.0%} for {within}"

    def limit(self, worker: ObservedWorker, at: QuotaContext) -> float:
        return at.recycle.memory.soft

    def figures(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Figures:
        within = format_duration(at.recycle.memory.for_s)
        return {**super().figures(worker, at, limit), "within": within}

    def judge(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Verdict:
        found, for_s = super().judge(worker, at, limit), at.recycle.memory.for_s
        left_s = at.past.above_since.get(life_of(worker), at.now) + for_s - at.now
        if found is None or left_s > at.past.ready_s:
            return None
        is_over = left_s <= 0
        since = f"for over {format_duration(for_s)}" if is_over else "for long"
        line = f"{limit:.0%} of the limit"
        message = f"unmanaged memory has been above {line} {since} (recycle.memory.soft)"
        return found._replace(message=message, is_over=is_over)


class HardMemory(QuotaRule):
    quota, reason, used = Quota.MEMORY, Reason.MEMORY_HARD, attrgetter("use.process")
    is_urgent = True
    words = "its process takes {level:.0f}% of its memory (recycle.memory.hard)", ""
    shown = "process {use:.0%}", "hard {limit:.0%}"

    def limit(self, worker: ObservedWorker, at: QuotaContext) -> float:
        return at.recycle.memory.hard

    def figures(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Figures:
        use = self.used(worker)
        # In steps of 5 %, or each breath that a worker takes would be news.
        return {"use": use, "limit": limit, "level": max(limit * 100, math.floor(use * 20) * 5)}


class FailureCount(QuotaRule):
    quota, reason = Quota.FAILURES, Reason.FAILURES
    used: Number = attrgetter("use.failures")
    words = "{use:,} runs failed within {within} (recycle.failures.max {limit})", ""
    shown = "{use:,} runs failed", "{limit:,} within {within}"

    def limit(self, worker: ObservedWorker, at: QuotaContext) -> float:
        return at.recycle.failures.max or math.inf

    def figures(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Figures:
        within = format_duration(at.recycle.failures.window_s)
        return {**super().figures(worker, at, limit), "within": within}

    def judge(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Verdict:
        found, cordon = super().judge(worker, at, limit), worker.cordon
        if found is None and cordon and cordon.quota is Quota.FAILURES and self.applies(worker, at):
            # The failure for which the agent has cordoned it is out of the window by now.
            return RecycleCandidate(worker.name, self.reason, cordon.message)
        return found


class FailurePattern(FailureCount):
    words = 'a task failed with "{text}" (recycle.failures.patterns)', ""
    shown = "{found} was found", "any of {patterns} patterns"

    @staticmethod
    def used(worker: ObservedWorker) -> float:
        return 1.0 if worker.use.match else 0.0

    def limit(self, worker: ObservedWorker, at: QuotaContext) -> float:
        return 1.0 if at.recycle.failures.patterns else math.inf

    def figures(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Figures:
        text, patterns = worker.use.match, len(at.recycle.failures.patterns)
        found = "one" if text else "none"
        return {"text": " ".join(text.split())[:SHOWN], "found": found, "patterns": patterns}


class Requested(QuotaRule):
    """Somebody wants this worker replaced. `Drifted` is the same for a changed worker group."""

    reason = Reason.RECYCLE_REQUESTED

    def wish(self, worker: ObservedWorker, at: QuotaContext) -> str:
        """Empty: nobody wants it."""
        asked = worker.recycle_asked
        return f"its replacement was requested: {asked}" if asked else ""

    def applies(self, worker: ObservedWorker, at: QuotaContext) -> bool:
        return bool(self.wish(worker, at))

    def near(self, workers: Workers, at: QuotaContext) -> Workers:
        return [w for w in workers if w.recycle_asked]

    def judge(self, worker: ObservedWorker, at: QuotaContext, limit: float) -> Verdict:
        wish = self.wish(worker, at)
        return RecycleCandidate(worker.name, self.reason, wish, is_manual=True) if wish else None


class Drifted(Requested):
    reason = Reason.DRIFTED

    def wish(self, worker: ObservedWorker, at: QuotaContext) -> str:
        differs = worker.drift if at.recycle.drift else ""
        return f"differs from its worker group: {differs}" if differs else ""

    def near(self, workers: Workers, at: QuotaContext) -> Workers:
        return [w for w in workers if w.drift]


RULES: tuple[QuotaRule, ...] = (
    TaskRuns(), TasksThatFit(), PodAge(), EndOfLife(), SoftMemory(), HardMemory(),
    FailurePattern(), FailureCount(), Requested(), Drifted(),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Assessment:
    """What the quotas say of one group."""

    due: tuple[RecycleCandidate, ...] = ()  # one for each worker, by reason and use: a total order
    uses: tuple[QuotaUse, ...] = ()  # the highest use of each quota that the group has


def assess(context: PassContext, group: ObservedGroup) -> Assessment:
    """
    Find the workers of a group that are due, and how far its quotas are used.

    Those that drain are assessed like any other; those that are not connected, or being deleted,
    are never due.
    """
    workers = [w for w in group.workers if w.dask_names and not isinstance(w.lifecycle, Deleting)]
    at = QuotaContext(
        context.policy.recycle_of(group.name),
        context.past.recycle,
        context.now,
        context.clocks,
        context.observed.scheduler.expected_s,
    )
    found: list[RecycleCandidate] = []
    uses: dict[Quota, list[tuple[float, str]]] = defaultdict(list)  # the highest is the first
    cordoned = [w for w in workers if w.cordon is not None]  # may be due whatever they have used
    free = [w for w in workers if w.cordon is None] if cordoned else workers
    for rule in RULES:
        for worker in (*rule.near(free, at), *cordoned):
            limit = rule.limit(worker, at)
            if candidate := rule.judge(worker, at, limit):
                found.append(candidate)
            if rule.quota and (ratio := rule.ratio(worker, at, limit)) is not None:
                uses[rule.quota].append((-ratio, worker.name))
    highest = ((quota, *min(uses[quota])) for quota in Quota if uses[quota])
    return Assessment(
        _in_order(found),
        tuple(QuotaUse(group.name, quota, -ratio, name) for quota, ratio, name in highest),
    )


def _in_order(found: Iterable[RecycleCandidate]) -> tuple[RecycleCandidate, ...]:
    """One candidate of each worker: by rank, then the highest use first, then by name."""
    due: dict[str, RecycleCandidate] = {}
    several: dict[str, list[RecycleCandidate]] = {}
    for one in found:
        first = due.setdefault(one.worker, one)
        if first is not one:
            several.setdefault(one.worker, [first]).append(one)
    due.update({name: _first_of(mine) for name, mine in several.items()})
    # Of thousands three sorts are twice as quick as one by tuples.
    ordered = sorted(due.values(), key=lambda c: c.worker)
    ordered.sort(key=lambda c: -c.ratio)
    ordered.sort(key=_rank)
    return tuple(ordered)


def _first_of(found: Sequence[RecycleCandidate]) -> RecycleCandidate:
    """
    Of the reasons for which one worker is due the one that the fewest rules hold back.

    What is over goes before what will be, then what no window holds, then what people ask for.
    """
    ordered = sorted(
        found,
        key=lambda c: (not c.is_over, not c.is_urgent, not c.is_manual, _rank(c), -c.ratio,
                       c.reason.value),
    )  # fmt: skip
    return ordered[0]._replace(rest=tuple(ordered[1:]))


def _rank(candidate: RecycleCandidate) -> int:
    """Among those that are urgent, or those that are not."""
    if candidate.is_urgent:
        return int(candidate.reason is Reason.LIFETIME)
    return _FIRST.index(candidate.reason) if candidate.reason in _FIRST else len(_FIRST)


@dataclass(frozen=True, slots=True)
class QuotaLine:
    """How far one worker has used up one quota, for people who ask `explain`."""

    quota: Quota
    used: str
    limit: str
    ratio: float  # 1: used up


def quota_lines(worker: ObservedWorker, recycle: Recycle, clocks: Clocks) -> tuple[QuotaLine, ...]:
    """Every quota that holds for a worker."""
    at = QuotaContext(recycle, clocks=clocks)
    lines = []
    for rule in RULES:
        if rule.quota is None:
            continue
        limit = rule.limit(worker, at)
        ratio = rule.ratio(worker, at, limit)
        if ratio is not None:
            figures = rule.figures(worker, at, limit)
            used, own = (text.format(**figures) for text in rule.shown)
            lines.append(QuotaLine(rule.quota, used, own, ratio))
    return tuple(lines)


def still_applies(worker: ObservedWorker, recycle: Recycle) -> bool:
    """
    Whether a worker could still be replaced for the reason for which it drains.

    Its use of the quota does not count: memory falls, and failures are forgotten, as it drains.
    """
    at = QuotaContext(recycle)
    return any(r.applies(worker, at) for r in RULES if r.reason is worker.retires_for)


def paced_over_s(past: RecyclePast) -> float:
    """
    Over how long the pace of a worker is averaged: what is so old counts for a third.

    Not less than a replacement takes, or one finished run would be taken for several to come.
    """
    return max(PACE_S, past.ready_s)


def _source(name: str, maximum: str, own: str) -> str:
    """Where a limit comes from."""
    said = f"recycle.{name}.max {maximum}"
    return said if own == maximum else f"{said}, less its jitter: {own}"
