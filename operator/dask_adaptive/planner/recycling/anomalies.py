"""Workers unlike others: far from the mean of their group, or with memory that ever grows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from dask_adaptive.model.amounts import format_bytes
from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.recycle import Selection, Trait

#: Of fewer workers none can be said to be unlike the others.
FEWEST_WORKERS = 4

#: One look at a worker: (when, bytes of unmanaged memory).
Sample = tuple[float, int]

#: So many samples are kept of one window. Their pairs are compared, so the price is its square.
SAMPLES = 30

#: With fewer samples, or less than half of the window, there is no trend.
FEWEST_SAMPLES = 8


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
    if not selection.by:
        return {}
    seasoned = [w for w in workers if w.use.runs >= selection.min_tasks]
    found: dict[str, Outlier] = {}
    for trait in selection.by:
        for name, outlier in _above(seasoned, trait, selection.deviations):
            if name not in found or found[name].ratio < outlier.ratio:
                found[name] = outlier
    return found


def _above(
    workers: Sequence[ObservedWorker], trait: Trait, deviations: float
) -> list[tuple[str, Outlier]]:
    value, _, _ = _TRAITS[trait]
    values = [(w.name, value(w)) for w in workers]
    if trait is Trait.DURATION:
        values = [(name, v) for name, v in values if v > 0]  # 0: not measured
    if len(values) < FEWEST_WORKERS:
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
    _, write, words = _TRAITS[trait]
    what = f"{words} {write(value)}, its group's mean is {write(mean)}"
    return f"{what} (recycle.selection: above it by {deviations:g} deviations)"


def _seconds(value: float) -> str:
    return f"{value:.2g}s" if value < 100 else f"{value:.0f}s"


#: Where the number is in a worker, how it is written, and what it is.
_TRAITS: Mapping[Trait, tuple[Callable[[ObservedWorker], float], Callable[[float], str], str]] = {
    Trait.DURATION: (lambda w: w.use.mean_s, _seconds, "a task takes on average"),
    Trait.FAILURES: (lambda w: w.use.failures, "{:.2g}".format, "failures:"),
    Trait.UNMANAGED_MEMORY: (lambda w: w.use.unmanaged_bytes, format_bytes, "unmanaged memory:"),
}


def with_sample(
    samples: tuple[Sample, ...], at: float, size: int, *, window_s: float
) -> tuple[Sample, ...]:
    """The samples with one more, if it is time for one, and without those before the window."""
    if samples and at - samples[-1][0] < window_s / SAMPLES:
        return samples
    return (*(s for s in samples if at - s[0] <= window_s), (at, size))


def growth(samples: Sequence[Sample], *, window_s: float, notable: float) -> float:
    """
    The slope of memory over time, in bytes an hour; 0 while there is too little to tell it from.

    The median of the slopes between all pairs of samples: up to 29 % of them may be wild.

    Args:
        notable: A rate; where what is new is not even half of it above what is old, 0 is returned
            at a fraction of the price.

    Source:
        Theil and Sen's estimator.
    """
    if len(samples) < FEWEST_SAMPLES:
        return 0.0
    span_s = samples[-1][0] - samples[0][0]
    if span_s < window_s / 2:
        return 0.0
    third = len(samples) // 3
    rise = median([s for _, s in samples[-third:]]) - median([s for _, s in samples[:third]])
    if rise < notable / 3600 * span_s / 3:  # at that rate it would be two thirds of the span
        return 0.0
    slopes = [
        (size - before) / (at - since)
        for i, (at, size) in enumerate(samples)
        for since, before in samples[:i]
        if at > since
    ]
    return median(slopes) * 3600
