"""A Chromium for the tests that look at the page; without one they are skipped, and say why."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support import chromium

INSTALLER = Path(__file__).with_name("chromium.sh")


@pytest.fixture(scope="session")
def browser() -> str:
    """The path of a Chromium, which is installed where that can be done."""
    found = chromium.find()
    if found:
        return found
    done = subprocess.run([INSTALLER], capture_output=True, text=True, timeout=600)
    if done.returncode or not done.stdout.strip():
        pytest.skip(f"nobody can look at the page without Chromium: {done.stderr.strip()[-300:]}")
    return done.stdout.strip().splitlines()[-1]
