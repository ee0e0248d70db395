"""`simulate` and `recommend` as people call them: what they print, what they refuse, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from dask_adaptive.cli.main import cli
from dask_adaptive.model.observed import PrefixWork
from dask_adaptive.model.policy import parse_policy
from dask_adaptive_lab.cli import recommend
from dask_adaptive_lab.cli.files import REDONE, read_policy
from dask_adaptive_lab.simulate.simulated_ports import SimulatedPorts
from dask_adaptive_lab.trace import Origin, Sample, TraceGroup, origin_line, sample_line
from support.golden import compare_text
from support.tables import table

pytestmark = pytest.mark.usefixtures("folder")

POLICY = """\
apiVersion: dask-adaptive.dev/v1alpha1
kind: AdaptivePolicy
metadata: {name: etl}
spec: {clusterRef: {name: etl}, maxReplicas: %s, idleTimeout: 5m}
"""
BASE = yaml.safe_load(POLICY % 4)["spec"]
GROUP = (TraceGroup("etl-default", 4, 4, 4, 0, 1),)
AGAINST = ("few.yaml", "--trace", "trace.jsonl", "--against", "many.yaml")


def write(path: Path, *samples: Sample, started: float = 1.77e9) -> None:
    lines = [origin_line(Origin("etl", started, 1.0, "etl-default")), *map(sample_line, samples)]
    path.write_text("\n".join(lines))


def write_bursts(path: Path, begins: list[float], *, started: float = 1.77e9) -> None:
    samples, done = [Sample(0.0, groups=GROUP)], 0
    for at in begins:
        rows = [PrefixWork("inc", 2.0, 4, 36 - 2 * t, 0, done=done + 2 * t) for t in range(18)]
        samples += [Sample(at + t, (0), (row,), GROUP) for t, row in enumerate(rows)]
        done += 40
        samples.append(Sample(at + 20, groups=GROUP, arrived=(("etl-default", 8.0),)))
    write(path, *samples, started=started)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recommend, "TRIES", 12)
    for n in range(3):
        write_bursts(tmp_path / f"{n}.jsonl", [10, 60, 110 + 10 * n], started=1.77e9 + 86_400 * n)
    write_bursts(tmp_path / "short.jsonl", [10])
    one = (TraceGroup("etl-default", 1, 1, 1, 1, 1),)
    write(
        tmp_path / "trace.jsonl",
        Sample(0, groups=one),
        Sample(1, prefixes=(PrefixWork("inc", 2.0, 1, 59, 0),), groups=one),
        Sample(120, prefixes=(PrefixWork("inc", 2.0, 1, 0, 0, done=59),), groups=one),
        Sample(121, groups=one, arrived=(("etl-default", 7.0),)),
    )
    (tmp_path / "no.jsonl").write_text("nonsense")
    (tmp_path / "v9.yaml").write_text((POLICY % 4).replace("v1alpha1", "v9"))
    for name, maximum in (("policy", 4), ("few", 2), ("many", 10), ("bad", -4)):
        (tmp_path / f"{name}.yaml").write_text(POLICY % maximum)
    return tmp_path


def told(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def test_two_policies_side_by_side() -> None:
    result = told("simulate", *AGAINST)

    assert 0 == result.exit_code, result.output
    assert ["as", "recorded", "few.yaml", "many.yaml"] == result.output.splitlines()[0].split()
    assert "\x1b[" not in result.output
    for row in ("peak workers", "worker-seconds", "makespan", "rerun by scaling"):
        assert row in result.output


def test_for_programs() -> None:
    result = told("simulate", *AGAINST, "-o", "json")
    recorded, few, many = json.loads(result.output)["runs"]

    assert ("as recorded", 120.0) == (recorded["title"], recorded["figures"]["makespan_s"])
    assert few["figures"]["makespan_s"] > many["figures"]["makespan_s"]
    assert (0, 2) == (few["figures"]["redone"], few["figures"]["peak"])
    assert few["points"][0]["t"] == 0


def test_what_the_trace_does_not_say_can_be_said() -> None:
    def makespan(*words: str) -> float:
        result = told("simulate", *AGAINST, "-o", "json", *words)
        return float(json.loads(result.output)["runs"][2]["figures"]["makespan_s"])

    assert makespan("--startup", "60s") > makespan()


def test_redone_work_is_exit_code_5(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never happens: here a platform that is asked for more workers takes them all away."""

    async def reckless(self: SimulatedPorts, group: str, replicas: int) -> None:
        self.cluster.set_replicas(group, 0 if self.cluster.running() else replicas)

    monkeypatch.setattr(SimulatedPorts, "set_replicas", reckless)
    result = told("simulate", "few.yaml", "--trace", "trace.jsonl", "--startup", "1s")

    assert REDONE == result.exit_code
    assert "please report this" in result.output


def test_advice_is_golden_and_applies() -> None:
    result = told("recommend", "0.jsonl", "1.jsonl", "2.jsonl", "--policy", "policy.yaml")

    assert 0 == result.exit_code, result.output
    compare_text("recommend.txt", result.stdout)
    assert "of at most 12" in result.stderr
    text = result.stdout[result.stdout.index("---") :]
    for patch in yaml.safe_load_all(text):
        assert "clusterRef" not in patch["spec"], "only what differs"
        parse_policy({**BASE, **patch["spec"]})


def test_without_a_policy_of_today_the_advice_is_a_whole_one(folder: Path) -> None:
    result = told("recommend", "0.jsonl")
    assert "the defaults" in result.stdout
    (folder / "new.yaml").write_text(result.stdout[result.stdout.index("---") :].split("---")[1])

    assert "etl" == read_policy(folder / "new.yaml").cluster


def test_a_policy_of_today_may_have_empty_sections(folder: Path) -> None:
    (folder / "bare.yaml").write_text((POLICY % 4).replace("idle", "target: , idle"))
    result = told("recommend", "0.jsonl", "--policy", "bare.yaml")

    assert 0 == result.exit_code, result.output
    assert "name: etl" in result.stdout


@table(
    "words, code, said",
    simulate_nothing=("simulate few.yaml", 2, "Missing option '--trace'"),
    simulate_no_trace=("simulate few.yaml --trace no.jsonl", 2, "this is no trace"),
    simulate_no_policy=("simulate bad.yaml --trace trace.jsonl", 2, "maxReplicas"),
    another_version=("simulate v9.yaml --trace trace.jsonl", 2, "v9.yaml:1: apiVersion: must"),
    no_duration=("simulate few.yaml --trace trace.jsonl --startup soon", 2, "90s, 15m or 1h30m"),
    no_file=("simulate few.yaml --trace nowhere.jsonl", 2, "does not exist"),
    recommend_nothing=("recommend", 2, "Missing argument"),
    too_short=("recommend short.jsonl", 1, "too short to tell: 1 of"),
    recommend_no_trace=("recommend no.jsonl", 2, "this is no trace"),
    recommend_no_policy=("recommend 0.jsonl --policy bad.yaml", 2, "maxReplicas"),
)
def test_what_makes_no_sense_is_said(words: str, code: int, said: str) -> None:
    result = told(*words.split())

    assert code == result.exit_code
    assert said in result.stderr
    assert ("Usage:" in result.stderr) is any(w in said for w in ("Missing", "90s", "exist"))
