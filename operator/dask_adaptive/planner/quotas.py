"""
Defines the quotas: one rule for each reason to replace a worker.

`RULES` lists what a worker has used of something, its limit, and how both are shown. Due workers,
metrics, `explain` and the check whether a drain still has its reason all use this list. `replace`
decides when workers are replaced, and how many at once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple

from dask_adaptive.model.amounts import counted, format_duration
from dask_adaptive.model.observed import (
    Clocks,
    Deleting,
    ObservedGroup,
    ObservedWorker,
)
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    LifetimeQuota,
    Quota,
    QuotaUse,
    Recycle,
    RecyclePast,
    TaskQuota,
)
from dask_adaptive.planner.context import PassContext

#: Shortest averaging time of a worker's pace, in seconds.
PACE_S = 10.0

#: The first to be replaced, after urgent ones.
_FIRST = (Reason.FAILURES, Reason.RECYCLE_REQUESTED)

#: Characters shown of a failure's text.
SHOWN = 120

_NO_PAST, _NO_PACE, _NO_CLOCKS = RecyclePast(), (0.0, 0, 0.0), Clocks()


class RecycleCandidate(NamedTuple):
    """A worker that is to be replaced, now or soon, if budgets and windows allow it."""

    worker: str
    reason: Reason
    message: str  # the quota and its use
    ratio: float = 1.0  # use of the quota; 1: used up
    is_over: bool = True  # False: it will be by the time a new worker has started
    is_urgent: bool = False  # windows and minAge do not hold it
    is_manual: bool = False  # maxPerHour does not count it
    #: Quota used up: it takes no tasks, so delaying its replacement gains nothing.
    is_spent: bool = False
    rises: float = 0.0  # upper bound of the ratio's growth per second, without events
    other_reasons: tuple[
        RecycleCandidate, ...
    ] = ()  # its other reasons, in case this one is not allowed


#: Of one rule about one worker; None: it is not due.
Verdict = RecycleCandidate | None


@dataclass(frozen=True, slots=True)
class QuotaContext:
    """The context of a rule."""

    recycle: Recycle  # the quotas of the worker's group
    past: RecyclePast = _NO_PAST
    now: float = 0.0
    clocks: Clocks = _NO_CLOCKS
    expected_s: float = 0.0  # of the longest unfinished task

    def margin_s(self, worker: ObservedWorker) -> float:
        return own_margin_s(worker, self.recycle.lifetime, self.clocks)


Number = Callable[[ObservedWorker], float]
Workers = Sequence[ObservedWorker]


@dataclass(frozen=True, slots=True)
class Rule:
    """
    One reason to replace a worker: its use of something reaches a limit.

    Attributes:
        use: What a worker has used; what does not depend on the worker is looked up once.
        limit: What it may use; infinite: it has no such quota.
        message: Why it is due, or (False) why it will be soon.
        soon: What it will have used when a replacement that is asked for now is there.
        lowest: The lowest limit of any worker, where each has its own.
        marked: True of those that may be due, where that is no matter of numbers: all of them are
            notable, or have an end.
        judge: Decides instead of `compared`, or on top of it.
        quota: What is rationed; None: nothing, so no use is shown.
        shown: Use and limit, for `explain`.
        part: How much of its limit a worker has used, where that is not use by limit.
        is_urgent: Neither windows nor minAge hold it back.
        is_manual: maxPerHour does not count it.
    """

    reason: Reason
    limit: Callable[[ObservedWorker, QuotaContext], float]
    use: Callable[[QuotaContext], Number] = lambda _: lambda _: 1.0
    message: Callable[[ObservedWorker, QuotaContext, float, bool], str] = lambda *_: ""
    soon: Callable[[QuotaContext], Number] | None = None
    lowest: Callable[[QuotaContext], float] | None = None
    marked: Callable[[ObservedWorker, QuotaContext], bool] | None = None
    judge: Callable[[Rule, ObservedWorker, QuotaContext, float], Verdict] | None = None
    quota: Quota | None = None
    shown: Callable[[ObservedWorker, QuotaContext, float], tuple[str, str]] = lambda *_: ("", "")
    part: Callable[[ObservedWorker, QuotaContext, float], float] | None = None
    is_urgent: bool = False
    is_manual: bool = False

    def ratio(self, worker: ObservedWorker, context: QuotaContext, limit: float) -> float | None:
        """Return the fraction of its limit that a worker has used, or None without a limit."""
        if limit == math.inf:
            return None
        return self.part(worker, context, limit) if self.part else self.use(context)(worker) / limit


def compared(rule: Rule, worker: ObservedWorker, context: QuotaContext, limit: float) -> Verdict:
    """Return why a worker is due by a rule that compares numbers, or None."""
    use = rule.use(context)(worker)
    is_over = use >= limit
    if not is_over and (rule.soon or rule.use)(context)(worker) < limit:
        return None
    message = rule.message(worker, context, limit, is_over)
    return RecycleCandidate(
        worker.name, rule.reason, message, use / limit, is_over, rule.is_urgent, rule.is_manual
    )


def near(rule: Rule, workers: Workers, context: QuotaContext) -> Workers:
    """
    Return workers that may be due by a number, and that of the highest use: a cheap check of all.

    Only they are judged. It may name too many, never too few.
    """
    if not workers or rule.limit(workers[0], context) == math.inf:
        return ()
    use, soon = rule.use(context), (rule.soon or rule.use)(context)
    line = rule.lowest(context) if rule.lowest else rule.limit(workers[0], context)
    used = list(map(use, workers))
    most = max(used)
    first = workers[used.index(most)]
    limit = rule.limit(first, context)
    if line < limit > most:  # with jitter another may be closer to a lower limit
        least = line * (most / limit)
        close = [w for w, u in zip(workers, used, strict=True) if u >= least]
        first = max(close, key=lambda w: use(w) / rule.limit(w, context), default=first)
    if rule.soon is None and most < line:
        return (first,)
    every = zip(workers, used, strict=True)
    return [w for w, u in every if u >= line or soon(w) >= line or w is first]


# Tasks


def _runs_soon(context: QuotaContext) -> Number:
    paces, ready_s, over_s = context.past.pace, context.past.ready_s, paced_over_s(context.past)
    is_exact = context.recycle.tasks.exact

    def runs(worker: ObservedWorker) -> float:
        seen_at, _, pace = paces.get(life_of(worker), _NO_PACE)
        # A short pause changes nothing. The end of a long one is unknown, and a replacement that
        # came too early would stand idle.
        is_resting = not worker.process.processing and context.now - seen_at > over_s
        more = (0.0 if is_resting else pace * ready_s) + is_exact * worker.process.processing
        return worker.use.runs + more

    return runs


def _by_tasks(rule: Rule, worker: ObservedWorker, context: QuotaContext, limit: float) -> Verdict:
    found, is_spent = compared(rule, worker, context, limit), has_spent(worker, context.recycle)
    if is_spent and worker.use.runs < limit < math.inf:
        # The rest of its quota is already assigned.
        message = worker.process.cordon.message if worker.process.cordon else ""
        return RecycleCandidate(worker.name, rule.reason, message, is_spent=True)
    return found._replace(is_spent=True) if found and is_spent else found


def _task_text(worker: ObservedWorker, context: QuotaContext, limit: float, is_over: bool) -> str:
    source = _source("tasks", str(context.recycle.tasks.max), str(limit))
    if is_over:
        return f"has run {counted(worker.use.runs, 'task')} ({source})"
    return f"will soon have run {limit:,} tasks ({source})"


def _by_fitting(rule: Rule, worker: ObservedWorker, context: QuotaContext, limit: float) -> Verdict:
    """Judge by the tasks that still fit into a worker's remaining time."""
    expected_s = context.expected_s
    left_s = context.clocks.ends_in_s(worker) - context.margin_s(worker)
    is_on = context.recycle.tasks.from_walltime and expected_s > 0
    if not is_on or left_s >= context.past.ready_s + expected_s:
        return None
    message = "no other task fits before it ends (recycle.tasks.fromWalltime)"
    ratio = 2 * expected_s / (expected_s + max(left_s, 0.0))
    return RecycleCandidate(
        worker.name, rule.reason, message, ratio, left_s < expected_s,
        is_spent=has_spent(worker, context.recycle), rises=2 / expected_s,
    )  # fmt: skip


# Time


def _age_soon(context: QuotaContext) -> Number:
    clocks, ready_s = context.clocks, context.past.ready_s
    return lambda worker: clocks.pod_age_s(worker) + ready_s


def _by_age(rule: Rule, worker: ObservedWorker, context: QuotaContext, limit: float) -> Verdict:
    found = compared(rule, worker, context, limit)
    return found and found._replace(rises=1 / limit)


def _age_message(worker: ObservedWorker, context: QuotaContext, limit: float, is_over: bool) -> str:
    own = format_duration(limit)
    source = _source("lifetime", format_duration(context.recycle.lifetime.max_s), own)
    return f"{'is' if is_over else 'will soon be'} older than {own} ({source})"


def _age_shown(worker: ObservedWorker, context: QuotaContext, limit: float) -> tuple[str, str]:
    return f"{format_duration(context.clocks.pod_age_s(worker))} old", format_duration(limit)


def _by_end(rule: Rule, worker: ObservedWorker, context: QuotaContext, limit: float) -> Verdict:
    """Judge by an end set elsewhere: the pod's deadline, an annotation, Dask's --lifetime."""
    margin_s, ready_s = context.margin_s(worker), context.past.ready_s
    left_s, ratio = context.clocks.ends_in_s(worker) - margin_s, 1.0
    is_ending = left_s <= 0
    if is_ending:
        message = f"it ends in less than {format_duration(margin_s)} (recycle.lifetime.margin)"
        ratio = 1 - left_s
    elif worker.process.too_short:
        message = "a waiting task is not expected to finish before the worker ends"
    elif left_s <= context.expected_s + ready_s:
        # By then the last fitting task is done, and the replacement must be there.
        message = "it ends soon, with no time left for any waiting or running task"
        ratio = ready_s / (ready_s + left_s)
    else:
        return None
    is_over = is_ending or worker.process.too_short
    return RecycleCandidate(worker.name, rule.reason, message, ratio, is_over, is_urgent=True)


def _part_of_life(worker: ObservedWorker, context: QuotaContext, margin_s: float) -> float:
    """Return the fraction of its life that a worker has behind it, up to its margin."""
    left_s = max(0.0, context.clocks.ends_in_s(worker) - margin_s)
    age_s = context.clocks.pod_age_s(worker)
    return age_s / (age_s + left_s) if left_s else 1.0


def _end_shown(worker: ObservedWorker, context: QuotaContext, margin_s: float) -> tuple[str, str]:
    left = format_duration(max(0.0, context.clocks.ends_in_s(worker)))
    return f"ends in {left}", f"{format_duration(margin_s)} before its end"


# Memory, failures


def _by_soft_memory(
    rule: Rule, worker: ObservedWorker, context: QuotaContext, limit: float
) -> Verdict:
    """Judge memory that has been above the soft limit for long; the past knows since when."""
    found, for_s = compared(rule, worker, context, limit), context.recycle.memory.for_s
    left_s = context.past.above_since.get(life_of(worker), context.now) + for_s - context.now
    if found is None or left_s > context.past.ready_s:
        return None
    return found._replace(
        message=rule.message(worker, context, limit, left_s <= 0), is_over=left_s <= 0
    )


def _soft_message(_: ObservedWorker, context: QuotaContext, limit: float, is_over: bool) -> str:
    since = f"for over {format_duration(context.recycle.memory.for_s)}" if is_over else "for long"
    line = f"{limit:.0%} of the limit"
    return f"unmanaged memory has been above {line} {since} (recycle.memory.soft)"


def _soft_shown(worker: ObservedWorker, context: QuotaContext, limit: float) -> tuple[str, str]:
    for_s = format_duration(context.recycle.memory.for_s)
    return f"unmanaged {worker.use.unmanaged:.0%}", f"soft {limit:.0%} for {for_s}"


def _hard_message(worker: ObservedWorker, _: QuotaContext, limit: float, __: bool) -> str:
    # In steps of 5 %: smaller changes are no news.
    level = max(limit * 100, math.floor(worker.use.process * 20) * 5)
    return f"its process uses {level:.0f}% of its memory (recycle.memory.hard)"


def _by_failures(
    rule: Rule, worker: ObservedWorker, context: QuotaContext, limit: float
) -> Verdict:
    found, cordon = compared(rule, worker, context, limit), worker.process.cordon
    is_cordoned = cordon is not None and cordon.quota is Quota.FAILURES
    if found is None and cordon and is_cordoned and limit < math.inf:
        # The failure that caused the cordon has left the window.
        return RecycleCandidate(worker.name, rule.reason, cordon.message)
    return found


def _failed_message(worker: ObservedWorker, context: QuotaContext, limit: float, _: bool) -> str:
    span = format_duration(context.recycle.failures.window_s)
    return f"{counted(worker.use.failures, 'failure')} within {span} (recycle.failures.max {limit})"


def _failed_shown(worker: ObservedWorker, context: QuotaContext, limit: float) -> tuple[str, str]:
    within = format_duration(context.recycle.failures.window_s)
    return counted(worker.use.failures, "failure"), f"{limit:,} within {within}"


def _pattern_message(worker: ObservedWorker, *_: object) -> str:
    text = " ".join(worker.use.match.split())[:SHOWN]
    return f'a task failed with "{text}" (recycle.failures.patterns)'


def _pattern_shown(worker: ObservedWorker, context: QuotaContext, _: float) -> tuple[str, str]:
    found, patterns = "one" if worker.use.match else "none", len(context.recycle.failures.patterns)
    return f"{found} was found", f"any of {patterns} patterns"


RULES = (
    Rule(
        Reason.TASK_QUOTA, quota=Quota.TASKS, use=lambda _: attrgetter("process.use.runs"),
        soon=_runs_soon, limit=lambda w, c: own_tasks(w, c.recycle.tasks) or math.inf,
        lowest=lambda c: c.recycle.tasks.max * (1 - c.recycle.tasks.jitter),
        judge=_by_tasks, message=_task_text,
        shown=lambda w, c, limit: (f"{w.use.runs:,} tasks run", f"{limit:,}"),
    ),
    Rule(
        Reason.TASK_QUOTA, judge=_by_fitting,
        marked=lambda w, c: w.has_end and c.recycle.tasks.from_walltime,
        limit=lambda w, c: 1.0 if c.recycle.tasks.from_walltime else math.inf,
    ),
    Rule(
        Reason.LIFETIME, quota=Quota.LIFETIME, use=lambda c: c.clocks.pod_age_s, soon=_age_soon,
        limit=lambda w, c: own_lifetime_s(w, c.recycle.lifetime),
        lowest=lambda c: c.recycle.lifetime.max_s * (1 - c.recycle.lifetime.jitter),
        judge=_by_age, message=_age_message, shown=_age_shown,
    ),
    Rule(
        Reason.LIFETIME, quota=Quota.LIFETIME, marked=lambda w, c: w.has_end or w.process.too_short,
        limit=lambda w, c: c.margin_s(w) if w.has_end else math.inf,
        judge=_by_end, part=_part_of_life, shown=_end_shown,
    ),
    Rule(
        Reason.MEMORY_SOFT, quota=Quota.MEMORY, use=lambda _: attrgetter("process.use.unmanaged"),
        limit=lambda w, c: c.recycle.memory.soft,
        judge=_by_soft_memory, message=_soft_message, shown=_soft_shown,
    ),
    Rule(
        Reason.MEMORY_HARD, quota=Quota.MEMORY, use=lambda _: attrgetter("process.use.process"),
        limit=lambda w, c: c.recycle.memory.hard, message=_hard_message, is_urgent=True,
        shown=lambda w, c, limit: (f"process {w.use.process:.0%}", f"hard {limit:.0%}"),
    ),
    Rule(
        Reason.FAILURES, quota=Quota.FAILURES, use=lambda _: lambda w: float(bool(w.use.match)),
        limit=lambda w, c: 1.0 if c.recycle.failures.patterns else math.inf,
        judge=_by_failures, message=_pattern_message, shown=_pattern_shown,
    ),
    Rule(
        Reason.FAILURES, quota=Quota.FAILURES, use=lambda _: attrgetter("process.use.failures"),
        limit=lambda w, c: c.recycle.failures.max or math.inf,
        judge=_by_failures, message=_failed_message, shown=_failed_shown,
    ),
    Rule(
        Reason.RECYCLE_REQUESTED, is_manual=True,
        marked=lambda w, c: bool(w.platform.recycle_request),
        limit=lambda w, c: 1.0 if w.platform.recycle_request else math.inf,
        message=lambda w, *_: f"its replacement was requested: {w.platform.recycle_request}",
    ),
    Rule(
        Reason.DRIFTED, marked=lambda w, c: bool(w.platform.drift), is_manual=True,
        limit=lambda w, c: 1.0 if w.platform.drift and c.recycle.drift else math.inf,
        message=lambda w, *_: f"differs from its worker group: {w.platform.drift}",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Assessment:
    """The result of the quotas for one group."""

    due: tuple[RecycleCandidate, ...] = ()  # one per worker, by reason and use: a total order
    uses: tuple[QuotaUse, ...] = ()  # the highest use of each of the group's quotas


def assess(context: PassContext, group: ObservedGroup) -> Assessment:
    """
    Find the workers of a group that are due, and how far its quotas are used.

    Those that drain are assessed like any other; those that are not connected, or being deleted,
    are never due.
    """
    table, recycle = group.table, context.policy.recycle_of(group.name)
    expected_s = context.observed.scheduler.expected_s
    inputs = QuotaContext(recycle, context.past.recycle, context.now, context.clocks, expected_s)
    found: list[RecycleCandidate] = []
    uses: dict[Quota, list[tuple[float, str]]] = defaultdict(list)
    notable = _assessed({**table.noted, **table.ends}.values())
    # These may be due regardless of use.
    cordoned = [w for w in notable if w.process.cordon is not None]
    others = [w for w in notable if w.process.cordon is None]
    are_numbers = [r.limit(w, inputs) < math.inf for w in table[:1] for r in RULES if not r.marked]
    every = _assessed(table) if any(are_numbers) else []
    every = [w for w in every if w.process.cordon is None] if cordoned else every
    for rule in RULES:
        judge, marked = rule.judge or compared, rule.marked
        close = [w for w in others if marked(w, inputs)] if marked else near(rule, every, inputs)
        for worker in (*close, *cordoned):
            limit = rule.limit(worker, inputs)
            if candidate := judge(rule, worker, inputs, limit):
                found.append(candidate)
            if rule.quota and (ratio := rule.ratio(worker, inputs, limit)) is not None:
                uses[rule.quota].append((-ratio, worker.name))
    highest = ((quota, *min(uses[quota])) for quota in Quota if uses[quota])
    return Assessment(
        _in_order(found),
        tuple(QuotaUse(group.name, quota, -ratio, name) for quota, ratio, name in highest),
    )


def _assessed(workers: Iterable[ObservedWorker]) -> list[ObservedWorker]:
    return [w for w in workers if w.dask_names and not isinstance(w.lifecycle, Deleting)]


def _in_order(found: Iterable[RecycleCandidate]) -> tuple[RecycleCandidate, ...]:
    """Sort one candidate for each worker: by rank, highest use, then name."""
    due: dict[str, RecycleCandidate] = {}
    several: dict[str, list[RecycleCandidate]] = {}  # nearly none
    for one in found:
        if (first := due.setdefault(one.worker, one)) is not one:
            several.setdefault(one.worker, [first]).append(one)
    due |= {worker: _first_of(mine) for worker, mine in several.items()}
    # For thousands, three sorts are twice as fast as one by tuples.
    ordered = sorted(due.values(), key=attrgetter("worker"))
    ordered.sort(key=lambda c: -c.ratio)
    ordered.sort(key=_rank)
    return tuple(ordered)


def _first_of(found: Sequence[RecycleCandidate]) -> RecycleCandidate:
    """
    Choose, of the reasons for which one worker is due, the one that the fewest rules delay.

    What is over goes before what will be, then what no window holds, then what people ask for.
    """
    ordered = sorted(
        found,
        key=lambda c: (not c.is_over, not c.is_urgent, not c.is_manual, _rank(c), -c.ratio,
                       c.reason.value),
    )  # fmt: skip
    return ordered[0]._replace(other_reasons=tuple(ordered[1:]))


def _rank(candidate: RecycleCandidate) -> int:
    """Rank a reason among urgent ones, or among others."""
    if candidate.is_urgent:
        return int(candidate.reason is Reason.LIFETIME)
    return _FIRST.index(candidate.reason) if candidate.reason in _FIRST else len(_FIRST)


@dataclass(frozen=True, slots=True)
class QuotaLine:
    """One worker's use of one quota, for `explain`."""

    quota: Quota
    used: str
    limit: str
    ratio: float  # 1: used up


def quota_lines(worker: ObservedWorker, recycle: Recycle, clocks: Clocks) -> tuple[QuotaLine, ...]:
    """Return every quota that applies to a worker."""
    inputs = QuotaContext(recycle, clocks=clocks)
    lines = []
    for rule in RULES:
        limit = rule.limit(worker, inputs)
        if rule.quota and (ratio := rule.ratio(worker, inputs, limit)) is not None:
            lines.append(QuotaLine(rule.quota, *rule.shown(worker, inputs, limit), ratio))
    return tuple(lines)


def still_applies(worker: ObservedWorker, recycle: Recycle) -> bool:
    """
    True if a worker could still be replaced for the reason for which it drains.

    Its use of the quota does not count: memory falls, and failures are forgotten, as it drains.
    """
    inputs = QuotaContext(recycle)
    mine = (rule for rule in RULES if rule.reason is worker.retires_for)
    return any(rule.limit(worker, inputs) < math.inf for rule in mine)


def paced_over_s(past: RecyclePast) -> float:
    """
    Return the averaging time of a worker's pace: older runs count for a third.

    Not less than a replacement takes, or one finished run would be taken for several to come.
    """
    return max(PACE_S, past.ready_s)


def _source(name: str, maximum: str, own: str) -> str:
    """Name the field that sets a limit."""
    source = f"recycle.{name}.max {maximum}"
    return source if own == maximum else f"{source}, less its jitter: {own}"


def life_of(worker: ObservedWorker) -> str:
    """Return the identity that quotas belong to: a new pod of the same name starts afresh."""
    return worker.platform.pod_uid or worker.platform.uid


@lru_cache(maxsize=2**16)
def shares(life: str) -> tuple[float, float]:
    """Return two numbers in [0, 1), for tasks and lifetime, constant for one life."""
    drawn = blake2b(life.encode(), digest_size=8).digest()
    return int.from_bytes(drawn[:4], "big") / 2**32, int.from_bytes(drawn[4:], "big") / 2**32


def own_tasks(worker: ObservedWorker, quota: TaskQuota) -> int:
    """Return the runs that a worker may make, less its jitter; 0: any number."""
    if not quota.max or not quota.jitter:
        return quota.max
    return _jittered(quota.max, quota.jitter, life_of(worker))


@lru_cache(maxsize=2**16)  # several rules need it in each pass
def _jittered(tasks: int, jitter: float, life: str) -> int:
    return max(1, math.ceil(tasks * (1 - jitter * shares(life)[0])))


def own_lifetime_s(worker: ObservedWorker, quota: LifetimeQuota) -> float:
    """Return the greatest age of a worker's pod, less its jitter."""
    if not quota.jitter:
        return quota.max_s
    return quota.max_s * (1 - quota.jitter * shares(life_of(worker))[1])


def own_margin_s(worker: ObservedWorker, quota: LifetimeQuota, clocks: Clocks) -> float:
    """Return the margin before a worker's end, at most a fifth of its life."""
    life_s = clocks.pod_age_s(worker) + clocks.ends_in_s(worker)
    return max(0.0, min(quota.margin_s, life_s / 5))


def has_spent(worker: ObservedWorker, recycle: Recycle) -> bool:
    """True if a worker has used up an exact quota of tasks, so it gets no more."""
    return recycle.tasks.exact and (
        (worker.process.cordon is not None and worker.process.cordon.quota is Quota.TASKS)
        or worker.retires_for is Reason.TASK_QUOTA
    )


def walltimes(groups: Iterable[ObservedGroup], policy: Policy) -> Mapping[str, LifetimeQuota]:
    """Return the lifetimes of the groups whose workers end at `recycle.lifetime.max`."""
    every = {group.name: policy.recycle_of(group.name).lifetime for group in groups}
    return {name: lifetime for name, lifetime in every.items() if lifetime.walltime}


def at_walltime(worker: ObservedWorker, lifetime: LifetimeQuota) -> ObservedWorker:
    """Return the worker with the end of its lifetime as its own, if that is earlier."""
    platform = worker.platform
    ends_at = platform.pod_made_at + own_lifetime_s(worker, lifetime)
    if ends_at >= platform.ends_at:
        return worker
    return replace(worker, platform=replace(platform, ends_at=ends_at))
