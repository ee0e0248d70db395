"""What the chart renders, and what it refuses."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from dask_adaptive_agent import __version__
from support.kube_server import CHART, ROOT, helm_template, rendered

NAME = "r-dask-adaptive"


def pod_spec(*words: str) -> dict[str, Any]:
    return dict(rendered(*words)["Deployment", NAME]["spec"]["template"]["spec"])


def tidy_job(*words: str) -> dict[str, Any]:
    return dict(rendered(*words)["Job", f"{NAME}-tidy"])


def env(spec: dict[str, Any]) -> dict[str, Any]:
    return {e["name"]: e.get("value") for e in spec["containers"][0]["env"]}


def test_lint(helm: str) -> None:
    done = subprocess.run(
        [helm, "lint", "--strict", "--kube-version", "1.34.0", str(CHART)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == done.returncode, done.stdout


def test_the_crd_is_the_one_of_manifests() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/sync_chart.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr

    name = "adaptivepolicies.dask-adaptive.dev"
    source = yaml.safe_load((ROOT / "manifests/crds/adaptivepolicies.yaml").read_text())
    made = rendered()["CustomResourceDefinition", name]
    assert source["spec"] == made["spec"]
    assert "keep" == made["metadata"]["annotations"]["helm.sh/resource-policy"]
    assert ("CustomResourceDefinition", name) not in rendered("--set", "crds.install=false")


def test_version_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (__version__, __version__) == (chart["version"], chart["appVersion"])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("replica=2", "replica"),
        ("replicas=-1", "replicas"),
        ("replicas=two", "replicas"),
        ("image.name=x", "name"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("watch.namespaces=team", "namespaces"),
        ("watch.namespaces={Team_A}", "namespaces"),
        ("webhook.failurePolicy=Fail", "failurePolicy"),
        ("webhook.terminationGracePeriodSeconds=0", "terminationGracePeriodSeconds"),
        ("evictionGuard.maxDelay=1m", "maxDelay"),
        ("hints.enabled=maybe", "enabled"),
        ("adopt=Sometimes", "adopt"),
        ("controllerName=Team_A", "controllerName"),
        ("allowDeleteCluster=maybe", "allowDeleteCluster"),
        ("log.format=xml", "format"),
    ],
)
def test_wrong_values_are_refused(value: str, words: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        helm_template("--set", value)

    assert words in refused.value.stderr


def test_every_value_is_documented_and_in_the_schema() -> None:
    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())

    def check(node: dict[str, Any], rules: dict[str, Any], path: str) -> None:
        for key, value in node.items():
            assert key in rules["properties"], f"{path}{key}"
            if rules["properties"][key].get("properties"):
                check(value, rules["properties"][key], f"{path}{key}.")
            else:
                where = re.search(rf"(?m)^ *{key}:", text)
                assert where is not None
                block = text[: where.start()].rsplit("\n\n", 1)[-1]
                assert "#" in block, f"{path}{key} has no comment"

    check(yaml.safe_load(text), schema, "")


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(lambda: pod_spec(), id="operator"),
        pytest.param(lambda: rendered()["Pod", f"{NAME}-test"]["spec"], id="test"),
        pytest.param(lambda: tidy_job()["spec"]["template"]["spec"], id="tidy"),
    ],
)
def test_pods_may_do_nothing(spec: Any) -> None:
    """As the Pod Security Standard `restricted` asks for, and a read-only root."""
    body = spec()
    (container,) = body["containers"]

    assert body["securityContext"]["runAsNonRoot"]
    assert 1000 == body["securityContext"]["runAsUser"]
    assert {"type": "RuntimeDefault"} == body["securityContext"]["seccompProfile"]
    assert {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    } == container["securityContext"]


def test_image() -> None:
    words = ("--set", "image.repository=localhost/x,image.tag=v5,image.pullPolicy=Never")
    container = pod_spec(*words)["containers"][0]

    assert ("localhost/x:v5", "Never") == (container["image"], container["imagePullPolicy"])
    assert pod_spec()["containers"][0]["image"].endswith(f":{__version__}")


def test_one_role_for_all_namespaces_or_one_in_each() -> None:
    everywhere = rendered()
    some = rendered("--set", "watch.namespaces={a,b}")
    roles = [o for (kind, _), o in everywhere.items() if kind == "ClusterRoleBinding"]
    where = [
        doc["metadata"]["namespace"]
        for doc in yaml.safe_load_all(helm_template("--set", "watch.namespaces={a,b}"))
        if doc and doc["kind"] == "RoleBinding" and doc["metadata"]["name"] == NAME
    ]

    assert 1 == len(roles)
    assert not [o for (kind, _), o in some.items() if kind == "ClusterRoleBinding"]
    assert ["a", "b"] == where
    hook = some["MutatingWebhookConfiguration", f"ns-{NAME}"]["webhooks"][0]
    assert ["a", "b"] == hook["namespaceSelector"]["matchExpressions"][0]["values"]
    environment = some["Deployment", NAME]["spec"]["template"]["spec"]
    assert "a b" == env(environment)["DASK_ADAPTIVE_NAMESPACES"]


def test_rules_name_verbs_and_resources_one_by_one() -> None:
    roles = [o for (kind, _), o in rendered().items() if kind in ("Role", "ClusterRole")]
    for rule in (rule for role in roles for rule in role["rules"]):
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]


def test_each_rule_says_who_needs_it() -> None:
    text = (CHART / "templates/_rules.tpl").read_text()
    comments = re.findall(r"(?m)(?:^#.*\n)+", text)

    assert len(comments) >= 6
    for comment in comments:
        files = re.findall(r"(?:kube|controller)/\w+\.py", comment)
        assert files, comment
        assert all((ROOT / "operator/dask_adaptive" / f).exists() for f in files), comment


def test_the_webhook_stops_nobody_and_sees_only_pods_of_dask() -> None:
    (hook,) = rendered()["MutatingWebhookConfiguration", f"ns-{NAME}"]["webhooks"]

    assert ("Ignore", "NoneOnDryRun") == (hook["failurePolicy"], hook["sideEffects"])
    (wanted,) = hook["objectSelector"]["matchExpressions"]
    assert ("dask.org/component", "In") == (wanted["key"], wanted["operator"])
    assert ["scheduler", "worker"] == wanted["values"]


def test_evictions_are_looked_at_only_where_asked_for() -> None:
    key = ("ValidatingWebhookConfiguration", f"ns-{NAME}")
    assert key not in rendered()
    objects = rendered("--set", "evictionGuard.enabled=true,watch.namespaces={a}")
    (hook,) = objects[key]["webhooks"]

    assert ("Ignore", "NoneOnDryRun", 5) == (
        hook["failurePolicy"],
        hook["sideEffects"],
        hook["timeoutSeconds"],
    )
    (rule,) = hook["rules"]
    assert (["pods/eviction"], ["CREATE"]) == (rule["resources"], rule["operations"])
    assert ["a"] == hook["namespaceSelector"]["matchExpressions"][0]["values"]
    assert "/evict" == hook["clientConfig"]["service"]["path"]
    mutating = objects["MutatingWebhookConfiguration", f"ns-{NAME}"]["webhooks"][0]
    assert mutating["clientConfig"]["caBundle"] == hook["clientConfig"]["caBundle"]


def test_a_guard_without_the_webhook_is_refused() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        helm_template("--set", "evictionGuard.enabled=true,webhook.enabled=false")

    assert "evictionGuard.enabled needs webhook.enabled" in refused.value.stderr


def rights(*words: str) -> set[tuple[str, str]]:
    """(verb, resource) of what the operator may do where Dask clusters are."""
    roles = [
        o
        for (kind, name), o in rendered(*words).items()
        if kind in ("Role", "ClusterRole") and name in (NAME, f"ns-{NAME}")
    ]
    rules = [rule for role in roles for rule in role["rules"]]
    return {(verb, what) for r in rules for verb in r["verbs"] for what in r["resources"]}


def test_nodes_are_watched_where_a_role_allows_it() -> None:
    nodes = {("list", "nodes"), ("watch", "nodes")}

    assert nodes <= rights()
    assert not nodes & rights("--set", "watch.namespaces={a}")


def test_without_hints_no_pod_can_be_written() -> None:
    assert ("patch", "pods") in rights()
    objects = rendered("--set", "hints.enabled=false")

    assert ("patch", "pods") not in rights("--set", "hints.enabled=false")
    assert ("Job", f"{NAME}-tidy") in objects  # DaskAutoscalers are to be given back
    spec = objects["Deployment", NAME]["spec"]["template"]["spec"]
    assert "false" == env(spec)["DASK_ADAPTIVE_HINTS"]
    assert "DASK_ADAPTIVE_HINTS" not in env(pod_spec())


def test_the_grace_period_of_workers_is_passed_on() -> None:
    assert "300" == env(pod_spec())["DASK_ADAPTIVE_WORKER_GRACE"]
    words = ("--set", "webhook.terminationGracePeriodSeconds=60")
    assert "60" == env(pod_spec(*words))["DASK_ADAPTIVE_WORKER_GRACE"]


def test_before_it_goes_the_chart_tidies_up() -> None:
    objects = rendered("--set", "watch.namespaces={a,b}")
    order = {}
    for (kind, name), body in objects.items():
        notes = body["metadata"].get("annotations") or {}
        if notes.get("helm.sh/hook") == "pre-delete":
            assert f"{NAME}-tidy" == name
            deleted = notes["helm.sh/hook-delete-policy"].split(",")
            assert {"before-hook-creation", "hook-succeeded", "hook-failed"} == set(deleted)
            order[kind] = int(notes["helm.sh/hook-weight"])
    assert ["Role", "RoleBinding", "Job"] == sorted(order, key=lambda k: order[k])

    job = tidy_job("--set", "watch.namespaces={a,b}")["spec"]
    spec = job["template"]["spec"]
    (container,) = spec["containers"]
    assert NAME == spec["serviceAccountName"]
    assert pod_spec()["containers"][0]["image"] == container["image"]
    assert f"tidy --yes --stop ns/{NAME} || true" in container["args"][0]
    assert "a b" == env(spec)["DASK_ADAPTIVE_NAMESPACES"]
    assert 120 >= job["activeDeadlineSeconds"]
    selector = objects["Deployment", NAME]["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= job["template"]["metadata"]["labels"].items()


def test_the_right_to_stop_the_operator_lasts_as_long_as_the_hook() -> None:
    for (_, name), body in rendered().items():
        for rule in body.get("rules") or []:
            if "deployments/scale" in rule.get("resources", []):
                assert f"{NAME}-tidy" == name
                assert [NAME] == rule["resourceNames"]


def test_the_certificate_fits_its_service() -> None:
    objects = rendered()
    secret = objects["Secret", f"{NAME}-webhook"]["data"]
    (hook,) = objects["MutatingWebhookConfiguration", f"ns-{NAME}"]["webhooks"]
    done = subprocess.run(
        ["openssl", "x509", "-noout", "-ext", "subjectAltName"],
        input=base64.b64decode(secret["tls.crt"]).decode(),
        capture_output=True,
        text=True,
        check=True,
    )

    assert secret["ca.crt"] == hook["clientConfig"]["caBundle"]
    assert f"DNS:{NAME}-webhook.ns.svc" in done.stdout


def test_without_the_webhook_there_is_nothing_of_it() -> None:
    objects = rendered("--set", "webhook.enabled=false")

    assert not [kind for kind, _ in objects if kind in ("Secret", "MutatingWebhookConfiguration")]
    spec = objects["Deployment", NAME]["spec"]["template"]["spec"]
    assert "DASK_ADAPTIVE_CERTIFICATES" not in env(spec)
    assert not {("get", "daskclusters"), ("get", "daskworkergroups")} & rights(
        "--set", "webhook.enabled=false"
    )


def test_which_policies_and_autoscalers_are_served_is_passed_on() -> None:
    named = env(pod_spec("--set", "controllerName=b"))
    assert "b" == named["DASK_ADAPTIVE_CONTROLLER_NAME"]
    assert "dask-adaptive" == env(pod_spec())["DASK_ADAPTIVE_CONTROLLER_NAME"]
    assert "Annotated" == env(pod_spec())["DASK_ADAPTIVE_ADOPT"]
    assert "Never" == env(pod_spec("--set", "adopt=Never"))["DASK_ADAPTIVE_ADOPT"]


def test_the_right_to_delete_clusters_can_be_withheld() -> None:
    delete = ("delete", "daskclusters")

    assert delete in rights()
    assert delete not in rights("--set", "allowDeleteCluster=false")


@pytest.mark.parametrize(("replicas", "budgets"), [(1, 0), (2, 1)])
def test_a_disruption_budget_where_there_is_something_to_spare(replicas: int, budgets: int) -> None:
    objects = rendered("--set", f"replicas={replicas}")

    assert budgets == sum(kind == "PodDisruptionBudget" for kind, _ in objects)


def test_a_release_named_after_the_product_is_not_named_twice() -> None:
    assert ("Deployment", "dask-adaptive") in rendered(release="dask-adaptive")
