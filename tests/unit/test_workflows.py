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


def steps(workflow: dict[Any, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each step with its job."""
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            yield job, step


def targets(job: dict[str, Any], command: str) -> list[str]:
    found = COMMAND.fullmatch(command)
    assert found, f"'{command}' is not a call of make"
    return job["strategy"]["matrix"]["target"] if "matrix" in found[1] else [found[1]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_make_may_only_read_and_ends(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())

    assert {"contents": "read"} == workflow["permissions"]
    # YAML 1.1 reads the key `on` as a boolean. This trigger runs strangers' code with our secrets.
    assert "pull_request_target" not in workflow[True]
    for job, step in steps(workflow):
        assert "permissions" not in job
        assert job["timeout-minutes"] <= 180
        if "run" in step:
            assert set(targets(job, step["run"])) <= TARGETS
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"])
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_a_secret_is_seen_by_the_step_that_makes_a_release_only() -> None:
    text = "".join(path.read_text() for path in WORKFLOWS)
    seen = [
        step
        for path in WORKFLOWS
        for _, step in steps(yaml.safe_load(path.read_text()))
        if "secrets." in str(step)
    ]

    (release,) = seen
    assert "make dist" in str(release)
    assert text.count("secrets.") == str(release).count("secrets.")
