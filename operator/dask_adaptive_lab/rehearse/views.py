"""Shows a rehearsal: plain lines or a live page, and the figures at its end."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Mapping

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.ports import Event, EventType
from dask_adaptive.loop.words import worker_state
from dask_adaptive.model.amounts import format_duration
from dask_adaptive.model.observed import Clocks, ObservedWorker
from dask_adaptive.planner.leave import pin_holders
from dask_adaptive_lab.tally import Tally

_COLOURS = {
    "Pending": "yellow", "Active": "green", "Stopped": "yellow", "Draining": "magenta",
    "Drained": "magenta", "Going": "red",
}  # fmt: skip

#: The figure that matters most: its name, and its value in a good rehearsal.
_NONE_REDONE = ("tasks rerun by scaling", "0")

#: The id of a shuffle: its start tells it from others.
_HASH = re.compile(r"\b([0-9a-f]{6})[0-9a-f]{10,}")


class Watcher:
    """Follows a rehearsal. Views, figures and tests override the methods that they need."""

    def said(self, line: str) -> None:
        """The script, or the rehearsal itself, printed a line."""

    def happened(self, event: Event) -> None:
        """The loop reported an event."""

    def counted(self, tally: Tally) -> None:
        """Runs were counted at the end of a pass, before `saw`."""

    def saw(self, result: PassResult) -> None:
        """A pass has ended."""


class PlainView(Watcher):
    """One line for each thing that happens: for pipes, logs and CI."""

    def __init__(self, console: Console) -> None:
        self._console, self._began, self._last = console, time.monotonic(), ""

    def said(self, line: str) -> None:
        stamp = f"{time.monotonic() - self._began:6.1f} s  "
        self._console.print(stamp + line, highlight=False, markup=False, soft_wrap=True)

    def happened(self, event: Event) -> None:
        self.said(f"  {event.reason.value}: {_sentence(event)}")

    def saw(self, result: PassResult) -> None:
        s = result.status
        line = f"  workers: {s.connected} connected, {s.busy} busy, {s.pinned} pinned, " + (
            f"{s.retiring} retiring, {s.pending} pending, {s.desired} desired"
        )
        if line != self._last:
            self._last = line
            self.said(line)


class Page(Watcher):
    """A live page: tasks, workers, the last actions with their reasons, and the script's output."""

    def __init__(self, title: str) -> None:
        self._title, self._began = title, time.monotonic()
        self._result: PassResult | None = None
        self._tally: Tally | None = None
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, TimeElapsedColumn())
        self._tasks = self._progress.add_task("starting the scheduler and a worker", total=None)
        self._said: deque[str] = deque(maxlen=6)
        self._happened: deque[tuple[str, Text]] = deque(maxlen=9)

    def said(self, line: str) -> None:
        self._said.append(line)

    def happened(self, event: Event) -> None:
        style = "red" if event.type is EventType.WARNING else "cyan"
        text = Text.assemble((event.reason.value, style), " ", _sentence(event))
        self._happened.append((f"{time.monotonic() - self._began:4.0f} s", text))

    def counted(self, tally: Tally) -> None:
        self._tally = tally

    def saw(self, result: PassResult) -> None:
        self._result = result
        if self._tally is not None and (demand := result.observed.scheduler.demand) is not None:
            done, left = self._tally.tasks, sum(row.unfinished for row in demand.prefixes)
            self._progress.update(
                self._tasks, description="tasks", completed=done, total=done + left
            )

    def __rich__(self) -> RenderableType:
        if self._result is None:
            return Group(Rule(self._title), self._progress)
        happened = Table.grid(padding=(0, 1))
        for row in self._happened:
            happened.add_row(*row)
        said = Text("\n".join(self._said), style="bold")
        return Group(
            Rule(self._title), self._progress, _headline(self._result, self._tally),
            _workers(self._result),
            Rule("actions, and why"), happened, Rule("output of the script"), said,
        )  # fmt: skip


def _sentence(event: Event) -> str:
    return f"{event.worker} {event.message}" if event.worker else event.message


def _headline(result: PassResult, tally: Tally | None) -> Text:
    s = result.status
    text = Text(f"workers: {s.wanted} wanted · {s.desired} desired · {s.connected} connected   ")
    if tally is not None:
        text.append(f"tasks rerun by scaling: {tally.redone}   ", "bold")
    for shuffle in result.observed.scheduler.shuffles:
        text.append(f"\nshuffle run {shuffle.run_id}, workers: {shuffle.workers}", "yellow")
    text.append(f"\n{s.reason}: {s.message}", style="italic")
    return text


def _workers(result: PassResult) -> Table:
    table = Table(expand=True, pad_edge=False, box=None)
    for name, kind in (("worker", "left"), ("state", "left"), ("tasks", "right"), ("idle", "right"),
                       ("sole copies", "right"), ("pinned by", "left")):  # fmt: skip
        table.add_column(name, justify=kind)  # type: ignore[arg-type]
    for worker in result.observed.workers:
        table.add_row(*_cells(worker, result.observed.clocks))
    return table


def _cells(worker: ObservedWorker, clocks: Clocks) -> tuple[str | Text, ...]:
    state, tasks = worker_state(worker), worker.process.processing
    return (
        worker.name,
        Text(state, style=_COLOURS[state]),
        str(tasks or ""),
        format_duration(clocks.idle_s(worker)) if worker.idle_since < math.inf else "",
        f"{worker.process.sole_bytes / 1e6:.1f} MB" if worker.process.sole_bytes >= 1e5 else "",
        Text(_HASH.sub(r"\1…", ", ".join(sorted(pin_holders(worker)))), style="yellow"),
    )


class RehearsalFigures(Watcher):
    """
    The figures of a rehearsal, added up pass by pass.

    Args:
        maximum: Workers of the fixed cluster that it is compared with.
        clock: In seconds.
    """

    def __init__(self, maximum: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._maximum, self._clock = maximum, clock
        self._began = self._last = clock()
        self.tally: Tally | None = None
        self.recycled: Mapping[str, int] = {}  # workers replaced, by reason
        self.present = self.peak = 0  # workers that exist; the most that were connected
        self.worker_s = 0.0  # sum over all workers of the time each existed

    def counted(self, tally: Tally) -> None:
        self.tally = tally

    def saw(self, result: PassResult) -> None:
        workers = list(result.observed.workers)
        connected = sum(w.is_connected for w in workers)
        self.add(present=len(workers), connected=connected, recycled=result.status.recycled)

    def add(self, *, present: int, connected: int, recycled: Mapping[str, int]) -> None:
        """Add one moment; the time since the last one counts with the workers of then."""
        now = self._clock()
        self.worker_s += self.present * (now - self._last)
        self.present, self._last = present, now
        self.peak = max(self.peak, connected)
        self.recycled = recycled

    def table(self) -> RenderableType:
        table = Table(box=None, show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in self.rows():
            table.add_row(name, value, style="bold green" if (name, value) == _NONE_REDONE else "")
        return Group(Rule("figures"), table)

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of each figure, in words."""
        lasted_s = self._last - self._began
        fixed_s = self._maximum * lasted_s
        share = self.worker_s / fixed_s if fixed_s else 0
        rows = [
            *self._rows_of_tasks(),
            ("peak workers", str(self.peak)),
            (
                "worker-seconds, of a fixed cluster's",
                f"{self.worker_s:.0f} of {fixed_s:.0f} ({share:.0%})",
            ),
            ("duration", f"{lasted_s:.0f} s"),
        ]
        if self.recycled:
            why = ", ".join(f"{count} {reason}" for reason, count in self.recycled.items())
            rows.append(("workers recycled", why))
        return rows

    def _rows_of_tasks(self) -> list[tuple[str, str]]:
        tally = self.tally
        if tally is None:
            return [("tasks", "not counted")]
        rows = [
            ("finished tasks", str(tally.tasks)),
            ("task runs", str(tally.runs)),
            (_NONE_REDONE[0], str(tally.redone)),
        ]
        if tally.erred:
            rows.append(("failed runs (errors of the script)", str(tally.erred)))
        if tally.shuffles:
            shuffles = f"{tally.shuffles}; {tally.max_shuffle_run}"
            rows.append(("P2P shuffles; most runs of one", shuffles))
        return rows
