"""Budgets in namespaces, as the chart makes them for an operator that has Roles only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from dask_adaptive.cli.main import cli
from dask_adaptive.kube.api import BUDGETS
from support import kube_server
from support.kube_account import Account
from support.kube_bodies import body, cluster_of_one, group, policy
from support.kube_operator import Team, connected, until
from support.kube_server import Kubectl, rendered

NAMESPACED = ("--set", "watch.budgets=Namespaced")
MINE = {"controllerName": "team"}  # as `Account` calls the operator


@pytest.fixture
def kubectl(admin: Kubectl, tmp_path: Path) -> Iterator[Kubectl]:
    """In a namespace of a server of its own: a CRD has one scope for all who use it."""
    with kube_server.another(tmp_path / "server") as kubeconfig:
        mine, crds = Kubectl(kubeconfig), tmp_path / "crds.yaml"
        objects = rendered(*NAMESPACED).values()
        ours = [o for o in objects if o["kind"] == "CustomResourceDefinition"]
        crds.write_text(yaml.safe_dump_all(ours))
        kube_server.add_crds(mine, crds)
        for name in ("team", "other"):
            mine("create", "namespace", name)
        yield mine.within("team")


async def test_it_is_about_the_clusters_of_its_namespace(
    kubectl: Kubectl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    account = Account(kubectl, namespaced=True, words=NAMESPACED)
    monkeypatch.setenv("KUBECONFIG", str(account.kubeconfig(tmp_path)))
    other = kubectl.within("other")
    for limit, where in ((4, kubectl), (1, other)):
        where.apply(body(BUDGETS, "all", {**MINE, "limits": {"workers": limit}}))
    for name in "ab":
        made, *_ = cluster_of_one("w", name=name)
        kubectl.apply(made, group(name), policy(name, name, **MINE, minReplicas=4))

    def is_told() -> bool:
        found = kubectl.json("get", "dab", "all").get("status", {})
        return (found.get("heldWorkers"), found.get("waiting")) == (4, 2)

    with caplog.at_level(logging.WARNING):
        async with connected() as api:
            team = Team(api, kubectl)
            async with team.served(budgets="Namespaced", controller_name="team"):
                await until(lambda: [team.replicas(one) for one in "ab"] == [2, 2])
                await until(is_told)
    assert [] == [r.getMessage() for r in caplog.records if "orbidden" in r.getMessage()]
    assert "status" not in other.json("get", "dab", "all"), "it is not our business"
    monkeypatch.setenv("KUBECONFIG", kubectl.kubeconfig)
    shown = await asyncio.to_thread(
        CliRunner().invoke, cli, ["explain", "budget/all", "-n", "team"]
    )
    assert "shared by 2 clusters: 4 workers" in shown.output
    assert "2 groups waiting" in shown.output
