"""`simulate` as people call it: usage, exit codes, one table for two policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dask_adaptive.cli.main import cli
from dask_adaptive.model.observed import PrefixWork
from dask_adaptive_lab.cli.files import REDONE
from dask_adaptive_lab.simulate.simulated_ports import SimulatedPorts
from dask_adaptive_lab.trace import Origin, Sample, TraceGroup, origin_line, sample_line

POLICY = """\
apiVersion: dask-adaptive.dev/v1alpha1
kind: AdaptivePolicy
metadata: {name: etl}
spec: {clusterRef: {name: etl}, maxReplicas: %s}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    group = (TraceGroup("etl-default", 1, 1, 1, 1, 1),)
    samples = (
        Sample(0, groups=group),
        Sample(1, prefixes=(PrefixWork("inc", 2.0, 1, 59, 0),), groups=group),
        Sample(120, prefixes=(PrefixWork("inc", 2.0, 1, 0, 0, done=59),), groups=group),
        Sample(121, groups=group, arrived=(("etl-default", 7.0),)),
    )
    lines = [origin_line(Origin("etl", 1.77e9, 1.0, "etl-default")), *map(sample_line, samples)]
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    for name, maximum in (("few.yaml", 2), ("many.yaml", 10)):
        (tmp_path / name).write_text(POLICY % maximum)
    (tmp_path / "bad.yaml").write_text(POLICY % -1)
    (tmp_path / "no.jsonl").write_text("nonsense")
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", *words])


@pytest.mark.usefixtures("folder")
def test_two_policies_side_by_side() -> None:
    result = run("few.yaml", "--trace", "trace.jsonl", "--against", "many.yaml")

    assert 0 == result.exit_code, result.output
    assert ["as", "recorded", "few.yaml", "many.yaml"] == result.output.splitlines()[0].split()
    assert "\x1b[" not in result.output
    for row in ("workers at most", "worker-seconds", "makespan", "redone tasks"):
        assert row in result.output


@pytest.mark.usefixtures("folder")
def test_for_programs() -> None:
    told = run("few.yaml", "--trace", "trace.jsonl", "--against", "many.yaml", "-o", "json")
    recorded, few, many = json.loads(told.output)["runs"]

    assert ("as recorded", 120.0) == (recorded["title"], recorded["figures"]["makespan_s"])
    assert few["figures"]["makespan_s"] > many["figures"]["makespan_s"]
    assert (0, 2) == (few["figures"]["redone"], few["figures"]["peak"])
    assert few["points"][0]["t"] == 0


@pytest.mark.usefixtures("folder")
def test_what_the_trace_does_not_say_can_be_said() -> None:
    def makespan(*words: str) -> float:
        told = run("many.yaml", "--trace", "trace.jsonl", "-o", "json", *words)
        return float(json.loads(told.output)["runs"][1]["figures"]["makespan_s"])

    assert makespan("--startup", "60s") > makespan()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("few.yaml",), "Missing option '--trace'"),
        (("few.yaml", "--trace", "no.jsonl"), "this is no trace"),
        (("bad.yaml", "--trace", "trace.jsonl"), "maxReplicas"),
        (("few.yaml", "--trace", "trace.jsonl", "--startup", "soon"), "90s, 15m or 1h30m"),
        (("few.yaml", "--trace", "nowhere.jsonl"), "does not exist"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_usage_is_exit_code_2(words: tuple[str, ...], said: str) -> None:
    result = run(*words)

    assert 2 == result.exit_code
    assert said in result.output


@pytest.mark.usefixtures("folder")
def test_redone_work_is_exit_code_5(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never happens: here a platform that is asked for more workers takes them all away."""

    async def reckless(self: SimulatedPorts, group: str, replicas: int) -> None:
        self.cluster.set_replicas(group, 0 if self.cluster.running() else replicas)

    monkeypatch.setattr(SimulatedPorts, "set_replicas", reckless)
    result = run("few.yaml", "--trace", "trace.jsonl", "--startup", "1s")

    assert REDONE == result.exit_code
    assert "please report this" in result.output
