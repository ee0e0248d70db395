"""What contract tests share; upstream's own warnings, by release, that are none of our business."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker

from dask_adaptive_agent.agent import install
from support.agent_pins import Sync, sync_cluster
from support.agent_quota import BEFORE
from support.agent_work import MAY_END, RUNS, until

#: What tests the operator's side, which needs a newer Python than the agent.
if sys.version_info < (3, 11):
    collect_ignore = [
        "test_dask_settings.py",
        "test_link.py",
        "test_link_limits.py",
        "test_link_tls.py",
    ]

UPSTREAM = (
    "ignore:.*pkg_resources.*",
    "ignore:datetime.datetime.utc:DeprecationWarning",
    "ignore:There is no current event loop:DeprecationWarning",
    "ignore:make_current is deprecated:DeprecationWarning",
    "ignore:clear_current is deprecated:DeprecationWarning",
    "ignore:.*Dask configuration key.*has been deprecated:FutureWarning",
    "ignore:.*is deprecated and slated for removal:DeprecationWarning",
    "ignore:Tornado 6:DeprecationWarning",
    "ignore:Port .* is already in use:UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for warning in UPSTREAM:
            item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(autouse=True)
def _no_runs_yet() -> Iterator[None]:
    for runs in (RUNS, BEFORE):
        runs.clear()
    MAY_END.clear()
    yield
    for runs in (RUNS, BEFORE):
        runs.clear()


@pytest.fixture
async def s() -> AsyncIterator[Any]:
    """A scheduler without workers."""
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        yield scheduler


@pytest.fixture
async def agent(s: Any) -> Any:
    return install(s)


@pytest.fixture
async def workers(s: Any) -> AsyncIterator[list[Any]]:
    one = Worker(s.address, name="a", nthreads=1, memory_limit="1GiB")
    other = Worker(s.address, name="b", nthreads=1, memory_limit=0)
    async with one as a, other as b:
        await until(lambda: 2 == len(s.running))
        yield [a, b]


@pytest.fixture
async def client(s: Any) -> AsyncIterator[Any]:
    async with Client(s.address, asynchronous=True) as made:
        yield made


@pytest.fixture
def shared() -> Iterator[Sync]:
    with sync_cluster() as cluster:
        yield cluster


@pytest.fixture
async def link(s: Any) -> AsyncIterator[Any]:
    """The operator's, as its leader has it."""
    from dask_adaptive.scheduler.link import connect  # not in the environments of old releases

    made = connect(s.address, timeout_s=2.0, governs=True)
    yield made
    await made.close()
