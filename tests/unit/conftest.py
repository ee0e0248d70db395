"""Hypothesis without deadlines: a slow machine is no defect."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("project", deadline=None)
settings.load_profile("project")
