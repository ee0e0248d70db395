"""`dask-adaptive record CLUSTER`: what a cluster has to do, second by second, into a file."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from dask_adaptive.cli.access import (
    NOTHING,
    UNREACHABLE,
    USAGE,
    ask,
    default_namespace,
    fail,
    kube_options,
)
from dask_adaptive.cli.cluster_now import platform_view
from dask_adaptive.cli.from_here import lookout
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.errors import KubeError
from dask_adaptive.loop.join import join
from dask_adaptive.loop.tracing import Tracer, hashed
from dask_adaptive.model.duration import format_duration, parse_duration
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ObservedCluster, PlatformView
from dask_adaptive.model.trace import (
    InvalidTrace,
    Origin,
    origin_line,
    read_origin,
    read_trace,
    sample_line,
)

if TYPE_CHECKING:
    from dask_adaptive.scheduler.look import Lookout

#: Kubernetes is asked less often than the scheduler: workers come and go more slowly than tasks.
PLATFORM_S = 3.0

#: A scheduler that has not answered for so long is not waited for any more.
GIVE_UP_S = 60.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be recorded, and how."""

    key: ClusterKey
    every_s: float
    for_s: float | None  # None: until Ctrl-C
    redact: bool


@click.command("record")
@click.argument("cluster")
@click.option(
    "-o", "--output", "path", required=True, type=click.Path(dir_okay=False, path_type=Path),
    help="The trace. One that is there already is gone on with.",
)  # fmt: skip
@click.option("--for", "duration", metavar="DURATION", help="How long; else until Ctrl-C.")
@click.option("--every", default="1s", show_default=True, help="Time between two samples.")
@click.option("--redact", is_flag=True, help="Hash the names of prefixes, groups and owners.")
@kube_options
def command(
    cluster: str, path: Path, duration: str | None, every: str, redact: bool,
    namespace: str | None, context: str | None,
) -> None:  # fmt: skip
    """
    Record what CLUSTER has to do, for `simulate`.

    Only numbers by prefix (names of functions) are written, never a key, an address or a result.
    End it with Ctrl-C whenever you like. Exit code 1 if there is nothing to record.
    """
    every_s, for_s = _seconds("--every", every), _seconds("--for", duration) if duration else None
    if every_s <= 0:
        raise click.BadParameter("--every must be longer than 0s")
    key = ClusterKey(namespace or default_namespace(context), cluster)
    wish = Wish(key, every_s, for_s, redact)

    async def session(api: KubeApi) -> int:
        with Tape(path, wish) as tape, _interrupted(wish.for_s) as stop:
            await _record(api, wish, tape, stop, context)
            return tape.samples

    try:
        samples = ask(session, context=context)
    except (InvalidTrace, OSError) as exc:
        fail(f"{path}: {exc}", USAGE)
    if not samples:
        fail("nothing was recorded", NOTHING)
    click.echo(f"{samples} samples in {path}", err=True)


def _seconds(option: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as exc:
        raise click.BadParameter(f"{option}: {exc}") from exc


@contextlib.contextmanager
def _interrupted(after_s: float | None) -> Iterator[asyncio.Event]:
    """Set at Ctrl-C, at SIGTERM, or when the time is up: what was written is whole then."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    timer = None if after_s is None else loop.call_later(after_s, stop.set)
    try:
        yield stop
    finally:
        if timer is not None:
            timer.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _record(
    api: KubeApi, wish: Wish, tape: Tape, stop: asyncio.Event, context: str | None
) -> None:
    """Sample until told to stop; a scheduler that moves is looked for again."""
    while not stop.is_set():
        before = tape.samples
        try:
            async with lookout(wish.key, context) as there:
                said = await _sample(api, wish, tape, stop, there)
        except ConnectionError as exc:
            said = f"the scheduler can't be reached: {exc}"
        if not said:
            return
        click.echo(f"no sample: {said}", err=True)
        if tape.samples == before and time.time() - tape.written_at > GIVE_UP_S:
            fail(f"no answer for {format_duration(GIVE_UP_S)}", UNREACHABLE)
        await _rest(stop, max(wish.every_s, 1.0))


async def _sample(api: KubeApi, wish: Wish, tape: Tape, stop: asyncio.Event, there: Lookout) -> str:
    """Write samples; returns why there can be no more, empty if told to stop."""
    seen, seen_at = PlatformView(found=False), -PLATFORM_S
    while not stop.is_set():
        began = time.monotonic()
        scheduler = await there.look(demand=True)
        if not scheduler.is_connected:
            return scheduler.message
        if scheduler.demand is None:
            fail("the scheduler's agent is too old to say what work there is", NOTHING)
        if began - seen_at >= PLATFORM_S:
            with contextlib.suppress(KubeError):  # what was seen last is better than nothing
                seen, seen_at = await platform_view(api, wish.key), began
        if not seen.found:
            return f"there is no DaskCluster {wish.key}"
        tape.write(join(wish.key, aged(seen, began - seen_at), scheduler))
        await _rest(stop, wish.every_s - (time.monotonic() - began))
    return ""


async def _rest(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(stop.wait(), max(seconds, 0.0))


def aged(view: PlatformView, by_s: float) -> PlatformView:
    """What was seen a while ago, with the ages that workers have by now."""
    return replace(view, workers=tuple(replace(w, age_s=w.age_s + by_s) for w in view.workers))


class Tape:
    """
    The file. Each sample is written at once, so that what is there is always whole.

    Args:
        clock: Seconds since 1970.

    Raises:
        InvalidTrace: The file holds something else, or the trace of another cluster.
    """

    def __init__(self, path: Path, wish: Wish, clock: Callable[[], float] = time.time) -> None:
        self._path, self._wish, self._clock = path, wish, clock
        self.samples, self.written_at = 0, clock()
        self._origin: Origin | None = None
        session = 0
        if path.exists() and path.stat().st_size:
            session = self._go_on(path)
        self._tracer = Tracer(redact=wish.redact, session=session)

    def __enter__(self) -> Tape:
        self._file: IO[str] = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, observed: ObservedCluster) -> None:
        now = self._clock()
        if self._origin is None:
            every_s = self._wish.every_s
            self._origin = self._tracer.origin(observed, started=now, every_s=every_s)
            self._put(origin_line(self._origin))
        sample = self._tracer.sample(observed, t=now - self._origin.started)
        if sample is not None:
            self._put(sample_line(sample))
            self.samples, self.written_at = self.samples + 1, now

    def _put(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()

    def _go_on(self, path: Path) -> int:
        """Read what is there; a line that was cut off is removed. Returns the next session."""
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        lines = whole.splitlines()
        origin = read_origin(lines[0] if lines else text)
        name = hashed(self._wish.key.name) if self._wish.redact else self._wish.key.name
        if (origin.cluster, origin.is_redacted) != (name, self._wish.redact):
            kind = "a redacted" if origin.is_redacted else "an unredacted"
            raise InvalidTrace(f"it holds {kind} trace of cluster {origin.cluster}, not of {name}")
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        self._origin = origin
        if len(lines) == 1:
            return 0
        return read_trace(lines).samples[-1].session + 1
