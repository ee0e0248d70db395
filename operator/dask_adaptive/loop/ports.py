"""The edges of the loop: all that has side effects, as protocols bound to one cluster each."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dask_adaptive.loop.status import Status
from dask_adaptive.model.observed import ObservedScheduler, PlatformView
from dask_adaptive.model.plan import Arriving, Claimed, Decision
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits


class PlatformError(Exception):
    """
    The platform did not do what was asked; a later pass tries again, not before `retry_after_s`.
    """

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PlatformUnread(PlatformError):
    """The platform's state is unknown; nothing is decided before it is read."""


class LinkError(Exception):
    """The scheduler did not answer, or not as expected; nothing may be assumed of its workers."""

    reason = Reason.SCHEDULER_UNREACHABLE


class AgentInvalid(LinkError):
    """It answered something else than it may: nothing of that is used."""

    reason = Reason.AGENT_INVALID


class TlsFailed(LinkError):
    """Certificates are missing, wrong or out of date, or the scheduler speaks no TLS."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificates of a client for a scheduler that takes TLS only, as PEM."""

    ca: str  # who signs the scheduler's certificate
    certificate: str
    key: str = field(repr=False)


class Platform(Protocol):
    """The platform of the workers: Kubernetes, or this machine."""

    async def look(self) -> PlatformView:
        """Read all that is known of the cluster. Raises `PlatformError`."""

    async def set_replicas(self, group: str, replicas: int) -> None:
        """
        Set a group's `replicas` through its scale subresource.

        Refused (`PlatformError`) where more workers than that exist at this moment, whatever was
        seen before: the platform's own operator would choose whom to close.
        """

    async def delete_worker(self, worker: str, uid: str) -> None:
        """Delete a worker if it still has this uid; gone already is success. `PlatformError`."""

    async def delete_cluster(self, uid: str) -> None:
        """Delete the DaskCluster if it still has this uid; gone already is success.
        `PlatformError`."""

    async def restart_worker(self, worker: str, pod: str, pod_uid: str) -> None:
        """
        Delete a worker's pod if it still has this uid; the platform brings another for the same
        worker. Gone already is success. `PlatformError`.
        """


@dataclass(frozen=True, slots=True)
class Retired:
    """The scheduler's side of one request to let a Dask worker go."""

    name: str
    state: str  # "draining" | "drained" | "active" | "gone"
    veto: Reason | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class PageContent:
    """The operator's decisions on the dashboard's page."""

    policy: str = ""  # its name; empty: nothing is told
    message: str = ""  # of the last plan
    workers: tuple[tuple[str, str], ...] = ()  # Dask name, sentence: planned to leave, or held
    decisions: tuple[tuple[float, str, str, str], ...] = ()  # at (epoch), group, reason, message
    can_grow: int = 0  # workers beyond those on their way that may still be asked for
    grow_s: float | None = None  # how long one of those would take to come; None: unknown


class SchedulerLink(Protocol):
    """The one who talks to the scheduler. A scheduler that does not answer in time: `LinkError`."""

    async def observe(self, policy: Policy, *, meters: bool = False) -> ObservedScheduler:
        """
        Take a snapshot; never raises: a problem is part of the answer.

        Args:
            meters: Quotas are to be judged: what they are measured by is wanted, too.
        """

    async def changed(self) -> None:
        """
        Return when another look at the scheduler is worth it: something has changed there since the
        last one that may change a plan, or it does not answer. Where nobody there can tell, after
        some seconds. Never raises; may go on while other calls are made.
        """

    async def retire(
        self, names: Sequence[str], policy: Policy, reason: Reason, *, busy_ok: bool = False,
        over_pins: bool = False, ends: str = "",
    ) -> list[Retired]:  # fmt: skip
        """
        Begin to drain Dask workers, or ask how far they are; idempotent.

        Args:
            over_pins: Pins of people and of code do not count.
            ends: What we end if all are drained or gone: "processes", or with them their "names",
                under which none comes then. The scheduler forgets them at once.
        """

    async def limit(self, limits: Limits) -> None:
        """Say what workers may go on with; nothing is sent where nothing has changed."""

    async def announce(self, arriving: Sequence[Arriving], content: PageContent) -> None:
        """
        Say what is on its way and what was decided, for shuffles that are about to begin and for
        the page in the dashboard; nothing is sent where nothing has changed.
        """

    async def leave(self, names: Sequence[str], *, left_s: float, reason: Reason) -> list[Retired]:
        """
        Say that the processes of Dask workers are about to end, or ask how far they are.

        Args:
            names: Names or addresses.
            left_s: Seconds until they end, whatever is still there.
        """

    async def cancel(self, names: Sequence[str]) -> list[Retired]:
        """Put Dask workers back to service."""

    async def pin(self, names: Sequence[str], *, ttl_s: float, note: str) -> None:
        """Hold Dask workers on behalf of a person's annotation."""

    async def unpin(self, names: Sequence[str]) -> None:
        """Give up what `pin` claimed."""


class EventType(str, enum.Enum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, once. `worker` empty: it is about the policy."""

    type: EventType
    reason: Reason
    message: str
    worker: str = ""
    would: bool = False  # in Advise mode: what would have been done
    doing: str = ""  # such as: Retiring; the worker's name and the message follow


class Reporter(Protocol):
    """
    Reports status, events and history. Called on edges only: an unchanged world causes no call.
    """

    async def status(self, status: Status) -> None: ...

    async def tell(self, events: Sequence[Event]) -> None:
        """Tell all that is new in one pass, if anything. What cannot be told is lost."""

    async def history(self, decisions: Sequence[Decision]) -> None:
        """Keep these decisions, oldest first; those kept before stay, `plan.KEPT` in all."""


@dataclass(frozen=True)
class Ports:
    """
    Attributes:
        clock: Monotonic seconds.
        claim: Reports how many workers each group needs, for what clusters share. What a group may
            have comes with what the platform sees.
    """

    platform: Platform
    link: SchedulerLink
    reporter: Reporter
    clock: Callable[[], float]
    claim: Callable[[Mapping[str, Claimed]], None] = lambda _: None
