"""The commands that change something: what they send, and that a dry run only has it checked."""

from __future__ import annotations

from typing import Any

import pytest

from support.canned_api import CannedApi
from support.shown_policies import STATUS, policy

LABELS = {"dask.org/cluster-name": "etl", "dask.org/component": "worker"}
PIN, REASON, RECYCLE = (f"dask-adaptive.dev/{name}" for name in ("pin", "pin-reason", "recycle"))


@pytest.fixture(autouse=True)
def _worker(api: CannedApi) -> None:
    meta = {"name": "w1-x", "namespace": "team", "labels": LABELS, "annotations": {PIN: "1h"}}
    api.add(policy(STATUS), {"kind": "Pod", "metadata": meta})


@pytest.mark.parametrize(
    ("words", "notes", "said"),
    [
        (("pin", "w1-x", "--for", "4h"), {PIN: "4h", REASON: None}, "pod w1-x pinned (4h)"),
        (("unpin", "w1-x"), {PIN: None, REASON: None}, "pod w1-x unpinned"),
        (("recycle", "w1-x"), {RECYCLE: "now"}, "pod w1-x is to be recycled"),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_dry_run_is_checked_and_not_carried_out(
    words: tuple[str, ...], notes: Any, said: str, dry_run: bool, api: CannedApi, run: Any
) -> None:
    result = run(*words, *(["--dry-run"] * dry_run))
    ((path, query, body),) = api.patched

    assert 0 == result.exit_code, result.output
    assert f"{said}{' (server dry run)' if dry_run else ''}\n" == result.output
    assert "/api/v1/namespaces/team/pods/w1-x" == path
    assert {"metadata": {"annotations": notes}} == body
    assert ("All" if dry_run else None) == query.get("dryRun")
    assert "dask-adaptive-cli" == query["fieldManager"]


def test_what_is_not_there_is_exit_code_1(api: CannedApi, run: Any) -> None:
    for words in (("pin", "nobody"), ("unpin", "nobody"), ("recycle", "nobody"),
                  ("recycle", "w1-x", "--cancel")):  # fmt: skip
        assert 1 == run(*words).exit_code
    assert [] == api.patched


def test_only_workers_are_changed_and_only_under_a_policy(api: CannedApi, run: Any) -> None:
    meta = {"name": "s", "namespace": "team", "labels": {"dask.org/component": "scheduler"}}
    other = {"name": "o", "namespace": "team", "labels": {**LABELS, "dask.org/cluster-name": "x"}}
    api.add({"kind": "Pod", "metadata": meta}, {"kind": "Pod", "metadata": other})

    for words, said in (
        (("pin", "s"), "not a Dask worker"),
        (("recycle", "s"), "not a Dask worker"),
        (("recycle", "o"), "x has no AdaptivePolicy"),
    ):
        result = run(*words)
        assert (2, True) == (result.exit_code, said in result.output)
    assert [] == api.patched
