"""Rehearsals as a fixture: real schedulers and worker processes, governed by the real loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from support.stage import Stage


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Call it with a policy's fields to get a running `Stage`; all is ended after the test."""
    async with AsyncExitStack() as stack:

        async def start(**options: Any) -> Stage:
            return await stack.enter_async_context(Stage(tmp_path, **options))

        yield start
