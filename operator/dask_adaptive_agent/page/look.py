"""
What the page shows, read from the agent at most once a second, however many people look, and not
at all when nobody does. No Bokeh.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent.page.rows import worker_columns
from dask_adaptive_agent.page.summary import summary
from dask_adaptive_agent.snapshot import pin_rows
from dask_adaptive_agent.upcoming import upcoming
from dask_adaptive_agent.words import duration, plural

if TYPE_CHECKING:
    from dask_adaptive_agent.agent import Agent
    from dask_adaptive_agent.roster import Entry

logger = logging.getLogger(__name__)

#: What was read is shown to all who ask within so many seconds.
FRESH_S = 0.9

#: Rows of a table, but for that of the workers; workers that one row names.
ROWS, NAMED = 200, 10

#: A table: values by column, all of one length.
Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class Look:
    """Everything that the page shows, as of one instant."""

    summary: str  # HTML
    workers: Columns = field(default_factory=dict)
    decisions: Columns = field(default_factory=dict)
    pins: Columns = field(default_factory=dict)
    ahead: Columns = field(default_factory=dict)


class Looks:
    """The last look at one agent. `count` says how many there have been."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._at = -math.inf
        self._last: Look | None = None
        self._has_failed = False
        self.count = 0

    def take(self) -> Look:
        """What there is to see now. Never raises: what can't be read is said in the summary."""
        now = self._agent.clock()
        if self._last is None or now - self._at >= FRESH_S:
            self.count += 1
            self._last = self._taken()
            self._at = self._agent.clock()
        return self._last

    def _taken(self) -> Look:
        agent = self._agent
        problems: list[str] = []

        def read(what: str, reader: Callable[..., Columns], *arguments: Any) -> Columns:
            try:
                return reader(agent, *arguments)
            except Exception as problem:
                if not self._has_failed:  # once: the page asks every second
                    self._has_failed = True
                    logger.exception("The page in the dashboard can't show %s", what)
                problems.append(f"{what} can't be shown: {problem!r:.200}")
                return {}

        entries = agent.roster.sync()
        workers = read("workers", worker_columns, entries)
        decisions = read("decisions", decision_columns)
        pins = read("pins", pin_columns, entries)
        ahead = read("what is ahead", ahead_columns)
        return Look(summary(agent, workers, problems), workers, decisions, pins, ahead)


def decision_columns(agent: Agent) -> Columns:
    """What the operator has decided, the last first."""
    rows = list(reversed(agent.announced.decisions))
    return {
        "at": [_clock_time(at) for at, _, _, _ in rows],
        "group": [group for _, group, _, _ in rows],
        "reason": [reason for _, _, reason, _ in rows],
        "message": [message for _, _, _, message in rows],
    }


def pin_columns(agent: Agent, entries: dict[str, Entry]) -> Columns:
    """Who holds workers, for what and how long; those that end soonest first."""
    rows = sorted(pin_rows(agent, entries), key=lambda row: row["left_ms"])[:ROWS]
    names = {entry.slot: str(entry.ws.name) for entry in entries.values()} if rows else {}
    return {
        "source": [row["source"] for row in rows],
        "owner": [row["owner"] for row in rows],
        "reason": [row["reason"] for row in rows],
        "workers": [_named([names[slot] for slot in row["slots"]]) for row in rows],
        "left": [duration(row["left_ms"] / 1000) for row in rows],
    }


def ahead_columns(agent: Agent) -> Columns:
    """Shuffles that run, are about to begin or wait for workers, and floors that people want."""
    rows = [*_shuffles(agent), *_upcoming(agent), *_wants(agent)][:ROWS]
    return {
        "what": [what for what, _, _ in rows],
        "who": [who for _, who, _ in rows],
        "message": [message for _, _, message in rows],
    }


def _shuffles(agent: Agent) -> list[tuple[str, str, str]]:
    now = agent.clock()
    return [
        (
            "shuffle runs",
            run.id,
            f"for {duration(now - run.since)}, on {plural(len(run.participants), 'worker')}",
        )
        for run in agent.shuffles.running()
    ]


def _upcoming(agent: Agent) -> list[tuple[str, str, str]]:
    return [
        (
            "shuffle waits for workers" if row["waiting"] else "shuffle is to begin",
            row["id"],
            (f"for {duration(row['for_ms'] / 1000)}, " if row["waiting"] else "")
            + f"{plural(row['inputs'], 'input')} to come, {plural(row['outputs'], 'output')}",
        )
        for row in upcoming(agent)
    ]


def _wants(agent: Agent) -> list[tuple[str, str, str]]:
    return [
        (
            "workers asked for",
            row["owner"],
            f"at least {plural(row['workers'], 'worker')}"
            + (f" of {row['group']}" if row["group"] else "")
            + f" for {duration(row['left_ms'] / 1000)} more",
        )
        for row in agent.demand.wants.rows()
    ]


def _named(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _clock_time(epoch_s: float) -> str:
    try:
        return datetime.fromtimestamp(epoch_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return "?"  # nothing that an operator of ours sends
