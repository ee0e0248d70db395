"""
Reports of people who run Dask, retold as scripts of theirs with the outcome that is right, each of
them run by `rehearse`: at most three workers, which leave after two idle seconds.

A script begins with the report and what went wrong. Lines `# policy:`, `# workers:`, `# env:` say
what differs from that (`AdaptivePolicy.spec`, `Machine`, variables); `# redone: true`: workers die
in it, so that work has to run again.

42 of them ask for nothing that only a policy can say. Of these, 12 went wrong when each ran once
under `LocalCluster.adapt` of 2026.8.0 with the same bounds:

* not done after 150 s: dask_jobqueue_230, distributed_2055, distributed_2106, distributed_3558,
  distributed_6686, syncopy_438, xgboost_9419
* failed: distributed_3141 (KilledWorker), distributed_6249 (the actor is lost), joblib_1020 (one
  worker), lightgbm_3775 (its worker has gone)
* distributed_4394 ran all of its 20 tasks twice
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dask_adaptive.model.policy import parse_policy
from dask_adaptive_lab.local import Machine
from dask_adaptive_lab.rehearse.rehearsal import rehearse

HERE = Path(__file__).parent
USUAL = {"clusterRef": {"name": "t"}, "maxReplicas": 3, "idleTimeout": "2s"}

REPORTS = sorted(path for path in HERE.glob("*.py") if re.search(r"_\d+$", path.stem))


@pytest.mark.timeout(900)  # a rehearsal lasts half a minute, on a machine that does nothing else
@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_a_report_ends_well(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = report.read_text()
    assert re.match(r"# [\w.-]+/[\w.-]+#\d+: \S", text)
    options = yaml.safe_load(
        "\n".join(re.findall(r"^# ((?:policy|workers|env|redone): .*)", text, re.M))
    )
    options = options or {}
    for name, value in options.get("env", {}).items():
        monkeypatch.setenv(name, str(value))
    spec = {**USUAL, "target": {"duration": "1s"}, **options.get("policy", {})}

    code, figures = rehearse(
        parse_policy(spec), [str(report)], tmp_path, Machine(**options.get("workers", {})),
        name=report.stem,
    )  # fmt: skip

    assert 0 == code
    assert figures.tally is not None
    assert options.get("redone") or 0 == figures.tally.redone
    assert figures.tally.max_shuffle_run <= 1
