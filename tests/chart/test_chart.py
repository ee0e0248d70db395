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


def test_the_webhook_stops_nobody_and_sees_only_schedulers() -> None:
    (hook,) = rendered()["MutatingWebhookConfiguration", f"ns-{NAME}"]["webhooks"]

    assert ("Ignore", "NoneOnDryRun") == (hook["failurePolicy"], hook["sideEffects"])
    assert {"dask.org/component": "scheduler"} == hook["objectSelector"]["matchLabels"]


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
    rules = objects["ClusterRole", f"ns-{NAME}"]["rules"]
    assert not [r for r in rules if "configmaps" in r["resources"]]


@pytest.mark.parametrize(("replicas", "budgets"), [(1, 0), (2, 1)])
def test_a_disruption_budget_where_there_is_something_to_spare(replicas: int, budgets: int) -> None:
    objects = rendered("--set", f"replicas={replicas}")

    assert budgets == sum(kind == "PodDisruptionBudget" for kind, _ in objects)


def test_a_release_named_after_the_product_is_not_named_twice() -> None:
    assert ("Deployment", "dask-adaptive") in rendered(release="dask-adaptive")
