"""Libraries warn of what other libraries will change: none of our business."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore"))
        item.add_marker(pytest.mark.timeout(420))
