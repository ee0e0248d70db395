"""The load of a cluster as it was recorded, sample by sample, and its form as JSON lines. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dask_adaptive.model.observed import PrefixWork, Want

#: Of the format; in the first line of a trace. Keys are added, never given another meaning.
VERSION = 1


class InvalidTrace(ValueError):
    """Not a trace that can be read; who gave the file can fix it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a trace comes from: its first line."""

    cluster: str
    started: float  # seconds since 1970
    every_s: float = 1.0  # between two samples
    default_group: str = ""
    distributed: str = ""
    agent: str = ""
    is_redacted: bool = False  # names of prefixes, groups and owners are hashed


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
    """What there was at one instant."""

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


def origin_line(origin: Origin) -> str:
    row = {"trace": VERSION, **asdict(origin), "started": round(origin.started, 3)}
    row["redacted"] = row.pop("is_redacted")
    return _line(row)


def sample_line(sample: Sample) -> str:
    """One sample as JSON. What is empty is left out: most seconds of most clusters are quiet."""
    row: dict[str, Any] = {"t": round(sample.t, 3), "session": sample.session}
    row["prefixes"] = [
        [p.name, None if p.mean_s is None else round(p.mean_s, 4), p.running, p.ready, p.waiting,
         round(p.longest_s, 2), p.done, p.level, p.width, round(p.fan_in, 2)]
        for p in sample.prefixes
    ]  # fmt: skip
    row["groups"] = [
        [g.name, g.replicas, g.present, g.connected, g.idle, g.threads] for g in sample.groups
    ]
    row["pins"] = dict(sample.pins)
    row["wants"] = [[w.workers, round(w.left_s, 1), w.owner, w.group] for w in sample.wants]
    row["arrived"] = [[group, round(s, 2)] for group, s in sample.arrived]
    row["no_client_s"] = round(sample.no_client_s, 1)
    return _line({k: v for k, v in row.items() if v or k in ("t", "session")})


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
        except (ValueError, KeyError, TypeError, IndexError) as exc:
            if n == numbered[-1][0]:
                break
            raise InvalidTrace(f"line {n} is no sample: {exc!r}") from exc
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
        version = row["trace"]
    except (ValueError, KeyError, TypeError) as exc:
        raise InvalidTrace('line 1 is not {"trace": 1, …}: this is no trace') from exc
    if version != VERSION:
        raise InvalidTrace(f"the trace has version {version}; this program reads {VERSION}")
    try:
        return Origin(
            cluster=str(row["cluster"]),
            started=float(row["started"]),
            every_s=float(row.get("every_s", 1.0)),
            default_group=str(row.get("default_group", "")),
            distributed=str(row.get("distributed", "")),
            agent=str(row.get("agent", "")),
            is_redacted=bool(row.get("redacted", False)),
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise InvalidTrace(f"line 1 can't be read: {exc!r}") from exc


def _sample(row: Mapping[str, Any]) -> Sample:
    return Sample(
        t=float(row["t"]),
        session=int(row.get("session", 0)),
        prefixes=tuple(_prefix(*columns) for columns in row.get("prefixes", ())),
        groups=tuple(
            TraceGroup(str(name), *map(int, numbers)) for name, *numbers in row.get("groups", ())
        ),
        pins=tuple((str(source), int(n)) for source, n in row.get("pins", {}).items()),
        wants=tuple(
            Want(int(workers), float(left_s), str(owner), str(group))
            for workers, left_s, owner, group in row.get("wants", ())
        ),
        arrived=tuple((str(group), float(s)) for group, s in row.get("arrived", ())),
        no_client_s=float(row.get("no_client_s", 0.0)),
    )


def _prefix(
    name: str, mean_s: float | None, running: int, ready: int, waiting: int,
    longest_s: float, done: int, level: int = 0, width: int | None = None, fan_in: float = 1.0,
    *_: object,
) -> PrefixWork:  # fmt: skip
    return PrefixWork(
        str(name), None if mean_s is None else float(mean_s), int(running), int(ready),
        int(waiting), float(longest_s), int(done), None if width is None else int(width),
        int(level), float(fan_in),
    )  # fmt: skip
