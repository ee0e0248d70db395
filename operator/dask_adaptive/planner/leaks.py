"""How fast a worker's unmanaged memory grows, told from how it goes up and down."""

from __future__ import annotations

from collections.abc import Sequence

#: One look at a worker: (when, bytes of unmanaged memory).
Sample = tuple[float, int]

#: So many samples are kept of one window. Their pairs are compared, so the price is its square.
SAMPLES = 30

#: With fewer samples, or less than half of the window, there is no trend.
FEWEST = 8


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
    if len(samples) < FEWEST:
        return 0.0
    span_s = samples[-1][0] - samples[0][0]
    if span_s < window_s / 2:
        return 0.0
    third = len(samples) // 3
    rise = _median([s for _, s in samples[-third:]]) - _median([s for _, s in samples[:third]])
    if rise < notable / 3600 * span_s / 3:  # at that rate it would be two thirds of the span
        return 0.0
    slopes = [
        (size - before) / (at - since)
        for i, (at, size) in enumerate(samples)
        for since, before in samples[:i]
        if at > since
    ]
    return _median(slopes) * 3600


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
