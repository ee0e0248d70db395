"""What we rely on in dask-kubernetes, of the release that DASK_KUBERNETES names."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import yaml

from dask_adaptive.kube.api import AUTOSCALERS, CLUSTERS, DASK, GROUPS, KubeApi, Resource
from dask_adaptive.kube.objects import CLUSTER_LABEL, COMPONENT_LABEL, COOLDOWN, GROUP_LABEL
from support import kube_bodies
from support.kube_server import Kubectl, upstream_crds
from support.upstream_code import built_worker, compiled, upstream_source

NAMES = {"worker_group_name": "etl-default", "namespace": "team", "cluster_name": "etl"}


def crds() -> dict[str, Any]:
    found = [yaml.safe_load(path.read_text())["spec"] for path in upstream_crds()]
    return {spec["names"]["plural"]: spec for spec in found}


def decorators(function: str) -> list[str]:
    """Which events a handler is for."""
    for node in ast.parse(upstream_source()).body:
        if isinstance(node, ast.AsyncFunctionDef) and node.name == function:
            return [ast.unparse(d) for d in node.decorator_list]
    return []


@pytest.mark.parametrize("kind", [CLUSTERS, GROUPS, AUTOSCALERS], ids=lambda kind: kind.plural)
def test_the_kinds_are_there_in_our_version(kind: Resource) -> None:
    spec = crds()[kind.plural]

    assert (DASK, kind.kind, "Namespaced") == (spec["group"], spec["names"]["kind"], spec["scope"])
    assert [kind.version] == [v["name"] for v in spec["versions"] if v["served"]]


async def test_a_group_is_scaled_by_its_subresource(api: KubeApi, kubectl: Kubectl) -> None:
    await api.create(GROUPS.path(kubectl.namespace), kube_bodies.group("etl", 1))

    kubectl("scale", "daskworkergroup/etl-default", "--replicas=3")

    body = await api.get(GROUPS.path(kubectl.namespace, "etl-default"))
    assert 3 == body["spec"]["worker"]["replicas"]


def test_a_worker_is_a_deployment_of_one_whose_name_is_the_workers() -> None:
    pod = {"containers": [{"name": "worker", "env": [{"name": "MINE", "value": "1"}]}]}
    notes, labels = {"note": "1"}, {"mine": "1"}
    made = built_worker(**NAMES, uuid="1f", pod_spec=pod, annotations=notes, labels=labels)

    assert ("Deployment", 1) == (made["kind"], made["spec"]["replicas"])
    meta, template = made["metadata"], made["spec"]["template"]
    assert "etl-default-worker-1f" == meta["name"]
    ours = {CLUSTER_LABEL: "etl", GROUP_LABEL: "etl-default", COMPONENT_LABEL: "worker"}
    for one in (meta, template["metadata"]):
        assert (ours | labels).items() <= one["labels"].items()
        assert notes.items() <= one["annotations"].items()
    (container,) = template["spec"]["containers"]
    assert {
        "MINE": "1",
        "DASK_WORKER_NAME": meta["name"],
        "DASK_SCHEDULER_ADDRESS": "tcp://etl-scheduler.team.svc.cluster.local:8786",
    } == {e["name"]: e["value"] for e in container["env"]}


def test_the_default_group_has_the_clusters_name() -> None:
    name = "build_default_worker_group_spec"
    made = compiled([name], {})[name]("etl", {"replicas": 2}, {}, {})

    assert ("DaskWorkerGroup", "etl-default") == (made["kind"], made["metadata"]["name"])
    assert {"cluster": "etl", "worker": {"replicas": 2}} == made["spec"]


def test_the_annotation_that_rests_an_autoscaler_is_ours() -> None:
    name = "DASK_AUTOSCALER_COOLDOWN_UNTIL_ANNOTATION"

    assert COOLDOWN == compiled([name], {})[name]
    assert [f"kopf.timer('daskautoscaler.{DASK}', interval=5.0)"] == decorators(
        "daskautoscaler_adapt"
    )


def test_only_the_number_of_a_group_is_handled() -> None:
    field = "field='spec.worker.replicas'"

    assert [f"kopf.on.field('daskworkergroup.{DASK}', {field})"] == decorators(
        "daskworkergroup_replica_update"
    )
