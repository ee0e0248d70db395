"""Upstream's own warnings, by release, that are none of our business."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.agent_work import RUNS

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
    RUNS.clear()
    yield
    RUNS.clear()
