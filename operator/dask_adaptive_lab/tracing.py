"""Writes what is observed as a trace: numbers by prefix, never a key, an address or a result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

from dask_adaptive.model.keys import DEFAULT, hashed
from dask_adaptive.model.observed import ObservedCluster, ObservedGroup
from dask_adaptive_lab.trace import (
    InvalidTrace,
    Origin,
    Sample,
    TraceGroup,
    origin_line,
    read_origin,
    read_trace,
    sample_line,
)


class Tracer:
    """
    Makes samples of one cluster, in the order of time.

    Args:
        redact: Whether names are hashed: those of prefixes (functions), groups and owners.
        session: Number of the first session, where an earlier recording is gone on with.
    """

    def __init__(self, *, redact: bool = False, session: int = 0) -> None:
        self._redact = redact
        self._session, self._sessions = "", session - 1
        self._seen: set[str] | None = None  # workers that are connected; None: nothing seen yet
        self._threads: dict[str, int] = {}

    def origin(self, observed: ObservedCluster, *, started: float, every_s: float) -> Origin:
        return Origin(
            cluster=self._name(observed.key.name),
            started=started,
            every_s=every_s,
            default_group=self._name(observed.key.default_group),
            distributed=observed.scheduler.distributed,
            agent=observed.scheduler.agent,
            is_redacted=self._redact,
        )

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
        for worker in (w for g in observed.groups for w in g.workers):
            held.update({pin.source for pin in worker.pins})
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
        threads = Counter(w.nthreads for w in connected if w.nthreads)
        if threads:
            self._threads[group.name] = max(threads.items(), key=lambda item: (item[1], item[0]))[0]
        return TraceGroup(
            name=self._name(group.name),
            replicas=group.replicas,
            present=len(group.workers),
            connected=len(connected),
            idle=sum(not w.processing for w in connected),
            threads=self._threads.get(group.name, group.threads),
        )

    def _arrived(self, observed: ObservedCluster) -> tuple[tuple[str, float], ...]:
        """How long each worker that has connected since took to come, from its Deployment on."""
        ages: Mapping[str, tuple[str, float]] = {
            w.name: (g.name, observed.clocks.age_s(w))
            for g in observed.groups
            for w in g.workers
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


class TraceFile:
    """
    A trace that is being written, each sample at once, so that what is there is always whole.

    Args:
        path: A trace of the same cluster that is there already is continued.
        every_s: Between two samples.
        cluster: Its name, where it must be that of the trace that is there.
        clock: Seconds since 1970.

    Raises:
        InvalidTrace: The file holds something else, or the trace of another cluster.
        OSError: It can't be read or written.
    """

    def __init__(
        self, path: Path, *, every_s: float, cluster: str = "", redact: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._path, self._every_s, self._clock = path, every_s, clock
        self.samples, self.written_at = 0, clock()
        self._started: float | None = None
        session = 0
        if path.exists() and path.stat().st_size:
            session = self._continue(hashed(cluster) if redact else cluster, redact)
        self._tracer = Tracer(redact=redact, session=session)

    def __enter__(self) -> TraceFile:
        self._file: IO[str] = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, observed: ObservedCluster) -> None:
        """Write a sample, if the scheduler has said what work there is."""
        now = self._clock()
        sample = self._tracer.sample(observed, t=now - (self._started or now))
        if sample is None:
            return
        if self._started is None:
            self._started = now
            origin = self._tracer.origin(observed, started=now, every_s=self._every_s)
            self._file.write(origin_line(origin) + "\n")
        self._file.write(sample_line(sample) + "\n")
        self._file.flush()
        self.samples, self.written_at = self.samples + 1, now

    def _continue(self, cluster: str, redact: bool) -> int:
        """Read what is there; a line that was cut off is removed. Returns the next session."""
        text = self._path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        lines = whole.splitlines()
        origin = read_origin(lines[0] if lines else text)
        if (origin.cluster, origin.is_redacted) != (cluster, redact):
            kind = "a redacted" if origin.is_redacted else "an unredacted"
            raise InvalidTrace(f"it holds {kind} trace of cluster {origin.cluster}, not {cluster}")
        if whole != text:
            self._path.write_text(whole, encoding="utf-8")
        self._started = origin.started
        return read_trace(lines).samples[-1].session + 1 if len(lines) > 1 else 0
