"""Hypothesis without deadlines: a slow machine is no defect. And what must be installed."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from dask_adaptive.cli.main import COMMANDS, packages

settings.register_profile("project", deadline=None)
# For mutation testing: each mutant is judged quickly, and by the same examples every time.
settings.register_profile(
    "mutation",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=15,
    suppress_health_check=list(HealthCheck),  # a busy machine kills no mutant
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "project"))


def pytest_sessionstart() -> None:
    if packages().keys() == COMMANDS.keys():
        pytest.exit("dask_adaptive_lab is not installed here; run: make .venv/.dev", 1)
