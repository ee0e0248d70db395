"""`recommend` as people call it: what it prints, what it refuses, and that its YAML is a policy."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from dask_adaptive.cli.main import cli
from dask_adaptive.model.observed import PrefixWork
from dask_adaptive.model.policy import parse_policy
from dask_adaptive_lab.cli import recommend
from dask_adaptive_lab.cli.files import read_policy
from dask_adaptive_lab.trace import Origin, Sample, TraceGroup, origin_line, sample_line
from support.golden import compare_text
from support.tables import table

POLICY = """\
apiVersion: dask-adaptive.dev/v1alpha1
kind: AdaptivePolicy
metadata: {name: etl}
spec: {clusterRef: {name: etl}, maxReplicas: 4, idleTimeout: 5m}
"""
BASE = yaml.safe_load(POLICY)["spec"]
GROUP = (TraceGroup("etl-default", 4, 4, 4, 0, 1),)


def write(path: Path, begins: list[float], *, started: float = 1.77e9) -> None:
    samples, done = [Sample(0.0, groups=GROUP)], 0
    for at in begins:
        rows = [PrefixWork("inc", 2.0, 4, 36 - 2 * t, 0, done=done + 2 * t) for t in range(18)]
        samples += [Sample(at + t, (0), (row,), GROUP) for t, row in enumerate(rows)]
        done += 40
        samples.append(Sample(at + 20, groups=GROUP, arrived=(("etl-default", 8.0),)))
    lines = [origin_line(Origin("etl", started, 1.0, "etl-default")), *map(sample_line, samples)]
    path.write_text("\n".join(lines))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recommend, "TRIES", 12)
    for n in range(3):
        write(tmp_path / f"{n}.jsonl", [10, 60, 110 + 10 * n], started=1.77e9 + 86_400 * n)
    write(tmp_path / "short.jsonl", [10])
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "bad.yaml").write_text(POLICY.replace("4", "-4"))
    (tmp_path / "no.jsonl").write_text("nonsense")
    return tmp_path


def told(*words: str) -> Result:
    return CliRunner().invoke(cli, ["recommend", *words])


@pytest.mark.usefixtures("folder")
def test_advice_is_golden_and_applies() -> None:
    result = told("0.jsonl", "1.jsonl", "2.jsonl", "--policy", "policy.yaml")

    assert 0 == result.exit_code, result.output
    compare_text("recommend.txt", result.stdout)
    assert "tried 12 policies of at most 12" in result.stderr
    text = result.stdout[result.stdout.index("---") :]
    for patch in yaml.safe_load_all(text):
        assert "clusterRef" not in patch["spec"], "only what differs"
        parse_policy({**BASE, **patch["spec"]})


def test_without_a_policy_of_today_the_advice_is_a_whole_one(folder: Path) -> None:
    result = told("0.jsonl")
    assert "the defaults" in result.stdout
    (folder / "new.yaml").write_text(result.stdout[result.stdout.index("---") :].split("---")[1])

    assert "etl" == read_policy(folder / "new.yaml").cluster


def test_a_policy_of_today_may_lack_a_name_and_have_empty_sections(folder: Path) -> None:
    bare = POLICY.replace("metadata: {name: etl}\n", "").replace("idle", "target: , idle")
    (folder / "bare.yaml").write_text(bare)
    result = told("0.jsonl", "--policy", "bare.yaml")

    assert 0 == result.exit_code, result.output
    assert "name: etl" in result.stdout


@table(
    "words, code, said",
    nothing=((), 2, "Missing argument"),
    too_short=(("short.jsonl",), 1, "too short to tell: 1 bursts"),
    no_trace=(("no.jsonl",), 2, "this is no trace"),
    no_policy=(("0.jsonl", "--policy", "bad.yaml"), 2, "maxReplicas"),
)
@pytest.mark.usefixtures("folder")
def test_what_makes_no_sense_is_said(words: tuple[str, ...], code: int, said: str) -> None:
    result = told(*words)

    assert code == result.exit_code
    assert said in result.stderr
