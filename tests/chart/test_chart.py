"""What the chart renders, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from dask_adaptive.controller.lease import lease_name
from dask_adaptive.model.policy import DEFAULT_CONTROLLER
from dask_adaptive_agent import __version__
from support.kube_server import CHART, CRDS, IMAGE, ROOT, helm_template, ran, rendered
from support.tables import table

NAME, RIGHTS = "r-dask-adaptive", lease_name(DEFAULT_CONTROLLER)
CRD = ("CustomResourceDefinition", "adaptivepolicies.dask-adaptive.dev")


def pod_spec(*words: str) -> dict[str, Any]:
    return dict(rendered(*words)["Deployment", NAME]["spec"]["template"]["spec"])


def tidy_job(*words: str) -> dict[str, Any]:
    return dict(rendered(*words)["Job", f"{NAME}-tidy"])


def env(spec: dict[str, Any]) -> dict[str, Any]:
    return {e["name"]: e.get("value") for e in spec["containers"][0]["env"]}


def test_lint(helm: str) -> None:
    words = ("--strict", "--kube-version", "1.34.0", "--set", f"{IMAGE}=x", str(CHART))
    done = ran(helm, "lint", *words)

    assert 0 == done.returncode, done.stdout


def test_the_crd_is_rendered_as_it_is() -> None:
    source = yaml.safe_load((CRDS / "adaptivepolicies.yaml").read_text())
    made = rendered()[CRD]

    assert source["spec"] == made["spec"]
    assert "keep" == made["metadata"]["annotations"]["helm.sh/resource-policy"]
    assert "annotations" not in rendered("--set", "crds.keep=false")[CRD]["metadata"]
    for alias in ("install", "enabled"):
        assert CRD not in rendered("--set", f"crds.{alias}=false")


def test_the_version_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert {__version__} == {chart["version"].replace("-dev", ".dev"), chart["appVersion"]}


def test_an_index_of_charts_is_told_what_is_there() -> None:
    notes = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    known = {name.removeprefix("artifacthub.io/"): text for name, text in notes.items()}
    crd = yaml.safe_load((CRDS / "adaptivepolicies.yaml").read_text())

    told = {(one["kind"], one["version"], one["name"]) for one in yaml.safe_load(known["crds"])}
    names = crd["spec"]["names"]["kind"], crd["spec"]["versions"][0]["name"]
    assert (*names, crd["metadata"]["name"]) in told
    (example,) = yaml.safe_load(known["crdsExamples"])
    assert yaml.safe_load((ROOT / "manifests/examples/minimal-policy.yaml").read_text()) == example
    for change in yaml.safe_load(known["changes"]):
        assert change["kind"] in ("added", "changed", "deprecated", "removed", "fixed", "security")
    assert {"license", "operator", "operatorCapabilities", "links"} <= known.keys()


@table(
    "spec",
    operator=lambda: pod_spec(),
    test=lambda: rendered()["Pod", f"{NAME}-test"]["spec"],
    tidy=lambda: tidy_job()["spec"]["template"]["spec"],
)
def test_pods_may_do_nothing(spec: Any) -> None:
    """As the Pod Security Standard `restricted` asks for, and a read-only root."""
    body = spec()
    (container,) = body["containers"]

    assert body["securityContext"]["runAsNonRoot"]
    assert {"type": "RuntimeDefault"} == body["securityContext"]["seccompProfile"]
    assert {"runAsNonRoot", "seccompProfile"} == set(body["securityContext"])
    assert {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    } == container["securityContext"]


def test_one_role_for_all_namespaces_or_one_in_each() -> None:
    everywhere = rendered()
    some = rendered("--set", "watch.namespaces={a,b}")
    roles = [n for kind, n in everywhere if kind == "ClusterRoleBinding"]
    where = [
        doc["metadata"]["namespace"]
        for doc in yaml.safe_load_all(helm_template("--set", "watch.namespaces={a,b}"))
        if doc and doc["kind"] == "RoleBinding" and doc["metadata"]["name"] == RIGHTS
    ]

    webhook = f"ns-{NAME}-webhook"  # configurations are in no namespace
    assert {RIGHTS, webhook} == set(roles)
    assert [webhook] == [n for kind, n in some if kind == "ClusterRoleBinding"]
    assert ["a", "b"] == where
    hook = some["MutatingWebhookConfiguration", f"ns-{NAME}"]["webhooks"][0]
    assert ["a", "b"] == hook["namespaceSelector"]["matchExpressions"][0]["values"]
    environment = some["Deployment", NAME]["spec"]["template"]["spec"]
    assert "a b" == env(environment)["DASK_ADAPTIVE_NAMESPACES"]


def test_all_releases_of_one_controller_name_have_the_same_rights_and_lease() -> None:
    """So Helm refuses a second one; and where people grant the rights themselves, one acts."""

    def shared(release: str, namespace: str) -> set[tuple[str, str]]:
        objects = rendered("--set", "controllerName=b", release=release, namespace=namespace)
        (spec,) = (
            body["spec"]["template"]["spec"]
            for (kind, _), body in objects.items()
            if kind == "Deployment"
        )
        assert "kube-system" == env(spec)["DASK_ADAPTIVE_LEASE_NAMESPACE"]
        return {key for key in objects if key[1].startswith("dask-adaptive-operator-b")}

    here = shared("one", "x")
    assert here == shared("two", "y")
    assert ("ClusterRole", lease_name("b")) in here
    role = rendered("--set", "controllerName=b")["Role", f"{lease_name('b')}:lease"]
    assert "kube-system" == role["metadata"]["namespace"]
    assert [lease_name("b")] == role["rules"][1]["resourceNames"]


def test_budgets_in_namespaces_need_no_cluster_role() -> None:
    words = ("--set", "watch.namespaces={a,b}", "--set", "watch.budgets=Namespaced")
    objects = rendered(*words)
    granted = objects["Role", RIGHTS]["rules"]
    environment = objects["Deployment", NAME]["spec"]["template"]["spec"]

    assert "Namespaced" == env(environment)["DASK_ADAPTIVE_BUDGETS"]
    assert {"adaptivebudgets", "adaptivebudgets/status"} <= {
        resource for rule in granted for resource in rule["resources"]
    }
    assert [f"ns-{NAME}-webhook"] == [n for kind, n in objects if kind == "ClusterRoleBinding"]
    crd = "CustomResourceDefinition", "adaptivebudgets.dask-adaptive.dev"
    scopes = [rendered(*more)[crd]["spec"]["scope"] for more in (words, words[:2])]
    assert ["Namespaced", "Cluster"] == scopes


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


def rights(*words: str) -> set[tuple[str, str]]:
    """(verb, resource) of what the operator may do where Dask clusters are."""
    roles = [
        o
        for (kind, name), o in rendered(*words).items()
        if kind in ("Role", "ClusterRole") and name == RIGHTS
    ]
    rules = [rule for role in roles for rule in role["rules"]]
    return {(verb, what) for r in rules for verb in r["verbs"] for what in r["resources"]}


@pytest.mark.parametrize(
    ("value", "name", "usual", "given"),
    [
        ("hints.enabled=false", "HINTS", None, "false"),
        ("webhook.terminationGracePeriodSeconds=60", "WORKER_GRACE", "300", "60"),
        ("controllerName=b", "CONTROLLER_NAME", "dask-adaptive", "b"),
        ("adopt=Never", "ADOPT", "Annotated", "Never"),
        ("webhook.port=9443", "WEBHOOK_PORT", "8443", "9443"),
    ],
)
def test_what_is_passed_on(value: str, name: str, usual: str | None, given: str) -> None:
    every = [env(pod_spec(*words)) for words in ((), ("--set", value))]

    assert [usual, given] == [told.get(f"DASK_ADAPTIVE_{name}") for told in every]


def test_before_it_goes_the_chart_tidies_up() -> None:
    objects = rendered("--set", "watch.namespaces={a,b}")
    order = {}
    for (kind, name), body in objects.items():
        notes = body["metadata"].get("annotations") or {}
        if notes.get("helm.sh/hook") == "pre-delete":
            assert name in (f"{NAME}-tidy", f"{RIGHTS}:tidy")
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


CERT_MANAGER = ("--set", "certificates.certManager.enabled=true")
GIVEN = ("--set", "certificates.existingSecret=mine")


@pytest.mark.parametrize("words", [(), CERT_MANAGER, GIVEN])
def test_rendered_twice_it_is_the_same(words: tuple[str, ...]) -> None:
    everything = ("--set", "replicas=2,monitoring.alerts.enabled=true")

    assert helm_template(*words, *everything) == helm_template(*words, *everything)
    templates = "".join(path.read_text() for path in CHART.glob("templates/**/*.*"))
    actions = " ".join(re.findall(r"(?s)\{\{(?!- ?/\*|/\*).*?\}\}", templates))
    assert not re.findall(r"\b(lookup|gen[A-Z]\w+|rand[A-Z]\w+|uuidv4|now|Revision)\b", actions)


@pytest.mark.parametrize(
    ("words", "secret", "makes", "verbs"),
    [
        ((), f"{NAME}-certificate", "true", ["get", "patch"]),
        (CERT_MANAGER, f"{NAME}-cert-manager", "false", ["get"]),
        (GIVEN, "mine", "false", ["get"]),
    ],
)
def test_a_certificate_comes_in_one_of_three_ways(
    words: tuple[str, ...], secret: str, makes: str, verbs: list[str]
) -> None:
    objects = rendered(*words)
    told = env(pod_spec(*words))
    assert secret == told["DASK_ADAPTIVE_CERTIFICATE_SECRET"]
    assert makes == told["DASK_ADAPTIVE_MAKE_CERTIFICATE"]
    assert f"{NAME}-webhook.ns.svc" == told["DASK_ADAPTIVE_WEBHOOK_HOST"]
    (rule,) = objects["Role", f"{NAME}-certificate"]["rules"]
    own = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [secret], "verbs": verbs}
    assert own == rule
    made = {name: body for (kind, name), body in objects.items() if kind == "Secret"}
    assert ({secret} if makes == "true" else set()) == set(made)
    assert all("data" not in body and body["type"] == "Opaque" for body in made.values())
    (hook,) = objects["MutatingWebhookConfiguration", f"ns-{NAME}"]["webhooks"]
    assert "caBundle" not in hook["clientConfig"]


def test_cert_manager_is_asked_for_what_the_api_server_calls() -> None:
    objects = rendered(*CERT_MANAGER)
    spec = objects["Certificate", f"{NAME}-cert-manager"]["spec"]
    assert f"{NAME}-cert-manager" == spec["secretName"]
    assert [f"{NAME}-webhook.ns.svc"] == spec["dnsNames"]
    issuer = spec["issuerRef"]
    assert {"selfSigned": {}} == objects[issuer["kind"], issuer["name"]]["spec"]

    issuer = "certificates.certManager.issuerRef"
    theirs = rendered(*CERT_MANAGER, "--set", f"{issuer}.name=corp,{issuer}.kind=ClusterIssuer")
    spec = theirs["Certificate", f"{NAME}-cert-manager"]["spec"]
    assert {"name": "corp", "kind": "ClusterIssuer"} == spec["issuerRef"]
    assert not [kind for kind, _ in theirs if kind == "Issuer"]


def test_without_the_webhook_there_is_nothing_of_it() -> None:
    objects = rendered("--set", "webhook.enabled=false")

    assert not [kind for kind, _ in objects if kind in ("Secret", "MutatingWebhookConfiguration")]
    spec = objects["Deployment", NAME]["spec"]["template"]["spec"]
    assert not [name for name in env(spec) if "CERTIFICATE" in name or "WEBHOOK" in name]
    assert not [name for _, name in objects if name.endswith(("-certificate", "-webhook"))]
    assert not {("get", "daskclusters"), ("get", "daskworkergroups")} & rights(
        "--set", "webhook.enabled=false"
    )


@pytest.mark.parametrize(
    ("replicas", "budgets"), [("replicas=null", 0), ("replicas=2", 1), ("replicaCount=2", 1)]
)
def test_a_disruption_budget_where_there_is_something_to_spare(replicas: str, budgets: int) -> None:
    objects = rendered("--set", replicas)

    assert budgets + 1 == objects["Deployment", NAME]["spec"]["replicas"]
    assert budgets == sum(kind == "PodDisruptionBudget" for kind, _ in objects)


def test_each_command_of_the_notes_names_a_namespace() -> None:
    lines = (CHART / "templates/NOTES.txt").read_text().splitlines()

    assert {True} == {" -n " in line for line in lines if line.startswith("     kubectl ")}


def test_a_release_named_after_the_product_is_not_named_twice() -> None:
    assert ("Deployment", "dask-adaptive") in rendered(release="dask-adaptive")
