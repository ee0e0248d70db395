"""What people hold by annotation: `paused`, `paused-scale-in`, `paused-scale-out`, …"""

from __future__ import annotations

from dask_adaptive.model.history import Step
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Pause


def held(desired: int, serving: int, pause: Pause, *, is_default: bool) -> tuple[int, Step | None]:
    """
    The number of workers that a pause leaves.

    Of several that are set each counts: `paused-replicas` names the number, and `paused-scale-in`
    and `paused-scale-out` keep the group from going there. What can't be read holds what it is
    about, and everything if that is not known either.

    Args:
        desired: Workers after all other stages.
        serving: Workers there are, those that are to leave not counted.
        is_default: Whether it is the group that `paused-replicas` is about.
    """
    if not is_paused(pause):
        return desired, None
    if pauses_all(pause):
        reason = Reason.INVALID_PAUSE if pause.problem else Reason.PAUSED
        return serving, _step(serving, reason, pause, "nothing is scaled")
    number, reason, what = desired, Reason.DESIRED_WITHIN_RANGE, ""
    if pause.replicas is not None and is_default:
        number, reason = pause.replicas, Reason.REPLICAS_HELD
        what = f"{desired} wanted, {number} held"
    if pause.scale_in and number < serving:
        what = f"{number} wanted, {serving} held: no worker leaves"
        number, reason = serving, Reason.SCALE_IN_PAUSED
    elif pause.scale_out and number > serving:
        what = f"{number} wanted, {serving} held: no worker is asked for"
        number, reason = serving, Reason.SCALE_OUT_PAUSED
    if not what:
        return desired, None
    if pause.problem:
        reason = Reason.INVALID_PAUSE
    return number, _step(number, reason, pause, what)


def is_paused(pause: Pause) -> bool:
    """Whether anything is held; a pause ends by itself, even if nobody has looked since."""
    if pause.left_s is not None and pause.left_s <= 0:
        return False
    return (
        pause.all or pause.scale_in or pause.scale_out or pause.replicas is not None
        or bool(pause.problem)
    )  # fmt: skip


def pauses_all(pause: Pause) -> bool:
    named = pause.scale_in or pause.scale_out or pause.replicas is not None
    return pause.all or not named  # what is left is a problem with nothing that could be read


def _step(replicas: int, reason: Reason, pause: Pause, what: str) -> Step:
    # When it ends is told by the condition: a sentence that counts down would be news all the time.
    said = (part for part in (what, pause.message, pause.problem) if part)
    return Step("pause", replicas, reason, "; ".join(said))
