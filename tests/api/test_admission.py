"""What the ValidatingAdmissionPolicies refuse the operator's account, though its role grants it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from dask_adaptive.kube.agent_config import bundle
from dask_adaptive.kube.api import (
    AUTOSCALERS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    PODS,
    POLICIES,
    Forbidden,
    Json,
    KubeApi,
    Resource,
)
from dask_adaptive.kube.objects import ADOPTED, COMPONENT_LABEL, MANAGED_BY, MANAGED_LABELS
from support.kube_account import Account
from support.kube_bodies import WORKER, autoscaler, body, pod, policy
from support.kube_operator import connected
from support.kube_server import Kubectl, namespace

OURS, THEIRS = {"app": "ours", COMPONENT_LABEL: "worker"}, {"app": "theirs"}
OPERATOR = "dask-adaptive-operator"
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}


def deployment(name: str, labels: dict[str, str]) -> Json:
    template = {"metadata": {"labels": labels}, "spec": WORKER}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return body(DEPLOYMENTS, name, spec, labels=labels)


def config_map(name: str, labels: dict[str, str], **more: Any) -> Json:
    return {**body(CONFIG_MAPS, name, labels=labels), "data": {"secret": "x"}, **more}


def event(name: str, component: str, namespace: str = "") -> Json:
    made = body(EVENTS, name)
    return {**made, "involvedObject": {"namespace": namespace}, "reportingComponent": component}


def managed(name: str) -> Json:
    made = policy(name)
    made["metadata"]["labels"] = {MANAGED_BY: "adoption"}
    return made


@pytest.fixture(scope="module")
def account(admin: Kubectl) -> Iterator[Account]:
    """Beside it, of each kind one object that it may write, and one that it may not."""
    with namespace(admin) as kubectl:
        made = Account(kubectl, namespaced=True)
        kubectl.apply(
            pod("ours", labels=OURS),
            pod("theirs", labels=THEIRS),
            deployment("ours", OURS),
            deployment("theirs", THEIRS),
            config_map("ours-adaptive-history", MANAGED_LABELS),
            config_map("theirs-adaptive-history", {}),
            config_map("theirs", MANAGED_LABELS),
            autoscaler("etl", team="a"),
            managed("ours"),
            policy("theirs"),
            event("ours", OPERATOR, kubectl.namespace),
            event("theirs", "kubelet", kubectl.namespace),
        )
        yield made
        made.remove()


@pytest.fixture(scope="module")
def token(account: Account, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(account.kubeconfig(tmp_path_factory.mktemp("account")))


@pytest.fixture
async def bound(token: str) -> AsyncIterator[KubeApi]:
    """The operator's own way to the API server; nothing is carried out."""
    async with connected(kubeconfig=token, dry_run=True) as api:
        yield api


@pytest.fixture
async def unbound(kubeconfig: str) -> AsyncIterator[KubeApi]:
    """An administrator's."""
    async with connected(kubeconfig=kubeconfig, dry_run=True) as api:
        yield api


#: Deletes a named object, creates one from a whole body, or patches a named one.
Write = tuple[Resource, str, Json | None]


def delete(kind: Resource, name: str) -> Write:
    return kind, name, None


def create(kind: Resource, made: Json) -> Write:
    return kind, "", made


def patch(kind: Resource, name: str, **change: Any) -> Write:
    return kind, name, change


def meta(kind: Resource, name: str, **change: Any) -> Write:
    return patch(kind, name, metadata=change)


async def carry_out(api: KubeApi, where: str, write: Write) -> None:
    kind, name, change = write
    if change is None:
        await api.delete(kind.path(where, name))
    elif name:
        await api.patch(kind.path(where, name), change)
    else:
        if kind == EVENTS:
            change = {**change, "involvedObject": {"namespace": where}}
        await api.create(kind.path(where), change)


AGENT = "dask-adaptive-agent-0a1b2c3d"
FIXED = "labels, owners or finalizers"
NOTES = "only its own annotations"


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (delete(PODS, "theirs"), "only pods of Dask workers"),
        (delete(DEPLOYMENTS, "theirs"), "only Deployments of Dask workers"),
        (create(CONFIG_MAPS, config_map("other", MANAGED_LABELS)), "only histories"),
        (create(CONFIG_MAPS, config_map(AGENT, MANAGED_LABELS)), "immutable"),
        (create(CONFIG_MAPS, config_map("etl-adaptive-history", {})), "not its own"),
        # What changes nothing would read it.
        (patch(CONFIG_MAPS, "theirs"), "only histories"),
        (patch(CONFIG_MAPS, "theirs-adaptive-history"), "not its own"),
        (meta(CONFIG_MAPS, "theirs-adaptive-history", labels=MANAGED_LABELS), "not its own"),
        (patch(AUTOSCALERS, "etl", spec={"maximum": 9}), "the spec of a DaskAutoscaler"),
        (meta(AUTOSCALERS, "etl", labels={"a": "b"}), FIXED),
        (meta(AUTOSCALERS, "etl", ownerReferences=[OWNER]), FIXED),
        (meta(AUTOSCALERS, "etl", finalizers=["x.dev/y"]), FIXED),
        (meta(AUTOSCALERS, "etl", annotations={"team": "b"}), NOTES),
        (meta(AUTOSCALERS, "etl", annotations={"other": "x"}), NOTES),
        (create(LEASES, body(LEASES, "kube-scheduler")), "only its own Lease"),
        (create(POLICIES, policy("new")), "that it made"),
        (patch(POLICIES, "theirs", spec={"maxReplicas": 99}), "that it made"),
        (meta(POLICIES, "theirs", labels={MANAGED_BY: "adoption"}), "that it made"),
        (delete(POLICIES, "theirs"), "that it made"),
        (meta(POLICIES, "ours", labels={MANAGED_BY: None}), "that it made"),
        (create(EVENTS, event("new", "kubelet")), "only its own events"),
        (patch(EVENTS, "theirs", message="x"), "only its own events"),
        (patch(EVENTS, "theirs", reportingComponent=OPERATOR), "only its own events"),
    ],
)
async def test_what_the_role_grants_and_a_policy_refuses(
    account: Account, bound: KubeApi, unbound: KubeApi, write: Write, why: str
) -> None:
    where = account.kubectl.namespace

    with pytest.raises(Forbidden, match=why):
        await carry_out(bound, where, write)
    await carry_out(unbound, where, write)  # nobody else is bound


@pytest.mark.parametrize(
    "write",
    [
        delete(PODS, "ours"),
        delete(DEPLOYMENTS, "ours"),
        patch(CONFIG_MAPS, "ours-adaptive-history", data={"decisions.jsonl": ""}),
        create(CONFIG_MAPS, config_map(bundle().name, MANAGED_LABELS, immutable=True)),
        meta(AUTOSCALERS, "etl", annotations={ADOPTED: "x"}),
        create(POLICIES, managed("new")),
        patch(POLICIES, "ours", spec={"maxReplicas": 9}),
        delete(POLICIES, "ours"),
        create(EVENTS, event("new", OPERATOR)),
        patch(EVENTS, "ours", count=2),
    ],
)
async def test_what_the_operator_does_passes(
    account: Account, bound: KubeApi, write: Write
) -> None:
    await carry_out(bound, account.kubectl.namespace, write)


def test_the_agent_is_code_and_nobody_elses_to_write(account: Account) -> None:
    """Who may write all ConfigMaps in a namespace creates none of that name."""
    kubectl, where = account.kubectl, account.kubectl.namespace
    kubectl("create", "serviceaccount", "tenant")
    kubectl("create", "role", "tenant", "--verb=*", "--resource=configmaps")
    who = f"--serviceaccount={where}:tenant"
    kubectl("create", "rolebinding", "tenant", "--role=tenant", who)
    words = (f"--as=system:serviceaccount:{where}:tenant", "--dry-run=server")
    for name, is_refused in ((AGENT, True), ("mine", False)):
        made = kubectl.run("create", "configmap", name, *words)
        assert is_refused == bool(made.returncode), made.stderr
        assert is_refused == ("code that schedulers run" in made.stderr)
