"""Declares the side effects of the loop as protocols, each bound to one cluster."""

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
    A request to the platform failed; a later pass retries, no sooner than `retry_after_s`.
    """

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PlatformUnread(PlatformError):
    """The platform's state is unknown; nothing is decided before it is read."""


class LinkError(Exception):
    """The scheduler gave no answer, or no valid one; assume nothing about its workers."""

    reason = Reason.SCHEDULER_UNREACHABLE


class AgentInvalid(LinkError):
    """The answer breaks the protocol; none of it is used."""

    reason = Reason.AGENT_INVALID


class TlsFailed(LinkError):
    """Certificates are missing, invalid or expired, or the scheduler does not speak TLS."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Client certificates for a scheduler that accepts only TLS, as PEM."""

    ca: str  # the authority that signs the scheduler's certificate
    certificate: str
    key: str = field(repr=False)


class Platform(Protocol):
    """The platform of the workers: Kubernetes, or this machine."""

    async def look(self) -> PlatformView:
        """Read the cluster's state. Raises `PlatformError`."""

    async def set_replicas(self, group: str, replicas: int) -> None:
        """
        Set a group's `replicas` through its scale subresource.

        Raises `PlatformError` if more workers exist at this moment: the platform's own operator
        would choose which of them to close.
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

    policy: str = ""  # its name; empty: there is no page
    message: str = ""  # of the last plan
    workers: tuple[tuple[str, str], ...] = ()  # Dask name, sentence: planned to leave, or held
    decisions: tuple[tuple[float, str, str, str], ...] = ()  # at (epoch), group, reason, message
    can_grow: int = 0  # workers beyond those on their way that may still be asked for
    grow_s: float | None = None  # how long one of those would take to come; None: unknown


class SchedulerLink(Protocol):
    """The connection to one scheduler. Raises `LinkError` if it does not answer in time."""

    async def observe(self, policy: Policy, *, meters: bool = False) -> ObservedScheduler:
        """
        Take a snapshot; never raises: a problem is part of the answer.

        Args:
            meters: Include the measurements that quotas need.
        """

    async def changed(self) -> None:
        """
        Wait until something has changed in the scheduler that may change a plan, or it does not
        answer; without an agent, for some seconds. Never raises; other calls may run meanwhile.
        """

    async def retire(
        self, names: Sequence[str], policy: Policy, reason: Reason, *, busy_ok: bool = False,
        over_pins: bool = False, ends: str = "",
    ) -> list[Retired]:  # fmt: skip
        """
        Begin to drain Dask workers, or return their progress; idempotent.

        Args:
            over_pins: Pins of people and of code do not count.
            ends: What the caller removes once all are drained or gone: "processes", or also their
                "names", which no later worker will have. The scheduler forgets them at once.
        """

    async def limit(self, limits: Limits) -> None:
        """Send the limits of workers, if they have changed."""

    async def announce(self, arriving: Sequence[Arriving], content: PageContent) -> None:
        """
        Send the expected workers, for shuffles that are about to begin, and the page of the
        dashboard, if they have changed.
        """

    async def leave(self, names: Sequence[str], *, left_s: float, reason: Reason) -> list[Retired]:
        """
        Announce that the processes of Dask workers will end, or return their progress.

        Args:
            names: Names or addresses.
            left_s: Seconds until they end, drained or not.
        """

    async def cancel(self, names: Sequence[str]) -> list[Retired]:
        """Put Dask workers back to service."""

    async def pin(self, names: Sequence[str], *, ttl_s: float, note: str) -> None:
        """Hold Dask workers on behalf of a person's annotation."""

    async def unpin(self, names: Sequence[str]) -> None:
        """Release the pin that `pin` set."""


class EventType(str, enum.Enum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. With an empty `worker` it is about the policy."""

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
        """Post the new events of one pass. An event that cannot be posted is lost."""

    async def history(self, decisions: Sequence[Decision]) -> None:
        """Keep these decisions, oldest first; those kept before stay, `plan.KEPT` in all."""


@dataclass(frozen=True)
class Ports:
    """
    Attributes:
        clock: Monotonic seconds.
        claim: Reports how many workers each group needs, for budgets that clusters share. The
            platform's view returns each group's allowance.
    """

    platform: Platform
    link: SchedulerLink
    reporter: Reporter
    clock: Callable[[], float]
    claim: Callable[[Mapping[str, Claimed]], None] = lambda _: None
