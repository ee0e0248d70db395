"""Floors at certain hours: `spec.schedules`."""

from __future__ import annotations

from collections.abc import Sequence

from dask_adaptive.model.history import Step
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Schedule
from dask_adaptive.model.windows import is_open


def floor_of(
    schedules: Sequence[Schedule], group: str, default_group: str, *, at: float
) -> tuple[int, Step | None]:
    """
    How many workers of a group schedules keep at an instant; of several that are open the most.

    Args:
        at: Seconds since 1970.

    Returns:
        0 and None while none is open for the group.
    """
    open_now = [
        s
        for s in schedules
        if (s.group or default_group) == group and s.minimum > 0 and is_open((s.window,), at)
    ]
    if not open_now:
        return 0, None
    highest = max(open_now, key=lambda s: s.minimum)
    window = highest.window
    message = f"at least {highest.minimum} by schedule {window.schedule} ({window.zone})"
    return highest.minimum, Step("schedule", highest.minimum, Reason.SCHEDULED_MINIMUM, message)
