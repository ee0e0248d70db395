"""The workflows of .github only call make: anybody can do what they do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
TARGETS = {
    prefix + target
    for prefix, file in (("", "Makefile"), ("test-", "tests/Makefile"))
    for target in re.findall(r"^([a-z0-9-]+):", (ROOT / file).read_text(), re.MULTILINE)
}

#: A command of a workflow: make, as root where a node is booted, with variables and one target.
COMMAND = re.compile(
    r'(?:sudo -E env "PATH=\$PATH" )?make (\S+|\$\{\{ matrix\.target \}\})(?: [A-Z]+=\S+)*'
)


def load(workflow: Path) -> dict[Any, Any]:
    loaded = yaml.safe_load(workflow.read_text())
    assert isinstance(loaded, dict)
    return loaded


def steps(workflow: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each step with its job."""
    for job in load(workflow)["jobs"].values():
        for step in job["steps"]:
            yield job, step


def targets(job: dict[str, Any], command: str) -> list[str]:
    found = COMMAND.fullmatch(command)
    assert found, f"'{command}' is not a call of make"
    return job["strategy"]["matrix"]["target"] if "matrix" in found[1] else [found[1]]


def test_there_are_workflows() -> None:
    assert {"test", "matrix", "nightly", "release"} == {path.stem for path in WORKFLOWS}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_only_calls_targets_that_exist(workflow: Path) -> None:
    called = {
        target
        for job, step in steps(workflow)
        if "run" in step
        for target in targets(job, step["run"])
    }

    assert called
    assert called <= TARGETS


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read(workflow: Path) -> None:
    loaded = load(workflow)

    assert loaded["permissions"] == {"contents": "read"}
    assert not [job for job in loaded["jobs"].values() if "permissions" in job]
    # YAML 1.1 reads the key `on` as a boolean. This trigger runs strangers' code with our secrets.
    assert "pull_request_target" not in loaded[True]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_ends_and_its_actions_are_pinned(workflow: Path) -> None:
    for job, step in steps(workflow):
        assert job["timeout-minutes"] <= 180
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@(v\d+|[0-9a-f]{40})", step["uses"])
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_a_secret_is_seen_by_the_step_that_needs_it_only() -> None:
    text = "".join(path.read_text() for path in WORKFLOWS)
    seen = [str(step) for path in WORKFLOWS for _, step in steps(path) if "secrets." in str(step)]

    assert text.count("secrets.") == sum(step.count("secrets.") for step in seen)
    assert len(seen) == 1
    assert "make dist" in seen[0]


def test_forms_for_issues_ask_for_the_report() -> None:
    forms = {path.stem: load(path) for path in ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")}

    assert {"bug", "feature", "config"} == forms.keys()
    required = [
        field["attributes"].get("description", "")
        for field in forms["bug"]["body"]
        if field.get("validations", {}).get("required")
    ]
    assert any("dask-adaptive report" in text for text in required)
