"""The rights that the chart gives: enough for all that the operator does, and not much more."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dask_adaptive.cli.main import cli
from dask_adaptive.controller.certificate import CertificateKeeper, WebhookSettings
from dask_adaptive.controller.certificate import make as make_certificate
from dask_adaptive.controller.lease import lease_name
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.agent_config import AgentConfig, bundle
from dask_adaptive.kube.api import (
    CLUSTERS,
    CONFIG_MAPS,
    GROUPS,
    LEASES,
    NAMESPACES,
    SECRETS,
    Forbidden,
    KubeApi,
)
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.nodes import NodeObject
from dask_adaptive.kube.objects import ADOPT, ADOPTED, COOLDOWN, MANAGED_BY, parse_policy_object
from dask_adaptive.kube.reporter import DecisionLog
from dask_adaptive.kube.status_json import history_name, history_of
from dask_adaptive.loop.ports import PlatformError
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.plan import Decision
from dask_adaptive.model.reason import Reason
from support.kube_account import Account
from support.kube_bodies import autoscaler, body, group, labels_of, pod, policy
from support.kube_objects import platform_of, resync
from support.kube_operator import Team, connected, running, until
from support.kube_server import ROOT, Kubectl, namespace, rendered
from support.kube_webhook import KIND


@pytest.fixture
def make(
    kubectl: Kubectl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Account]]:
    """Makes an account; from then on this process acts as that one."""
    with contextlib.ExitStack() as stack:

        def made(**how: Any) -> Account:
            account = Account(kubectl, **how)
            stack.callback(account.remove)
            monkeypatch.setenv("KUBECONFIG", str(account.kubeconfig(tmp_path)))
            return account

        yield made


@pytest.fixture(params=[False, True], ids=["all-namespaces", "one-namespace"])
def account(request: pytest.FixtureRequest, make: Callable[..., Account]) -> Account:
    return make(namespaced=request.param)


async def test_the_operator_may_do_all_that_it_does(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    kubectl = account.kubectl
    kubectl("apply", "-f", str(ROOT / "manifests/examples/annotated-cluster.yaml"))
    kubectl.apply(group("annotated"))

    async with connected() as api:
        team, where = Team(api, kubectl), kubectl.namespace
        with caplog.at_level(logging.WARNING):
            async with team.served(controller_name=where):
                # Policy made, cluster scaled, status written.
                await until(lambda: team.replicas("annotated") == 1)
                await until(lambda: bool(team.policies()[0].get("status")))
                team.annotate("daskcluster", "annotated", max_replicas="")
                await until(lambda: team.policies() == [])
                await _adopted_and_released(kubectl)
        await _history_calls(api, kubectl)
        await _webhook_calls(api, where)
        await _restart_worker(api, kubectl)
        await _delete_cluster(api, kubectl)

    refused = [r.getMessage() for r in caplog.records if "forbidden" in r.getMessage().lower()]
    assert [] == refused
    assert "annotated" in kubectl("get", "configmap", bundle().name, "-o", "yaml")


async def _adopted_and_released(kubectl: Kubectl) -> None:
    kubectl.apply(autoscaler("annotated", **{ADOPT: "true"}))
    await until(lambda: COOLDOWN in kubectl("get", "daskautoscaler", "annotated", "-o", "yaml"))
    kubectl("annotate", "daskautoscaler", "annotated", f"{ADOPT}-")
    await until(lambda: COOLDOWN not in kubectl("get", "daskautoscaler", "annotated", "-o", "yaml"))
    kubectl("delete", "daskautoscaler", "annotated")


async def _history_calls(api: KubeApi, kubectl: Kubectl) -> None:
    kubectl.apply(policy("p", "annotated"))
    new = parse_policy_object(kubectl.json("get", "dap", "p"))
    decided = replace(new, status_json=b'{"lastDecision": {"at": "earlier"}}')
    for at, stored in ((1.0, new), (2.0, decided)):  # the second reads what the first has written
        log = DecisionLog(stored, api)
        await log.add([Decision(at, "g", 0, 1, 1, Reason.RECONCILED, "m")])
    history = kubectl.json("get", "configmap", history_name("p"))
    assert [1.0, 2.0] == [d.at for d in history_of(history)]


async def _delete_cluster(api: KubeApi, kubectl: Kubectl) -> None:
    key = ClusterKey(kubectl.namespace, "annotated")
    uid = kubectl.json("get", "daskcluster", "annotated")["metadata"]["uid"]
    await platform_of(key, World(), api).delete_cluster(uid)
    assert [] == kubectl.json("get", "daskclusters")["items"]


async def _webhook_calls(api: KubeApi, where: str) -> None:
    cluster = await api.get(CLUSTERS.path(where, "annotated"))
    await api.get(NAMESPACES.path(name=where))
    await api.get(GROUPS.path(where, "annotated-default"))
    config = AgentConfig(api, bundle())
    for _ in range(2):
        await config.ensure(where, "annotated", cluster["metadata"]["uid"])
    with pytest.raises(Forbidden):
        await api.get(CONFIG_MAPS.path(where, bundle().name))


async def _restart_worker(api: KubeApi, kubectl: Kubectl) -> None:
    kubectl.apply(pod("w", of="w", labels=labels_of("worker", "annotated")))
    made = policy("annotated", "annotated")
    made["metadata"]["namespace"] = kubectl.namespace
    parsed = parse_policy_object(made)
    world = World()
    await resync(world, api, [kubectl.namespace])
    uid = kubectl.json("get", "pod", "w")["metadata"]["uid"]
    await platform_of(parsed.key, world, api).restart_worker("w", "w", uid)
    assert [] == kubectl.json("get", "pods")["items"]


async def test_a_cluster_wide_operator_may_watch_nodes(account: Account) -> None:
    bound = [o["metadata"]["name"] for o in account.objects if o["kind"] == "ClusterRoleBinding"]
    everywhere = lease_name(account.kubectl.namespace) in bound
    assert everywhere == account.can("watch", "nodes")
    async with connected() as api:
        # Whoever is let into some namespaces only must not even ask.
        await resync(World(), api, [] if everywhere else [account.kubectl.namespace])


async def test_the_operator_watches_nodes_where_it_is_told_to(
    make: Callable[..., Account], kubectl: Kubectl
) -> None:
    account = make(namespaced=True, words=("--set", "watch.nodes=true"))
    assert not account.can("get", "nodes")
    assert not account.can("list", "pods", "--all-namespaces")
    where, name = kubectl.namespace, f"n-{kubectl.namespace}"
    kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    try:
        async with (
            connected() as api,
            running(api, where, nodes=True, controller_name=where) as operator,
        ):
            await until(lambda: operator._world.get(NodeObject, "", name) is not None)
            await until(lambda: not operator.waits_for())
    finally:
        kubectl("delete", "node", name)
    assert account.can("watch", "nodes")


def test_namespaces_are_listed_for_selectors(make: Callable[..., Account]) -> None:
    """That of `watch`, and those of budgets."""
    own, none = "watch.namespaceSelector.matchLabels.team=a", "watch.budgets=Namespaced"
    assert make(namespaced=False, words=("--set", f"{own},{none}")).can("watch", "namespaces")
    assert make(namespaced=False).can("watch", "namespaces")
    assert not make(namespaced=False, words=("--set", none)).can("watch", "namespaces")


def test_the_hook_may_tidy_up(make: Callable[..., Account], kubectl: Kubectl) -> None:
    """All that `dask-adaptive tidy` does as the chart's Job, with one namespace's rights."""
    account = make(namespaced=True, hooks=True)
    kubectl("create", "deployment", account.name, "--image=x")
    adopted = {ADOPTED: "2026-01-01T00:00:00Z", COOLDOWN: "4000000000"}
    made = policy("etl")
    made["metadata"]["labels"] = {MANAGED_BY: "adoption"}
    where = kubectl.namespace
    mine = ("--lease-namespace", where, "--controller-name", where)
    made["spec"]["controllerName"] = where
    kubectl.apply(autoscaler("etl", **adopted), made, body(LEASES, lease_name(where)))
    words = ["tidy", "--yes", "--stop", f"{where}/{account.name}", "-n", where, *mine]
    result = CliRunner().invoke(cli, words)

    assert 0 == result.exit_code, result.output
    left = kubectl.json("get", "daskautoscaler", "etl")["metadata"]["annotations"]
    assert not {COOLDOWN, ADOPTED} & set(left)
    assert [] == kubectl.json("get", "dap")["items"]
    assert [] == kubectl.json("get", "leases")["items"]
    assert 0 == kubectl.json("get", "deployment", account.name)["spec"]["replicas"]
    assert account.can("patch", f"deployments/{account.name}", "--subresource=scale")
    assert not account.can("patch", "deployments/other", "--subresource=scale")


#: Verbs that the operator lacks, by resource.
NEVER = {
    "secrets": "get list patch create",
    "configmaps": "get delete list",
    "pods": "create deletecollection get update patch",
    "pods/exec": "create",
    "deployments": "patch create",
    "daskclusters": "patch",
    "daskautoscalers": "create delete",
    "resourcequotas": "create patch",
    "daskworkergroups": "patch",
    "nodes": "get patch",
    "pods/eviction": "create",
    "deployments/scale": "patch",
    "namespaces": "patch",
    "clusterroles": "create",
    "roles": "escalate",
    "mutatingwebhookconfigurations": "patch",
    "validatingwebhookconfigurations": "get",
    "customresourcedefinitions": "patch",
}


@pytest.mark.parametrize(
    ("verb", "resource"), [(verb, what) for what, verbs in NEVER.items() for verb in verbs.split()]
)
def test_what_it_may_not_do(sole_account: Account, verb: str, resource: str) -> None:
    assert not sole_account.can(verb, resource)


@pytest.fixture(scope="module")
def sole_account(admin: Kubectl) -> Iterator[Account]:
    with namespace(admin) as kubectl:
        made = Account(kubectl, namespaced=False)
        yield made
        made.remove()


def test_a_namespaced_operator_sees_one_namespace(make: Callable[..., Account]) -> None:
    account = make(namespaced=True)

    assert account.can("list", "pods")
    assert not account.can("list", "pods", "--namespace=default")
    assert not account.can("get", "namespaces/default", "--namespace=default")


async def test_clusters_are_not_deleted_where_the_chart_says_so(
    make: Callable[..., Account], kubectl: Kubectl
) -> None:
    make(namespaced=True, words=("--set", "allowDeleteCluster=false"))
    kubectl("apply", "-f", str(ROOT / "manifests/examples/annotated-cluster.yaml"))
    async with connected() as api:
        with pytest.raises(PlatformError, match="allowDeleteCluster"):
            await _delete_cluster(api, kubectl)


def test_a_lease_of_others_is_not_ours(sole_account: Account) -> None:
    assert sole_account.can("update", f"leases/{lease_name(sole_account.kubectl.namespace)}")
    assert not sole_account.can("update", "leases/other")


@pytest.mark.parametrize("makes", [True, False], ids=["made", "given"])
async def test_the_webhooks_certificate_and_no_other_secret(
    make: Callable[..., Account], kubectl: Kubectl, makes: bool
) -> None:
    words = () if makes else ("--set", "certificates.existingSecret=mine")
    account = make(namespaced=True, words=words)
    where, release = kubectl.namespace, account.name
    objects = rendered(*words, namespace=where, release=where)
    (hook,) = (o for (kind, _), o in objects.items() if kind == KIND)
    name = hook["metadata"]["name"]
    secret = f"{release}-certificate" if makes else "mine"
    try:
        kubectl.apply(hook)
        kubectl("create", "secret", "generic", secret)
        kubectl("create", "secret", "generic", "other")
        host = f"{release}-webhook.{where}.svc"
        if not makes:
            data = yaml.safe_dump({"data": make_certificate(host, datetime.now(UTC))})
            kubectl("patch", "secret", secret, "--patch", data)
        ends_at = Metrics().certificate.labels(secret)
        settings = WebhookSettings(secret, host, makes, name)
        async with connected() as api:
            assert await CertificateKeeper(api, where, settings, ends_at).look()
            with pytest.raises(Forbidden):
                await api.get(SECRETS.path(where, "other"))
        assert makes == account.can("patch", f"secrets/{secret}")
        assert not account.can("patch", "mutatingwebhookconfigurations/other")
    finally:
        kubectl("delete", KIND, name, "--ignore-not-found")
