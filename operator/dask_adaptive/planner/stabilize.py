"""The stabilization window: do not act on a dip that may be gone in a minute."""

from __future__ import annotations

from dask_adaptive.model.past import Past

#: With no recommendation for so long we were blind: what was before no longer counts.
BLIND_S = 20.0


def stabilize(wanted: int, current: int, past: Past, *, window_s: float, now: float) -> int:
    """
    Move from `current` towards `wanted`, but down no further than the window allows.

    A rise passes at once: a user who waits for capacity loses more than an idle worker costs. A
    fall stops at the highest recommendation of the last `window_s` seconds, and does not begin
    before the scheduler has been watched for that long without a gap: an operator or a scheduler
    that has just started has no past to judge by.

    Args:
        wanted: Workers the load asks for now.
        current: Workers the group has now.
        past: Earlier recommendations for the same group.
        window_s: Length of the window in seconds; 0 turns it off.
        now: Current time in seconds, on the clock that stamped `past`.

    Returns:
        Workers, at least `wanted`; above `current` only if `wanted` is.

    Source:
        HorizontalPodAutoscaler (autoscaling/v2), `behavior.scaleDown.stabilizationWindowSeconds`.
    """
    if window_s > 0 and not _is_watched(past, window_s, now=now):
        return max(current, wanted)
    recent = [r.replicas for r in past.recommendations if now - r.at < window_s]
    return min(max(current, wanted), max([wanted, *recent]))


def _is_watched(past: Past, window_s: float, *, now: float) -> bool:
    if past.since is None or now - past.since < window_s:
        return False
    return any(now - r.at < BLIND_S for r in past.recommendations[-1:])
