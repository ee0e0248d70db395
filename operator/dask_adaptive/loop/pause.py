"""What people hold by annotation, as it is told: who, what, and until when. Pure."""

from __future__ import annotations

from dask_adaptive.loop import status as st
from dask_adaptive.loop.held import SLACK_S
from dask_adaptive.loop.status import Condition, PauseRow
from dask_adaptive.model.observed import ObservedCluster
from dask_adaptive.model.pins import instant
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Pause
from dask_adaptive.planner.pauses import is_paused


def pause_row(observed: ObservedCluster, before: PauseRow | None) -> PauseRow | None:
    """
    Args:
        before: As told last: an end that has not really moved stays as told.
    """
    pause = observed.pause
    if not is_paused(pause):
        return None
    message = "; ".join(part for part in (pause.message, pause.problem) if part)
    if pause.left_s is None:
        return PauseRow(message or "paused")
    until = float(round(observed.at + pause.left_s))
    known = before.until if before else None
    if known is not None and abs(known - until) < SLACK_S:
        until = known
    return PauseRow(message or "paused", until)


def paused(policy: Policy, pause: Pause, row: PauseRow | None) -> Condition:
    """
    The condition `Paused`: true while anything at all is held by people.

    Args:
        pause: As observed.
        row: As it is told.
    """
    if policy.mode is Mode.PAUSED:
        return Condition(st.PAUSED, True, Reason.PAUSED, "mode is Paused")
    if row is None:
        is_advising = policy.mode is Mode.ADVISE
        reason = Reason.ADVISING if is_advising else Reason.RECONCILED
        return Condition(st.PAUSED, False, reason, f"mode is {policy.mode.value}")
    end = "" if row.until is None else f", until {instant(row.until)}"
    return Condition(st.PAUSED, True, _reason(pause), row.message + end)


def _reason(pause: Pause) -> Reason:
    if pause.problem:
        return Reason.INVALID_PAUSE
    if pause.all:
        return Reason.PAUSED
    if pause.replicas is not None:
        return Reason.REPLICAS_HELD
    return Reason.SCALE_IN_PAUSED if pause.scale_in else Reason.SCALE_OUT_PAUSED
