"""The work that waits, as the scheduler's agent tells it, and what clients ask for. Seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefixWork:
    """Unfinished tasks of one prefix."""

    name: str
    mean_s: float | None  # measured; None: none has finished yet
    running: int  # assigned to workers
    ready: int  # queued, or without a worker that may run them
    waiting: int  # for other tasks
    longest_s: float = 0.0  # so long has one of its running tasks been at it
    done: int = 0  # runs that have finished since the scheduler started
    # How its tasks hang on others: as the agent tells it from a sample of those that wait.
    width: int | None = None  # so many can run at once; None: nobody looked
    level: int = 0  # so many kinds of tasks, one after the other, come first; 0: it can begin now
    fan_in: float = 1.0  # unfinished tasks of other kinds that one of them waits for, on average
    bound: int = 0  # of all: only some workers may run them (`Need`)

    @property
    def unfinished(self) -> int:
        return self.running + self.ready + self.waiting


@dataclass(frozen=True, slots=True)
class Need:
    """Tasks that only some workers may run. They are part of `Demand.prefixes` as well."""

    tasks: int  # assigned, or without a worker
    stuck: int  # of them: no connected worker may run them
    seconds: float  # expected, of all of them
    resources: Mapping[str, float]  # what each claims
    workers: tuple[str, ...] = ()  # names or addresses; at most 50
    hosts: tuple[str, ...] = ()
    loose: bool = False  # allow_other_workers
    waiting: int = 0  # for other tasks, beyond `tasks`; `seconds` does not count them
    able: tuple[str, ...] = ()  # connected workers that may run them; at most 50


@dataclass(frozen=True, slots=True)
class UpcomingShuffle:
    """A P2P shuffle whose inputs are not all there: its outputs are yet to be given to workers."""

    id: str
    inputs: int  # that have not finished
    outputs: int
    is_waiting: bool = False  # its creation waits for workers that are on their way
    waits_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Want:
    """What a client's code asks for, as a floor, as long as its lease lasts."""

    workers: int
    left_s: float
    owner: str
    group: str = ""  # empty: the default worker group


@dataclass(frozen=True, slots=True)
class Demand:
    """All that asks for workers, at one instant."""

    prefixes: tuple[PrefixWork, ...] = ()  # at most 200; what is beyond is one row named "…"
    needs: tuple[Need, ...] = ()  # at most 50 kinds
    shuffles: tuple[UpcomingShuffle, ...] = ()
    incoming: float = 0.0  # seconds of work a second that have come again and again of late
    every_s: float = 0.0  # from one time to the next
    unknown_s: float = 0.5  # `distributed.scheduler.unknown-task-duration`


@dataclass(frozen=True, slots=True)
class Quiet:
    """For how long nobody has used the cluster. 0: it is in use."""

    no_task_s: float = 0.0
    no_client_s: float = 0.0
