"""A hundred faults. A round that fails tells how to play it once more."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support.kube_server import ROOT, ran


@pytest.mark.timeout(600)
def test_the_operator_survives_a_hundred_faults(tmp_path: Path) -> None:
    chaos = [sys.executable, "-m", "chaos", "--faults", "100", "--at-once", "5"]
    path = os.pathsep.join(str(ROOT / folder) for folder in ("operator", "tests"))

    done = ran(*chaos, "--logs", str(tmp_path), env={**os.environ, "PYTHONPATH": path})

    assert done.returncode == 0, done.stdout + done.stderr
