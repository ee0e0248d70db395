"""AdaptiveBudgets on a real API server: what it refuses, and clusters that share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dask_adaptive.budget.adaptive_budget import parse_budget
from dask_adaptive.kube.api import BUDGETS
from support.kube_bodies import body, cluster_of_one, group, policy
from support.kube_operator import Team, until
from support.kube_server import ROOT, Kubectl
from support.policies import WRONG_BUDGETS


@pytest.fixture
def name(kubectl: Kubectl, admin: Kubectl) -> Iterator[str]:
    """Of a budget of the test's own: budgets are in no namespace."""
    yield kubectl.namespace
    admin("delete", "dab", kubectl.namespace, "--ignore-not-found")


def budget(name: str, **spec: Any) -> dict[str, Any]:
    return body(BUDGETS, name, {"namespaces": [name], "reclaim": {"after": "0s"}, **spec})


@pytest.mark.parametrize(("spec", "field", "words"), WRONG_BUDGETS)
def test_the_server_refuses_what_the_model_refuses(
    admin: Kubectl, name: str, spec: dict[str, Any], field: str, words: str
) -> None:
    made = admin.run("create", "-f", "-", stdin=json.dumps(body(BUDGETS, name, spec)))

    assert made.returncode
    assert "spec" in made.stderr


def test_defaults_are_those_of_the_model(admin: Kubectl, name: str) -> None:
    written = {"limits": {"workers": 3}, "shares": [{"namespace": "x", "cluster": "a"}]}
    admin.apply(body(BUDGETS, name, written))
    assert parse_budget(written) == parse_budget(admin.json("get", "dab", name)["spec"])


def test_the_example_is_taken(admin: Kubectl) -> None:
    example = ROOT / "manifests/examples/budget.yaml"
    admin("apply", "-f", str(example), "--dry-run=server")

    parse_budget(yaml.safe_load(example.read_text())["spec"])


@pytest.mark.usefixtures("one_divides")
async def test_clusters_share_and_a_guarantee_holds(team: Team, admin: Kubectl, name: str) -> None:
    shares = [{"namespace": name, "cluster": "b", "guarantee": 3}]
    admin.apply(budget(name, limits={"workers": 4}, shares=shares))
    for cluster in "ab":
        made, *_ = cluster_of_one("w", name=cluster)
        team.kubectl.apply(made, group(cluster), policy(cluster, cluster, minReplicas=4))

    def status() -> dict[str, Any]:
        found: dict[str, Any] = admin.json("get", "dab", name).get("status", {})
        return found

    def held() -> list[int]:
        return [team.replicas(one) for one in "ab"]

    def limited() -> list[str | None]:
        return [team.condition(one, "ScalingLimited").get("reason") for one in "ab"]

    async with team.served(budgets="Cluster"):
        await until(lambda: held() == [1, 3])
        await until(lambda: (status().get("heldWorkers"), status().get("waiting")) == (4, 2))
        await until(lambda: limited() == ["BudgetShared"] * 2)
        shown = {g["cluster"]: (g["wanted"], g["allowed"]) for g in status()["groups"]}
        assert {"a": (4, 1), "b": (4, 3)} == shown

        admin.apply(budget(name, limits={"workers": 8}, shares=shares))
        await until(lambda: held() == [4, 4])
