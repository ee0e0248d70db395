"""
Loaded into pytest by run.sh: writes down outcomes, and puts the agent into schedulers.

Nothing here knows any test. `UPSTREAM_OUTCOMES` is a file that gets a line of JSON for each report,
so that a run which dies half way has still said something. With `UPSTREAM_AGENT=1` every scheduler
of this process must have the agent: as a rule it comes by the preload that the environment names,
as at users'; where a test chooses preloads of its own, it is installed once the scheduler listens.
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from typing import Any

import pytest

OUTCOMES = os.environ.get("UPSTREAM_OUTCOMES", "")
HAS_AGENT = os.environ.get("UPSTREAM_AGENT") == "1"

#: How schedulers of this process came by the agent.
came: Counter[str] = Counter()


def pytest_configure(config: pytest.Config) -> None:
    if HAS_AGENT:
        watch_schedulers()


def watch_schedulers() -> None:
    from distributed import Scheduler

    from dask_adaptive_agent.agent import Agent, install

    stock = Scheduler.start_unsafe

    @functools.wraps(stock)
    async def start_unsafe(self: Any) -> Any:
        started = await stock(self)
        if Agent.name in self.plugins:
            came["preload"] += 1
        else:
            install(self)
            came["late"] += 1
        return started

    Scheduler.start_unsafe = start_unsafe  # type: ignore[method-assign]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    is_expected = hasattr(report, "wasxfail")
    note(id=report.nodeid, when=report.when, outcome=report.outcome, xfail=is_expected)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        note(id=report.nodeid, when="collect", outcome="failed", xfail=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if came:
        note(schedulers=dict(came))


def note(**fields: Any) -> None:
    # Appended in one write: processes of pytest-xdist share the file.
    if OUTCOMES:
        with open(OUTCOMES, "a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")
