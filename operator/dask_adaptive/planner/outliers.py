"""Workers that are far from the rest of their group, by what they take for the same work."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dask_adaptive.model.amounts import format_bytes
from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.recycle import Selection, Trait

#: Of fewer workers none can be said to be unlike the others.
FEWEST = 4


class Outlier(NamedTuple):
    """By which trait a worker stands out: in words, and against the line."""

    message: str
    ratio: float


def find_outliers(workers: Sequence[ObservedWorker], selection: Selection) -> Mapping[str, Outlier]:
    """
    Find workers above the mean of their group by so many standard deviations, by name.

    Only workers that have run enough tasks are compared. With few of them none can be far from the
    mean: for 2 deviations there must be at least 6.

    Source:
        Spark's `spark.kubernetes.executor.rollPolicy=OUTLIER`.
    """
    if not selection.traits:
        return {}
    seasoned = [w for w in workers if w.use.runs >= selection.min_tasks]
    found: dict[str, Outlier] = {}
    for trait in selection.traits:
        for name, outlier in _above(seasoned, trait, selection.deviations):
            if name not in found or found[name].ratio < outlier.ratio:
                found[name] = outlier
    return found


def _above(
    workers: Sequence[ObservedWorker], trait: Trait, deviations: float
) -> list[tuple[str, Outlier]]:
    value = _VALUES[trait]
    values = [(w.name, value(w)) for w in workers]
    if trait is Trait.DURATION:
        values = [(name, v) for name, v in values if v > 0]  # 0: not measured
    if len(values) < FEWEST:
        return []
    mean = math.fsum(v for _, v in values) / len(values)
    spread = math.sqrt(math.fsum((v - mean) ** 2 for _, v in values) / len(values))
    line = mean + deviations * spread
    if spread <= 1e-9 * mean:  # all alike, but for the rounding of floats
        return []
    return [
        (name, Outlier(_message(trait, v, mean, deviations), v / line))
        for name, v in values
        if v > line
    ]


def _message(trait: Trait, value: float, mean: float, deviations: float) -> str:
    write = _WRITTEN[trait]
    what = f"{_WORDS[trait]} {write(value)}, its group's mean is {write(mean)}"
    return f"{what} (recycle.selection: above it by {deviations:g} deviations)"


def _seconds(value: float) -> str:
    return f"{value:.2g}s" if value < 100 else f"{value:.0f}s"


_VALUES: Mapping[Trait, Callable[[ObservedWorker], float]] = {
    Trait.DURATION: lambda w: w.use.mean_s,
    Trait.FAILURES: lambda w: float(w.use.failures),
    Trait.UNMANAGED_MEMORY: lambda w: float(w.use.unmanaged_bytes),
}
_WRITTEN: Mapping[Trait, Callable[[float], str]] = {
    Trait.DURATION: _seconds,
    Trait.FAILURES: lambda value: f"{value:.2g}",
    Trait.UNMANAGED_MEMORY: format_bytes,
}
_WORDS = {
    Trait.DURATION: "a task takes on average",
    Trait.FAILURES: "failures:",
    Trait.UNMANAGED_MEMORY: "unmanaged memory:",
}
