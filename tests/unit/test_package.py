"""What is installed, and what is shipped."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dask_adaptive_agent import __version__

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
VERSIONS = runpy.run_path(str(ROOT / "scripts/versions.py"))

#: hatchling adds the last three by itself.
META = {"README.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}


def project(folder: Path = ROOT) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


def locked() -> dict[str, tuple[str, str]]:
    """Versions by name, each with the text of its hashes."""
    entry = re.compile(
        r"^(\S+?)==(\S+)( ;[^\\]*)? \\\n((?:    --hash=\S+(?: \\)?\n)+)", re.MULTILINE
    )
    return {name: (version, hashes) for name, version, _, hashes in entry.findall(LOCK.read_text())}


def test_the_lock_satisfies_the_project() -> None:
    versions = locked()

    for text in project()["dependencies"]:
        wanted = Requirement(text)
        version, _ = versions[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(version), f"{text}: {version} is locked; run make lock"


def test_the_lock_has_hashes_and_names_no_index() -> None:
    text = LOCK.read_text()

    assert len(locked()) == len(re.findall(r"^\S+==", text, flags=re.MULTILINE))
    assert all("sha256:" in hashes for _, hashes in locked().values())
    assert "://" not in text
    assert not re.search(r"^(-i|--index|--extra-index|--find-links|--trusted)", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("folder", "packages"),
    [
        (".", ["dask_adaptive_agent", "dask_adaptive"]),
        ("operator", ["dask_adaptive_agent"]),
        ("operator/dask_adaptive_lab", ["dask_adaptive_lab"]),
    ],
)
def test_an_sdist_holds_the_packages_and_nothing_else(
    folder: str, packages: list[str], tmp_path: Path
) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT / folder, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}

    files = [p for name in packages for p in (ROOT / "operator" / name).rglob("*")]
    sources = {
        str(p.relative_to(ROOT / folder)) for p in files if p.is_file() and p.suffix != ".pyc"
    }
    assert len(packages) == sum(name.endswith("py.typed") for name in sources)
    assert held - META == sources - META


def test_the_lab_comes_with_an_extra() -> None:
    (name,) = project()["optional-dependencies"]["lab"]

    assert name == project(ROOT / "operator/dask_adaptive_lab")["name"]


def test_the_agent_alone_needs_only_distributed() -> None:
    agent = project(ROOT / "operator")

    assert ["distributed"] == [Requirement(text).name for text in agent["dependencies"]]
    assert agent["dependencies"][0] in project()["optional-dependencies"]["dev"]


@pytest.mark.parametrize("folder", [ROOT, ROOT / "operator", ROOT / "operator/dask_adaptive_lab"])
def test_releases_of_python_are_said_once(folder: Path) -> None:
    """The first classifier is the lower bound, and none is left out up to the last."""
    found = project(folder)
    names = [c.rpartition(" ")[2] for c in found["classifiers"] if re.search(r":: 3\.\d+$", c)]
    minors = [int(name.partition(".")[2]) for name in names]

    assert found["requires-python"] == f">={names[0]}"
    assert minors == list(range(minors[0], minors[-1] + 1))


def passed(part: str) -> set[str]:
    """Minors whose tests have passed."""
    rows = VERSIONS["read"]()
    return {".".join(r["version"].split(".")[:2]) for r in rows if r["part"] == part}


def test_the_tables_of_versions_are_those_of_the_record() -> None:
    assert [] == VERSIONS["stale"]()


@pytest.mark.parametrize(("folder", "part"), [(ROOT, "python"), (ROOT / "operator", "agent")])
def test_every_python_that_is_claimed_has_passed(folder: Path, part: str) -> None:
    claimed = re.findall(r":: (3\.\d+)'", str(project(folder)["classifiers"]))

    assert claimed
    assert set() == set(claimed) - passed(part), "run make test-pythons"


def test_the_chart_takes_no_kubernetes_that_has_not_passed() -> None:
    chart = (ROOT / "helm/dask-adaptive-operator/Chart.yaml").read_text()
    (lowest,) = re.findall(r"^kubeVersion: ['\"]>=(1\.\d+)\.0-0['\"]$", chart, re.MULTILINE)

    assert lowest in passed("kubernetes"), "run make test-versions"


def test_nothing_is_built_of_what_may_be_another_thing_tomorrow() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    built = (ROOT / "build.lock").read_text()

    assert re.search(r"^ARG BASE_IMAGE=\S+@sha256:[0-9a-f]{64}$", dockerfile, re.M)
    assert dockerfile.count("--require-hashes") == dockerfile.count("--requirement ") == 2
    assert "--no-build-isolation" in dockerfile
    for name in tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]:
        assert re.search(rf"^{re.escape(name)} \\\n    --hash=sha256:", built, re.M), name


def test_pages_show_the_version_that_is_built() -> None:
    """What people copy: `bump-my-version` writes it (docs/contributing/release.md)."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["bumpversion"]
    shown = config["files"][-1]
    pattern = shown["search"].replace("{current_version}", r"(\d+\.\d+\.\d+(?:\.dev\d+)?)")
    pages = [page.read_text() for glob in shown["glob"].split("|") for page in ROOT.glob(glob)]

    found = re.findall(pattern, "\n".join(pages))
    assert {__version__} == {config["current_version"], *(version for _, version in found)}
