"""`dask-adaptive budget`: what is shown of who shares."""

from __future__ import annotations

import json
from typing import Any

from dask_adaptive.kube.api import BUDGETS
from support.canned_api import CannedApi
from support.golden import compare_text
from support.kube_bodies import body

GROUP = {"namespace": "etl", "name": "nightly-default", "cluster": "nightly"}
STATUS = {
    "observedGeneration": 1,
    "held": {"workers": "190 workers", "memory": "708 GiB memory"},
    "groups": [
        {**GROUP, "held": 24, "wanted": 40, "allowed": 30, "waitingSince": "2026-02-01T10:00:00Z"},
        {**GROUP, "cluster": "b", "name": "b-default", "held": 166, "wanted": 99, "allowed": 170},
    ],
    "conditions": [
        {"type": "Ready", "status": "True", "message": "2 share 200 workers; 1 waits"}
    ],
}  # fmt: skip


def budget(name: str, **more: Any) -> dict[str, Any]:
    return {**body(BUDGETS, name, {"limits": {"workers": 200, "memory": "1Ti"}}), **more}


def test_who_has_what(api: CannedApi, run: Any) -> None:
    api.add(budget("data", status=STATUS), budget("new"))
    result = run("budget")

    assert 0 == result.exit_code, result.output
    compare_text("budget.txt", result.output)


def test_one_of_them(api: CannedApi, run: Any) -> None:
    api.add(budget("data", status=STATUS), budget("new"))
    found = json.loads(run("budget", "data", "-o", "json").output)

    assert ["data"] == [item["metadata"]["name"] for item in found["items"]]


def test_those_of_the_namespace(api: CannedApi, run: Any) -> None:
    for namespace in ("team", "other"):
        mine = budget("data", status=STATUS)
        api.add({**mine, "metadata": {**mine["metadata"], "namespace": namespace}})

    assert "other/data: 2 share" in run("budget", "-n", "other").output
    found = json.loads(run("budget", "-o", "json").output)
    assert ["team"] == [item["metadata"]["namespace"] for item in found["items"]]


def test_none(api: CannedApi, run: Any) -> None:
    result = run("budget", "nobody")

    assert (1, True) == (result.exit_code, "no AdaptiveBudget nobody" in result.output)
