"""Whether a shuffle gains by beginning later, on more workers. Arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: A wait must shorten the whole by at least so much of it: estimates are not exact.
MARGIN = 0.1


class Coming(NamedTuple):
    """Threads that are on their way."""

    threads: int
    in_s: float


class Work(NamedTuple):
    """Seconds of work, on one thread, that a shuffle still means."""

    inputs_s: float  # before its outputs can be computed; any worker may take part
    outputs_s: float  # stays with the workers that are there when it begins


def worthwhile_wait_s(
    work: Work, threads: int, coming: Sequence[Coming], *, most_s: float
) -> float:
    """
    How much later a shuffle should begin, so that it ends soonest.

    While it waits nothing of it is computed: its first inputs hold the threads that would. Whoever
    comes after it has begun still helps with its inputs, and not with its outputs.

    Args:
        work: What is yet to be done.
        threads: That are there now.
        coming: More of them, in any order.
        most_s: It waits no longer than this; what comes later is not waited for.

    Returns:
        Seconds, 0 where waiting does not pay; else when some of `coming` are expected.
    """
    if threads <= 0:
        return 0.0
    coming = sorted((one for one in coming if one.threads > 0), key=lambda one: one.in_s)
    at_once = end = _end_s(work, threads, coming, 0.0)
    best = 0.0
    for wait_s in dict.fromkeys(one.in_s for one in coming if one.in_s <= most_s):
        later = _end_s(work, threads, coming, wait_s)
        if later < end and later <= at_once * (1 - MARGIN):
            best, end = wait_s, later
    return best


def _end_s(work: Work, threads: int, coming: Sequence[Coming], begin_s: float) -> float:
    """When the last output is there if the shuffle begins then."""
    for_outputs = threads + sum(one.threads for one in coming if one.in_s <= begin_s)
    now_s, left_s, serving = begin_s, work.inputs_s, for_outputs
    for one in coming:
        if one.in_s <= begin_s:
            continue
        if left_s <= (one.in_s - now_s) * serving:
            break
        left_s -= (one.in_s - now_s) * serving
        now_s, serving = one.in_s, serving + one.threads
    return now_s + left_s / serving + work.outputs_s / for_outputs
