"""`dask-adaptive record CLUSTER`: what a cluster has to do, second by second, into a file."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dask_adaptive.cli.access import Access, duration, kube_options
from dask_adaptive.cli.cluster_now import link_to, platform_view
from dask_adaptive.cli.errors import NOTHING, UNREACHABLE, USAGE, complain, fail
from dask_adaptive.kube.api import KubeApi, KubeError
from dask_adaptive.loop.join import join
from dask_adaptive.model.amounts import counted, format_duration
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import PlatformView
from dask_adaptive_lab.cli.progress import progress
from dask_adaptive_lab.local import ending_signals
from dask_adaptive_lab.trace import TraceFile

if TYPE_CHECKING:
    from dask_adaptive.scheduler.link import ReadOnlyLink

#: Kubernetes is asked less often than the scheduler: workers come and go more slowly than tasks.
PLATFORM_S = 3.0

#: A scheduler that has not answered for so long is not waited for any more.
GIVE_UP_S = 60.0


@click.command("record")
@click.argument("cluster")
@click.option(
    "-f", "--file", "path", required=True, type=click.Path(dir_okay=False, path_type=Path),
    help="Write the trace here, to a new file.",
)  # fmt: skip
@click.option("--for", "for_s", type=duration, help="Duration; default: until Ctrl-C.")
@click.option(
    "--every", "every_s", type=duration, default="1s", show_default=True,
    help="Time between two samples.",
)  # fmt: skip
@click.option("--redact", is_flag=True, help="Hash the names of prefixes, groups and owners.")
@kube_options
def command(
    cluster: str, path: Path, for_s: float | None, every_s: float, redact: bool, access: Access
) -> None:
    """
    Record the load of CLUSTER, for `simulate`.

    The file holds numbers by prefix (function name), but no task keys, addresses or results.
    Ctrl-C ends the recording. Exit code 1 if there was nothing to record.

    \b
    Examples:
      dask-adaptive record etl -f etl.jsonl --for 1h
      dask-adaptive record etl -n team -f etl.jsonl --redact
    """
    if every_s <= 0:
        raise click.BadParameter("--every must be longer than 0s")
    key = ClusterKey(access.namespace, cluster)

    async def session(api: KubeApi) -> int:
        with TraceFile(path, every_s=every_s, redact=redact) as file, progress(for_s) as tell:
            await _Recording(api, key, access, file, every_s, _stopped(for_s), tell).run()
            return file.samples

    try:
        samples = access.ask(session)
    except OSError as exc:
        fail(f"{path}: {exc}", USAGE)
    if not samples:
        fail("nothing was recorded", NOTHING)
    click.echo(f"{counted(samples, 'sample')} in {path}", err=True)


def _stopped(after_s: float | None) -> asyncio.Event:
    """Set by a signal that ends programs, or when the time is up."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in ending_signals():
        loop.add_signal_handler(number, stop.set)
    if after_s is not None:
        loop.call_later(after_s, stop.set)
    return stop


@dataclass(slots=True)
class _Recording:
    api: KubeApi
    key: ClusterKey
    access: Access
    file: TraceFile
    every_s: float
    stop: asyncio.Event
    tell: Callable[[float, str], None]

    async def run(self) -> None:
        """Sample until told to stop; a scheduler that moves is looked for again."""
        while not self.stop.is_set():
            before = self.file.samples
            try:
                async with link_to(self.api, self.key, self.access) as link:
                    why = await self._sample(link)
            except ConnectionError as exc:
                why = f"the scheduler can't be reached: {exc}"
            if not why:
                return
            complain(f"no sample: {why}")
            if self.file.samples == before and time.time() - self.file.written_at > GIVE_UP_S:
                fail(f"no answer from the scheduler for {format_duration(GIVE_UP_S)}", UNREACHABLE)
            await self._rest(max(self.every_s, 1.0))

    async def _sample(self, link: ReadOnlyLink) -> str:
        """Write samples; returns why there can be no more, empty if told to stop."""
        seen, seen_at = PlatformView(found=False), -PLATFORM_S
        while not self.stop.is_set():
            began = time.monotonic()
            scheduler = await link.observe(demand=True)
            if not scheduler.is_connected:
                return scheduler.message
            if scheduler.demand is None:
                fail("the agent in the scheduler is too old to report its work", NOTHING)
            if began - seen_at >= PLATFORM_S:
                with contextlib.suppress(KubeError):  # what was seen last is better than nothing
                    seen, seen_at = await platform_view(self.api, self.key), began
            if not seen.found:
                return f"there is no DaskCluster {self.key}"
            view = replace(seen, at=seen.at + began - seen_at)
            if (sample := self.file.write(join(self.key, view, scheduler))) is not None:
                now = f"workers: {sample.present}, tasks to do: {sample.unfinished}"
                self.tell(sample.t, f"{self.key}: samples: {self.file.samples}, {now}")
            await self._rest(self.every_s - (time.monotonic() - began))
        return ""

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), max(seconds, 0.0))
