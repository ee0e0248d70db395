"""
The load of a cluster as it was recorded, sample by sample: its form as JSON lines, and its file.

Numbers by prefix, never a key, an address or a result.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import msgspec

from dask_adaptive.model.keys import DEFAULT, hashed
from dask_adaptive.model.observed import ObservedCluster, ObservedGroup, PrefixWork, Want

#: Of the format; in the first line of a trace. Keys are added, never given another meaning.
VERSION = 1


class InvalidTrace(ValueError):
    """Not a trace that can be read; who gave the file can fix it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a trace: its first line."""

    cluster: str
    started: float  # seconds since 1970
    every_s: float = 1.0  # between two samples
    default_group: str = ""
    distributed: str = ""
    agent: str = ""
    redacted: bool = False  # names of prefixes, groups and owners are hashed


@dataclass(frozen=True, slots=True)
class TraceGroup:
    """One worker group at one instant."""

    name: str
    replicas: int  # asked for
    present: int  # that exist, connected or not
    connected: int
    idle: int = 0  # of the connected ones
    threads: int = 0  # of one worker; 0: none has been seen


@dataclass(frozen=True, slots=True)
class Sample:
    """The recorded state at one instant."""

    t: float  # seconds since the trace began
    session: int = 0  # counts up when the scheduler has started anew: `done` begins again
    prefixes: tuple[PrefixWork, ...] = ()
    groups: tuple[TraceGroup, ...] = ()
    pins: tuple[tuple[str, int], ...] = ()  # workers that are held, by source
    wants: tuple[Want, ...] = ()
    arrived: tuple[tuple[str, float], ...] = ()  # connected since the last sample: group, seconds
    no_client_s: float = 0.0

    @property
    def unfinished(self) -> int:
        return sum(p.running + p.ready + p.waiting for p in self.prefixes)

    @property
    def present(self) -> int:
        return sum(g.present for g in self.groups)


@dataclass(frozen=True, slots=True)
class Trace:
    """A recording. `samples` in the order of time, at least one."""

    origin: Origin
    samples: tuple[Sample, ...]


#: The columns of rows in a line.
_COLUMNS = {
    "prefixes": (
        "name", "mean_s", "running", "ready", "waiting", "longest_s", "done", "level", "width",
        "fan_in",
    ),
    "groups": ("name", "replicas", "present", "connected", "idle", "threads"),
    "wants": ("workers", "left_s", "owner", "group"),
}  # fmt: skip


def origin_line(origin: Origin) -> str:
    return _line({"trace": VERSION, **asdict(origin), "started": round(origin.started, 3)})


def sample_line(sample: Sample) -> str:
    """One sample as JSON. What is empty is left out: most seconds of most clusters are quiet."""
    row: dict[str, Any] = {"t": round(sample.t, 3), "session": sample.session}
    for key, columns in _COLUMNS.items():
        row[key] = [[_short(getattr(each, c)) for c in columns] for each in getattr(sample, key)]
    row["pins"] = dict(sample.pins)
    row["arrived"] = [[group, round(s, 2)] for group, s in sample.arrived]
    row["no_client_s"] = round(sample.no_client_s, 1)
    return _line({k: v for k, v in row.items() if v or k in ("t", "session")})


def _short(value: object) -> object:
    return round(value, 4) if isinstance(value, float) else value


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False)


def read_trace(lines: Iterable[str]) -> Trace:
    """
    Read a trace. A last line that was cut off, by a full disk or a pulled plug, is passed over.

    Raises:
        InvalidTrace: The message names the line.
    """
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise InvalidTrace("the trace is empty")
    origin = read_origin(numbered[0][1])
    samples: list[Sample] = []
    for n, line in numbered[1:]:
        try:
            sample = _sample(json.loads(line))
        except (ValueError, TypeError, AttributeError) as exc:
            if n == numbered[-1][0]:
                break
            raise InvalidTrace(f"line {n} is no sample: {exc}") from exc
        if samples and sample.t < samples[-1].t:
            raise InvalidTrace(f"line {n} goes back in time, from {samples[-1].t} to {sample.t} s")
        samples.append(sample)
    if not samples:
        raise InvalidTrace("the trace holds no sample")
    return Trace(origin, tuple(samples))


def read_origin(line: str) -> Origin:
    """The first line. Raises `InvalidTrace`."""
    try:
        row = json.loads(line)
        if row["trace"] == VERSION:
            return msgspec.convert(row, Origin)
    except (ValueError, KeyError, TypeError) as exc:
        raise InvalidTrace(f'this is no trace: line 1 is not {{"trace": 1, …}}: {exc}') from exc
    raise InvalidTrace(f"the trace has version {row['trace']}; this program reads {VERSION}")


def _sample(row: Any) -> Sample:
    """Read a line; columns that a later release may add are passed over."""
    for key, columns in _COLUMNS.items():
        row[key] = [dict(zip(columns, values, strict=False)) for values in row.get(key, ())]
    row["pins"] = list(row.get("pins", {}).items())
    return msgspec.convert(row, Sample)


class TraceFile:
    """
    A trace of one cluster that is being written, each sample at once, so that what is there is
    always whole.

    Args:
        every_s: Between two samples.
        redact: Whether names are hashed: those of prefixes (functions), groups and owners.
        clock: Seconds since 1970.

    Raises:
        OSError: It is there already, or can't be written.
    """

    def __init__(
        self, path: Path, *, every_s: float, redact: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._path, self._every_s, self._redact, self._clock = path, every_s, redact, clock
        self.samples, self.written_at = 0, clock()
        self._started: float | None = None
        self._session, self._sessions = "", -1
        self._seen: set[str] | None = None  # workers that are connected; None: nothing seen yet
        self._threads: dict[str, int] = {}

    def __enter__(self) -> TraceFile:
        self._file: IO[str] = self._path.open("x", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, observed: ObservedCluster) -> Sample | None:
        """Write a sample, if the scheduler reports its work, and return it."""
        now = self._clock()
        sample = self.sample(observed, t=now - (self._started or now))
        if sample is None:
            return None
        if self._started is None:
            self._started = now
            origin = Origin(
                cluster=self._name(observed.key.name),
                started=now,
                every_s=self._every_s,
                default_group=self._name(observed.key.default_group),
                distributed=observed.scheduler.distributed,
                agent=observed.scheduler.agent,
                redacted=self._redact,
            )
            self._file.write(origin_line(origin) + "\n")
        self._file.write(sample_line(sample) + "\n")
        self._file.flush()
        self.samples, self.written_at = self.samples + 1, now
        return sample

    def sample(self, observed: ObservedCluster, *, t: float) -> Sample | None:
        """
        One sample; None if the scheduler has not said what work there is.

        Args:
            t: Seconds since the trace began.
        """
        scheduler = observed.scheduler
        if not scheduler.is_connected or scheduler.demand is None:
            return None
        if scheduler.session != self._session:
            self._session, self._sessions = scheduler.session, self._sessions + 1
        held: Counter[str] = Counter()
        for worker in observed.workers:
            held.update({pin.source for pin in worker.process.pins})
        return Sample(
            t=t,
            session=self._sessions,
            prefixes=tuple(replace(p, name=self._name(p.name)) for p in scheduler.demand.prefixes),
            groups=tuple(self._group(g) for g in observed.groups),
            pins=tuple(sorted(held.items())),
            wants=tuple(
                replace(w, owner=self._name(w.owner), group=self._name(w.group))
                for w in scheduler.wants
            ),
            arrived=self._arrived(observed),
            no_client_s=scheduler.quiet.no_client_s,
        )

    def _name(self, name: str) -> str:
        if not self._redact:
            return name
        # A default group is found by its name, which is its cluster's and this.
        stem = name.removesuffix(DEFAULT)
        return hashed(stem) + name[len(stem) :]

    def _group(self, group: ObservedGroup) -> TraceGroup:
        connected = [w for w in group.workers if w.is_connected]
        threads = Counter(w.process.nthreads for w in connected if w.process.nthreads)
        if threads:
            self._threads[group.name] = max(threads.items(), key=lambda item: (item[1], item[0]))[0]
        return TraceGroup(
            name=self._name(group.name),
            replicas=group.replicas,
            present=len(group.workers),
            connected=len(connected),
            idle=sum(not w.process.processing for w in connected),
            threads=self._threads.get(group.name, group.threads),
        )

    def _arrived(self, observed: ObservedCluster) -> tuple[tuple[str, float], ...]:
        """The start-up time of each worker that has connected since, from its Deployment on."""
        ages: Mapping[str, tuple[str, float]] = {
            w.name: (w.platform.group, observed.clocks.age_s(w))
            for w in observed.workers
            if w.is_connected
        }
        known, self._seen = self._seen, set(ages)
        if known is None:
            return ()
        return tuple(
            (self._name(group), age_s)
            for name, (group, age_s) in sorted(ages.items())
            if name not in known
        )
