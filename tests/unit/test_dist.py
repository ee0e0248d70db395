"""Which releases are refused, and what is said of one; tests/dist makes whole ones."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.tables import table

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def dist() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dist", ROOT / "scripts/dist.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["dist"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def write(tree: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    return tree


CHANGELOG = "# Changes\n\n## 0.2.0 (2027-01-01)\n\n- new\n\n## 0.1.0 (2026-01-01)\n\n- old\n"


@table("version, text", new=("0.2.0", "- new"), old=("0.1.0", "- old"), dev=("0.3.0.dev0", ""))
def test_notes_are_the_section_of_the_changelog(dist: ModuleType, version: str, text: str) -> None:
    assert text == dist.section(CHANGELOG, version).partition("\n\n")[2].strip()


@pytest.mark.parametrize("version", ["0.3.0", "0.1", "0x1.0"])
def test_a_version_without_a_section_is_refused(dist: ModuleType, version: str) -> None:
    with pytest.raises(dist.DistError, match=rf"no section '## {version} "):
        dist.section(CHANGELOG, version)


def commit(repository: Path, chart: str, package: str) -> None:
    """A repository of one commit with a chart and a package of these versions."""
    write(
        repository,
        {
            "helm/dask-adaptive-operator/Chart.yaml": f"version: {chart}\nappVersion: {chart}\n",
            "operator/dask_adaptive_agent/__init__.py": f'__version__ = "{package}"\n',
        },
    )
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        git(repository, *words)


def git(repository: Path, *words: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
    subprocess.run(["git", "-C", str(repository), *who, *words], check=True)


def test_a_release_is_the_commit_not_the_folder(
    dist: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commit(tmp_path / "here", "1.2.3", "1.2.3")
    (tmp_path / "here/stray").touch()
    monkeypatch.setattr(dist, "ROOT", tmp_path / "here")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "")  # it is set for the tools: undone after the test

    release = dist.release_of(tmp_path, tmp_path)

    assert release.version == "1.2.3"
    assert os.environ["SOURCE_DATE_EPOCH"] == str(release.epoch)
    assert {"helm", "operator"} == set(os.listdir(release.source))


@table(
    "chart, package, tag, told",
    chart=("1.0.0-dev0", "2.0.0", "v1.0.0", r"disagree .*1\.0\.0\.dev0.*2\.0\.0"),
    tag=("1.0.0", "1.0.0", "v1.0.1", r"tagged v1\.0\.1, .* of 1\.0\.0"),
)
def test_a_release_has_one_version(
    dist: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chart: str, package: str,
    tag: str, told: str,
) -> None:  # fmt: skip
    commit(tmp_path / "here", chart, package)
    git(tmp_path / "here", "tag", tag)
    monkeypatch.setattr(dist, "ROOT", tmp_path / "here")

    with pytest.raises(dist.DistError, match=told):
        dist.release_of(tmp_path, tmp_path)


@pytest.mark.parametrize("base", ["", "python:3.11-slim", "python@sha1:12"])
def test_a_base_without_a_digest_is_refused(
    dist: ModuleType, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    monkeypatch.setenv("BASE_IMAGE", base)

    with pytest.raises(dist.DistError, match="names no digest"):
        dist.given_base()


def test_a_folder_of_somebody_else_is_not_emptied(
    dist: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "thesis").touch()
    monkeypatch.setattr(sys, "argv", ["dist.py", "--out", str(tmp_path)])

    with pytest.raises(SystemExit, match="holds files of somebody else"):
        dist.main()
    assert (tmp_path / "thesis").exists()
