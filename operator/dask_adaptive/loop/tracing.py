"""Turns what is observed into the samples of a trace; never a key, an address or a result."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from dask_adaptive.model.observed import ObservedCluster, ObservedGroup
from dask_adaptive.model.trace import Origin, Sample, TraceGroup


def hashed(name: str) -> str:
    """A name that says nothing, the same for the same name; empty and "…" stay."""
    if name in ("", "…"):
        return name
    return hashlib.blake2s(name.encode(), digest_size=5).hexdigest()


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
        return hashed(name) if self._redact else name

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
            w.name: (g.name, w.age_s) for g in observed.groups for w in g.workers if w.is_connected
        }
        known, self._seen = self._seen, set(ages)
        if known is None:
            return ()
        return tuple(
            (self._name(group), age_s)
            for name, (group, age_s) in sorted(ages.items())
            if name not in known
        )
