"""
Reads the page in the dashboard, without Bokeh: at most once a second, however many people look, and
not at all when nobody does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from typing import Any, NamedTuple

from distributed.core import Status

from dask_adaptive_agent.parts import Parts
from dask_adaptive_agent.quotas.roster import Entry
from dask_adaptive_agent.quotas.worker_limits import NEVER
from dask_adaptive_agent.text import duration, plural, size_of

#: Seconds for which a look is shown to everybody who asks.
FRESH_S = 0.9

#: Rows of a table, but for that of the workers; workers that one row names.
ROWS, NAMED = 200, 10

ACTIVE, PINNED, CORDONED, TERMINATING = "active", "pinned", "cordoned", "terminating"

#: Colour of each state, in tables and counts; what is not named is grey.
COLOURS = {
    ACTIVE: "#2e7d32",
    PINNED: "#1565c0",
    "draining": "#e65100",
    "drained": "#bf360c",
    TERMINATING: "#b71c1c",
    CORDONED: "#6a1b9a",
    "paused": "#795548",
}
GREY = "#616161"

#: A table: values by column, all of one length.
Columns = dict[str, list[Any]]


class TableSpec(NamedTuple):
    """A table: its title, what stands there while it is empty, and its columns."""

    title: str
    empty: str
    columns: tuple[tuple[str, str, int, str], ...]  # (field, title, width, kind)


TABLES = {
    "workers": TableSpec(
        "Workers",
        "No worker is connected.",
        (
            ("name", "Worker", 190, "text"),
            ("state", "State", 70, "state"),
            ("tasks", "Tasks", 60, "number"),
            ("idle", "Idle (s)", 70, "number"),
            ("memory", "Memory", 80, "bytes"),
            ("runs", "Runs", 60, "number"),
            ("quota", "Quota", 190, "text"),
            ("why", "Why it stays or leaves", 600, "text"),
        ),
    ),
    "decisions": TableSpec(
        "Last decisions",
        "No decision has been reported yet.",
        (
            ("at", "At (UTC)", 130, "text"),
            ("group", "Worker group", 150, "text"),
            ("reason", "Reason", 160, "text"),
            ("message", "Decision", 700, "text"),
        ),
    ),
    "pins": TableSpec(
        "Pins",
        "No worker is pinned.",
        (
            ("source", "Source", 70, "text"),
            ("owner", "Owner", 220, "text"),
            ("left", "Time left", 70, "text"),
            ("reason", "For", 250, "text"),
            ("workers", "Workers", 500, "text"),
        ),
    ),
    "ahead": TableSpec(
        "Upcoming shuffles and requested workers",
        "No shuffle is about to begin, and no client requests workers.",
        (
            ("what", "What", 160, "text"),
            ("who", "Who", 300, "text"),
            ("message", "Progress", 650, "text"),
        ),
    ),
}


class Look(NamedTuple):
    """Everything that the page shows, as of one instant."""

    summary: str  # HTML, escaped
    tables: dict[str, Columns]  # by name


@dataclass(eq=False)
class Looks:
    """Reads the page of one agent."""

    parts: Parts
    _at: float = -math.inf
    _last: Look | None = None

    def take(self) -> Look:
        """Read everything, at most once a second. Never raises: the summary names what failed."""
        clock = self.parts.clock
        if self._last is None or clock() - self._at >= FRESH_S:
            self._last = self._taken()
            self._at = clock()
        return self._last

    def _taken(self) -> Look:
        self.parts.roster.sync()
        readers: dict[str, Callable[[], list[Any] | None]] = {
            "workers": self._workers,
            # The last first.
            "decisions": lambda: [
                (f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S}", *others)
                for at, *others in reversed(self.parts.plans.decisions)
            ],
            "pins": self._pins,
            "ahead": lambda: [*self._upcoming(), *self._wants()][:ROWS],
        }
        tables: dict[str, Columns] = {}
        problems = []
        for name, read in readers.items():
            rows = self.parts.guard.section(f"{name} on the page", read, None)
            if rows is None:
                problems.append(f"{name} can't be shown: the scheduler's log says why")
            fields = [field for field, *_ in TABLES[name].columns]
            tables[name] = {f: [row[i] for row in rows or ()] for i, f in enumerate(fields)}
        lines = [self._policy(), self._counts(tables["workers"]["state"])]
        lines += [f'<span style="color:#b71c1c">{escape(problem)}</span>' for problem in problems]
        head = "".join(f'<div style="margin-bottom:4px">{line}</div>' for line in lines)
        return Look(head, tables)

    def _workers(self) -> list[tuple[Any, ...]]:
        """A row for each worker, by name: state, tasks, quotas, and why it stays or leaves."""
        of = self.parts
        entries = of.roster.entries
        sole = dict(zip(entries, of.roster.sole_bytes()))
        offered = {ws.address for ws in of.closing.offered()}
        held = {*of.pins.leases.names(), *of.pins.in_shuffles()}
        rows = []
        for address, entry in entries.items():
            ws = entry.ws
            name = of.pins.name_of(ws)
            pins = of.pins.holders(ws) if address in held or name in held else []
            idle_s = of.roster.idle_s(entry)
            state = self._state(entry, is_pinned=bool(pins))
            # The operator knows more (windows, budgets), but what has happened since knows better.
            why = self.parts.plans.workers.get(name, "") if state == ACTIVE else ""
            why = why or self._why(entry, pins, sole[address], is_offered=address in offered)
            memory, tasks = ws.metrics.get("memory", 0), len(ws.processing)
            quota = self._quota(entry)
            rows.append((name, state, tasks, round(idle_s), memory, entry.runs, quota, why))
        return sorted(rows, key=lambda row: row[0])

    def _why(self, entry: Entry, pins: list[str], sole: int, *, is_offered: bool) -> str:
        """Return the first reason that decides about a worker."""
        ws, of = entry.ws, self.parts
        drain = of.drains.ongoing.get(ws.address)
        if drain is not None:
            return f"{drain.terms.reason}: {drain.message}"
        cordon = of.cordons.ongoing.get(ws.address)
        if cordon is not None:
            return f"gets no more tasks: {cordon.why.message}"
        if pins:
            return f"stays: pinned by {', '.join(pins)}"
        obstacle = of.vetoes.of_unpinned(ws)
        if obstacle is not None:
            return f"stays: {obstacle.message}"
        if ws.status.name not in ("running", "paused"):
            return "leaves: another client retires it"
        if not is_offered:
            return "stays: without it results would fill over half of the memory"
        # Exact last copies (`data_copier.last_copies`) would cost a look at each of its results.
        move = f"{size_of(sole)} to move" if sole else "no last copies"
        return f"may leave: idle for {duration(of.roster.idle_s(entry))}, {move}"

    def _state(self, entry: Entry, *, is_pinned: bool) -> str:
        """Return the first that applies: what we do with it, its status, whether it is pinned."""
        address = entry.ws.address
        drain = self.parts.drains.ongoing.get(address)
        if drain is not None:
            return drain.state if drain.terms.is_refusable else TERMINATING
        if address in self.parts.cordons.ongoing:
            return CORDONED
        if entry.ws.status is not Status.running:
            return entry.ws.status.name
        return PINNED if is_pinned else ACTIVE

    def _quota(self, entry: Entry) -> str:
        """The used part of each limit of a worker; empty: it has none."""
        limit = self.parts.limits.of_worker(entry.ws)
        words = []
        if limit.runs != NEVER:
            words.append(f"{entry.runs} of {plural(limit.runs, 'run')}")
        if limit.rules.failures and entry.record is not None:
            failures = self.parts.cordons.n_failures(entry)
            words.append(f"{failures} of {limit.rules.failures} failures")
        if not math.isinf(entry.ends_at):
            words.append(f"ends in {duration(max(0.0, entry.ends_at - self.parts.clock()))}")
        return ", ".join(words)

    def _pins(self) -> list[tuple[Any, ...]]:
        """Pins: by whom, what for and how long; those that end soonest first."""
        entries = self.parts.roster.entries
        pins = sorted(self.parts.pins.rows(entries), key=lambda row: row["left_ms"])[:ROWS]
        names = {entry.slot: str(entry.ws.name) for entry in entries.values()} if pins else {}
        return [
            (
                row["source"],
                row["owner"],
                duration(row["left_ms"] / 1000),
                row["reason"],
                _named([names[slot] for slot in row["slots"]]),
            )
            for row in pins
        ]

    def _upcoming(self) -> Iterator[tuple[str, str, str]]:
        for row in self.parts.barriers.rows():
            what, waits = "upcoming shuffle", ""
            wait = self.parts.shuffle_wait.ongoing.get(row["id"])
            if wait is not None:
                what = "shuffle waits for workers"
                waits = f"for {duration(self.parts.clock() - wait.since)}, "
            inputs, outputs = plural(row["inputs"], "input"), plural(row["outputs"], "output")
            yield what, row["id"], f"{waits}{inputs} to come, {outputs}"

    def _wants(self) -> Iterator[tuple[str, str, str]]:
        for row in self.parts.floors.rows():
            of_group = f" of {row['group']}" if row["group"] else ""
            floor = f"at least {plural(row['workers'], 'worker')}{of_group}"
            left = duration(row["left_ms"] / 1000)
            yield "workers requested", row["owner"], f"{floor} for {left} more"

    def _policy(self) -> str:
        plans = self.parts.plans
        if not plans.policy:
            silent = "<b>No operator has contacted the agent lately.</b>"
            return f"{silent} The tables show what the agent itself knows."
        message = f": {escape(plans.message)}" if plans.message else ""
        return f'<b style="font-size:1.25em">{escape(plans.policy)}</b>{message}'

    def _counts(self, states: list[str]) -> str:
        counted = Counter(states)
        parts = [plural(len(states), "worker")]
        for state in [*COLOURS, *sorted(counted.keys() - COLOURS.keys())]:
            if counted[state]:
                colour = COLOURS.get(state, GREY)
                parts.append(f'<b style="color:{colour}">{counted[state]} {escape(state)}</b>')
        parts += [
            f"<b>{workers} on the way</b> ({f'in {duration(in_s)}' if in_s else 'due'})"
            for workers, in_s in self.parts.plans.arriving
        ]
        return " · ".join(parts)


def _named(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
