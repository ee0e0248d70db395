"""A rehearsal as a person watches it: a live page on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from statistics import median

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.ports import Event, EventType
from dask_adaptive.loop.report import worker_state
from dask_adaptive.model.duration import format_duration
from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.planner.candidates import claims
from dask_adaptive.rehearse.record import Figures

_COLOURS = {
    "Pending": "yellow", "Active": "green", "Stopped": "yellow", "Draining": "magenta",
    "Drained": "magenta", "Going": "red",
}  # fmt: skip


class PlainView:
    """One line for each thing that happens: for pipes, logs and CI."""

    def __init__(self, console: Console) -> None:
        self._console, self._began, self._last = console, time.monotonic(), ""

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None: ...

    def said(self, line: str) -> None:
        self._line(line)

    def happened(self, event: Event) -> None:
        self._line(f"  {event.reason.value}: {_sentence(event)}")

    def saw(self, result: PassResult) -> None:
        s = result.status
        line = f"  workers: {s.connected} connected, {s.busy} busy, {s.pinned} pinned, " + (
            f"{s.retiring} leaving, {s.pending} pending, {s.desired} desired"
        )
        if s.recycled:
            line += f", {sum(n for _, n in s.recycled)} recycled"
        if line != self._last:
            self._last = line
            self._line(line)

    def _line(self, text: str) -> None:
        stamp = f"{time.monotonic() - self._began:6.1f} s  "
        self._console.print(stamp + text, highlight=False, markup=False, soft_wrap=True)


class LiveView:
    """Workers as rows, what the script says, and what was just done and why."""

    def __init__(self, console: Console, title: str) -> None:
        self._title, self._began = title, time.monotonic()
        self._result: PassResult | None = None
        self._said: deque[str] = deque(maxlen=6)
        self._happened: deque[Text] = deque(maxlen=9)
        self._live = Live(console=console, get_renderable=self._page, refresh_per_second=4)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def said(self, line: str) -> None:
        self._said.append(line)

    def happened(self, event: Event) -> None:
        style = "red" if event.type is EventType.WARNING else "cyan"
        text = Text(f"{time.monotonic() - self._began:5.0f} s  ", style="dim")
        text.append(f"{event.reason.value} ", style=style)
        text.append(_sentence(event))
        self._happened.append(text)

    def saw(self, result: PassResult) -> None:
        self._result = result

    def _page(self) -> RenderableType:
        if self._result is None:
            return Panel(Text("starting the scheduler and the first worker …"), title=self._title)
        parts: list[RenderableType] = [
            _headline(self._result),
            _workers(self._result),
            Panel(Group(*self._happened) if self._happened else "", title="done, and why"),
        ]
        if self._said:
            parts.append(Panel("\n".join(self._said), title="the script", style="bold"))
        return Panel(Group(*parts), title=self._title)


def _sentence(event: Event) -> str:
    return f"{event.worker} {event.message}" if event.worker else event.message


def _headline(result: PassResult) -> Text:
    s, scheduler = result.status, result.observed.scheduler
    text = Text(f"{s.wanted} wanted · {s.desired} desired · {s.connected} connected   ")
    text.append(f"{scheduler.processing + scheduler.queued} tasks to do   ")
    for shuffle in scheduler.shuffles:
        text.append(f"shuffle run {shuffle.run_id} on {shuffle.workers} workers   ", "yellow")
    if s.recycled:
        text.append(f"{sum(n for _, n in s.recycled)} recycled   ", "magenta")
    if scheduler.tally is not None:
        text.append(f"{scheduler.tally.runs} runs, {scheduler.tally.redone} redone", "bold")
    text.append(f"\n{s.reason.value}: {s.message}", style="italic")
    return text


def _workers(result: PassResult) -> Table:
    table = Table(expand=True, pad_edge=False, box=None)
    for name, kind in (("worker", "left"), ("state", "left"), ("tasks", "right"), ("idle", "right"),
                       ("only here", "right"), ("held by", "left")):  # fmt: skip
        table.add_column(name, justify=kind)  # type: ignore[arg-type]
    for group in result.observed.groups:
        for worker in group.workers:
            table.add_row(*_cells(worker))
    return table


def _cells(worker: ObservedWorker) -> tuple[str | Text, ...]:
    state = worker_state(worker)
    return (
        worker.name,
        Text(state, style=_COLOURS[state]),
        "█" * min(worker.processing, 8) + f" {worker.processing}" if worker.processing else "",
        format_duration(worker.idle_s) if worker.is_connected and not worker.processing else "",
        f"{worker.sole_bytes / 1e6:.1f} MB" if worker.sole_bytes else "",
        Text(", ".join(sorted(claims(worker))), style="yellow"),
    )


def table_of(figures: Figures) -> Table:
    """The figures of a rehearsal, as they are shown at its end."""
    table = Table(title="what it came to", show_header=False, title_justify="left")
    table.add_column(justify="left")
    table.add_column(justify="right")
    for name, value in rows_of(figures):
        bold = "bold green" if "redone" in name and value == "0" else ""
        table.add_row(Text(name, style=bold), Text(value, style=bold))
    return table


def rows_of(figures: Figures) -> list[tuple[str, str]]:
    """Name and value of each figure, in words."""
    share = figures.worker_s / figures.fixed_worker_s if figures.fixed_worker_s else 0
    rows = [
        ("peak workers", str(figures.peak_workers)),
        (
            "worker-seconds, of a fixed cluster's",
            f"{figures.worker_s:.0f} of {figures.fixed_worker_s:.0f} ({share:.0%})",
        ),
        ("from load to workers connected: min · median · max", _spread(figures.to_connected_s)),
        ("from last task to end of a worker: min · median · max", _spread(figures.to_gone_s)),
        ("lasted", f"{figures.lasted_s:.0f} s"),
    ]
    if figures.recycled:
        why = ", ".join(f"{count} {reason.value}" for reason, count in figures.recycled)
        rows.append(("workers recycled", why))
    tally = figures.tally
    if tally is None:
        return [("tasks", "not counted: the agent was not there"), *rows]
    counted = [
        ("tasks that finished", str(tally.tasks)),
        ("runs", str(tally.runs)),
        ("redone because of us", str(tally.redone)),
    ]
    if tally.erred:
        counted.append(("runs that raised (the script's own)", str(tally.erred)))
    if tally.shuffles:
        counted.append(
            ("P2P shuffles; highest run id", f"{tally.shuffles}; {tally.max_shuffle_run}")
        )
    return counted + rows


def _spread(values: tuple[float, ...]) -> str:
    if not values:
        return "never"
    return f"{min(values):.1f} · {median(values):.1f} · {max(values):.1f} s"
