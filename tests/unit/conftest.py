"""Hypothesis without deadlines: a slow machine is no defect."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

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
