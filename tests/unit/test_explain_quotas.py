"""What `explain` says of a worker's quotas, and of its replacement."""

from __future__ import annotations

import dataclasses
import stat
from pathlib import Path

import pytest

from dask_adaptive.cli.explain import Asked, explanation, render
from dask_adaptive.cli.from_here import look_from_here
from dask_adaptive.cli.quota_use import facts_of
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.recycle import LifetimeQuota, QuotaNotes, Recycle, TaskQuota, Use
from support import kube_objects as ko
from support.worlds import POLICY, busy

POLICY_WITH = dataclasses.replace(
    POLICY, recycle=Recycle(tasks=TaskQuota(20), lifetime=LifetimeQuota(maximum_s=3600.0))
)
WORKER = busy("w", use=Use(runs=15), pod_age_s=900.0)


def test_each_quota_of_a_worker_and_how_far_it_is_used() -> None:
    facts = dict(facts_of(WORKER, POLICY_WITH))

    assert "15 tasks run, of 20 (75%)" == facts["quota tasks"]
    assert "15m old, of 1h (25%)" == facts["quota lifetime"]


def test_without_the_scheduler_only_what_needs_none_is_said() -> None:
    facts = dict(facts_of(WORKER, POLICY_WITH, "no answer"))

    assert {"quota lifetime", "quotas"} == facts.keys()
    assert "no answer" in facts["quotas"]


def test_what_else_there_is_to_say_about_a_replacement() -> None:
    worker = dataclasses.replace(
        WORKER, stopped="was given 20 of 20 runs", drift="image", recycle_asked="annotation",
        quota_notes=QuotaNotes(problem="recycle-tasks says x"),
    )  # fmt: skip

    assert {"was given 20 of 20 runs", "image", "annotation", "recycle-tasks says x"} <= set(
        dict(facts_of(worker, POLICY)).values()
    )


def test_explain_puts_it_together() -> None:
    policy = ko.policy()
    policy["status"] = {
        "workers": [{"name": "w", "state": "Stopped", "reason": "TaskQuota", "message": "20 runs"}],
        "replacing": [
            {"worker": "w", "reason": "TaskQuota", "state": "Surging", "message": "20 runs"}
        ],
        "recycled": {"TaskQuota": 3},
    }
    answer = explanation("w", [policy], None, [], Asked((("quota tasks", "20 of 20"),)))
    cluster = explanation(policy["metadata"]["name"], [policy], None, [])

    assert answer is not None
    assert cluster is not None
    text = render(answer)
    assert "is to be replaced: Surging: TaskQuota: 20 runs" in text
    assert "quota tasks: 20 of 20" in text
    assert "recycled: TaskQuota: 3" in render(cluster)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param("echo no such service >&2; exit 1", "no such service", id="refused"),
        pytest.param(
            "echo 'Forwarding from 127.0.0.1:9 -> 8786'; exec sleep 30", "did not answer",
            id="nobody-there",
        ),
        pytest.param(None, "kubectl is not on the PATH", id="no-kubectl"),
    ],
)  # fmt: skip
async def test_a_scheduler_that_cannot_be_asked_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, expected: str
) -> None:
    if script is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        program = tmp_path / "kubectl"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert expected in (await look_from_here(ClusterKey("ns", "etl"), None)).message
