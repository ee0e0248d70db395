"""The head of the page: the policy, the workers by state, the work. HTML; every text is escaped."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent.words import duration, plural

if TYPE_CHECKING:
    from dask_adaptive_agent.agent import Agent

#: Colour of each state, in tables and counts; what is not named is grey.
COLOURS = {
    "active": "#2e7d32",
    "pinned": "#1565c0",
    "draining": "#e65100",
    "drained": "#bf360c",
    "ending": "#b71c1c",
    "stopped": "#6a1b9a",
    "paused": "#795548",
}
GREY = "#616161"


def summary(agent: Agent, workers: dict[str, list[Any]], problems: list[str]) -> str:
    """
    Args:
        agent: Whose scheduler is described.
        workers: Columns of the table of workers.
        problems: What could not be read, in sentences.
    """
    lines = [_policy(agent), _counts(agent, workers.get("state", [])), _work(agent)]
    lines += [f'<span style="color:#b71c1c">{escape(problem)}</span>' for problem in problems]
    return "".join(f'<div style="margin-bottom:4px">{line}</div>' for line in lines)


def _policy(agent: Agent) -> str:
    announced = agent.announced
    if not announced.policy:
        return "<b>No operator has said anything lately.</b> What the agent itself knows is below."
    message = f": {escape(announced.message)}" if announced.message else ""
    return f'<b style="font-size:1.25em">{escape(announced.policy)}</b>{message}'


def _counts(agent: Agent, states: list[str]) -> str:
    counted = Counter(states)
    parts = [plural(len(states), "worker")]
    for state in [*COLOURS, *sorted(counted.keys() - COLOURS.keys())]:
        if counted[state]:
            colour = COLOURS.get(state, GREY)
            parts.append(f'<b style="color:{colour}">{counted[state]} {escape(state)}</b>')
    parts += [
        f"<b>{workers} on the way</b> ({f'in {duration(in_s)}' if in_s else 'due'})"
        for workers, in_s in agent.announced.arriving
    ]
    return " · ".join(parts)


def _work(agent: Agent) -> str:
    scheduler: Any = agent.scheduler
    running = sum([len(ws.processing) for ws in list(scheduler.workers.values())])
    counts = (
        (running, "at workers"),
        (len(scheduler.queued), "queued"),
        (len(scheduler.unrunnable), "that no worker may run"),
    )
    return " · ".join([f"{plural(n, 'task')} {where}" for n, where in counts if n]) or "no task"
