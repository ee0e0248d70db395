"""Each value of the chart: it is documented, does something, and reaches all that it is about."""

from __future__ import annotations

import functools
import json
import re
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dask_adaptive_agent import __version__
from support.kube_server import CHART, ROOT, built, helm_template

README = (CHART / "README.md").read_text()

#: Path, default and comment of each value.
VALUES = re.findall(r"^\| (\S+) \| \w+ \| `(.*?)` \| (.*?) \|$", README, re.M)
DEFAULTS = {path: json.loads(default) for path, default, _ in VALUES}

_CASES = yaml.safe_load(Path(__file__).with_name("values.yaml").read_text())
OTHER: dict[str, Any] = _CASES["other"]
NEEDS: dict[str, dict[str, Any]] = _CASES["needs"]
ALL: dict[str, Any] = _CASES["all"]


@functools.cache
def _template(values: str) -> str:
    return helm_template("--values", "-", stdin=values)


def template(values: dict[str, Any]) -> str:
    values = {**values, "image": {"repository": "x", **values.get("image", {})}}
    return _template(json.dumps(values, sort_keys=True))


def objects(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(template(values)) if one]


def the(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """The only object of a kind."""
    (found,) = (one for one in objects(values) if one["kind"] == kind)
    return found


def with_value(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The same values and one more."""
    key, _, rest = path.partition(".")
    return {**values, key: with_value(values.get(key) or {}, rest, value) if rest else value}


def test_each_value_has_a_comment_and_a_test() -> None:
    assert DEFAULTS.keys() == OTHER.keys()
    assert [] == [path for path, _, comment in VALUES if not comment]


def test_the_readme_is_what_helm_docs_writes() -> None:
    built("scripts/go-tool.sh", "helm-docs")
    assert README == runpy.run_path(str(ROOT / "scripts/sync_chart.py"))["readme"]()


@pytest.mark.parametrize("path", OTHER)
def test_each_value_does_something(path: str) -> None:
    needed = next((needs for prefix, needs in NEEDS.items() if path.startswith(prefix)), {})

    assert DEFAULTS[path] != OTHER[path]
    assert template(needed) != template(with_value(needed, path, OTHER[path]))


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, metadata and spec) of all pods of the chart with all that people may add to them."""
    added = {path: OTHER[path] for path in OTHER if path in EVERYWHERE}
    for one in objects(added):
        if one["kind"] in ("Deployment", "Job"):
            yield one["kind"], one["spec"]["template"]
        elif one["kind"] == "Pod":
            yield one["kind"], one


#: What reaches the operator's pods, the hook's and the test's, and where it stands in a pod's spec.
EVERYWHERE = (
    "podLabels", "podAnnotations", "commonLabels", "commonAnnotations", "extraEnv", "extraEnvFrom",
    "extraVolumes", "extraVolumeMounts", "nodeSelector", "tolerations", "affinity",
    "priorityClassName", "imagePullSecrets", "podSecurityContext", "securityContext",
)  # fmt: skip


def test_what_is_added_reaches_all_pods() -> None:
    found = dict(pods())

    assert {"Deployment", "Job", "Pod"} == found.keys()
    for pod in found.values():
        meta, spec = pod["metadata"], pod["spec"]
        (container,) = spec["containers"]
        assert ("a", "a") == (meta["labels"]["team"], meta["annotations"]["team"])
        assert OTHER["extraEnv"][0] in container["env"]
        assert OTHER["extraEnvFrom"] == container["envFrom"]
        assert OTHER["extraVolumes"][0] in spec["volumes"]
        assert OTHER["extraVolumeMounts"][0] in container["volumeMounts"]
        for name in ("nodeSelector", "tolerations", "affinity", "priorityClassName"):
            assert OTHER[name] == spec[name]
        assert OTHER["imagePullSecrets"] == spec["imagePullSecrets"]
        assert (
            7 == spec["securityContext"]["runAsUser"] == container["securityContext"]["runAsUser"]
        )
        assert "512Mi" == container["resources"]["limits"]["memory"]


def test_common_labels_and_annotations_are_on_all_objects() -> None:
    common = {"commonLabels": {"team": "a"}, "commonAnnotations": {"note": "b"}}
    for one in objects({**common, **ALL}):
        name, meta = (one["kind"], one["metadata"]["name"]), one["metadata"]
        assert "a" == meta["labels"]["team"], name
        assert "b" == meta["annotations"]["note"], name
        # A pod that is added to a selector would leave its Deployment.
        assert "team" not in (one["spec"].get("selector") or {} if "spec" in one else {}), name


def test_the_chart_wins_over_labels_of_pods_and_people_over_its_annotations() -> None:
    values = {
        "podAnnotations": {"prometheus.io/scrape": "false"},
        "commonAnnotations": {"prometheus.io/port": "1"},
    }
    notes = the("Deployment", values)["spec"]["template"]["metadata"]["annotations"]

    assert ("false", "8080") == (notes["prometheus.io/scrape"], notes["prometheus.io/port"])


def test_a_monitor_replaces_the_annotations_for_prometheus() -> None:
    for kind in ("serviceMonitor", "podMonitor"):
        deployment = the("Deployment", {"monitoring": {kind: {"enabled": True}}})
        assert "annotations" not in deployment["spec"]["template"]["metadata"]


@pytest.mark.parametrize(("value", "words"), _CASES["wrong"].items())
def test_wrong_values_are_refused(value: str, words: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        helm_template("--set", value)

    assert words in refused.value.stderr


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({}, f":{__version__} IfNotPresent"),
        ({"tag": "v5", "pullPolicy": "Never"}, ":v5 Never"),
        ({"digest": OTHER["image.digest"]}, f"@{OTHER['image.digest']} IfNotPresent"),
    ],
)
def test_an_image_by_tag_or_by_digest(image: dict[str, Any], expected: str) -> None:
    values = {"image": {"repository": "registry.example.com:5000/x", **image}}
    for kind in ("Deployment", "Job"):
        (container,) = the(kind, values)["spec"]["template"]["spec"]["containers"]
        found = f"{container['image']} {container['imagePullPolicy']}"
        assert f"registry.example.com:5000/x{expected}" == found


@pytest.mark.parametrize(
    ("account", "name", "made"),
    [
        ({}, "r-dask-adaptive", 1),
        ({"name": "mine"}, "mine", 1),
        ({"create": False, "name": "mine"}, "mine", 0),
        ({"create": False}, "default", 0),
    ],
)
def test_the_service_account_is_the_same_everywhere(
    account: dict[str, Any], name: str, made: int
) -> None:
    found = objects({"serviceAccount": account})

    assert made == sum(one["kind"] == "ServiceAccount" for one in found)
    assert {name} == {s["name"] for one in found for s in one.get("subjects", ())}
    for one in found:
        if one["kind"] in ("Deployment", "Job"):
            assert name == one["spec"]["template"]["spec"]["serviceAccountName"]
        if one["kind"] == "ValidatingAdmissionPolicy":
            rows = (*one["spec"]["matchConditions"], *one["spec"]["validations"])
            said = " ".join(row["expression"] for row in rows)
            assert f'"system:serviceaccount:ns:{name}"' in said


def test_without_rbac_there_is_no_role() -> None:
    kinds = {one["kind"] for one in objects({"rbac": {"create": False}})}

    assert not {kind for kind in kinds if "Role" in kind}
    assert {"ServiceAccount", "Job"} <= kinds


SELECTOR = {
    "matchLabels": {"team": "a"},
    "matchExpressions": [
        {"key": "env", "operator": "NotIn", "values": ["dev", "test"]},
        {"key": "tier", "operator": "In", "values": ["gold"]},
        {"key": "dask", "operator": "Exists"},
        {"key": "old", "operator": "DoesNotExist"},
    ],
}


def test_namespaces_by_label_reach_the_operator_and_the_hook_as_a_query() -> None:
    values = {"watch": {"namespaceSelector": SELECTOR}}
    asked = {"name": "DASK_ADAPTIVE_NAMESPACE_SELECTOR"}
    asked["value"] = "team=a,env notin (dev,test),tier in (gold),dask,!old"

    for kind in ("Deployment", "Job"):
        assert asked in the(kind, values)["spec"]["template"]["spec"]["containers"][0]["env"]
    bound = [
        one["metadata"]["name"] for one in objects(values) if one["kind"] == "ClusterRoleBinding"
    ]
    rights = "dask-adaptive-operator-dask-adaptive"
    assert [rights, "ns-r-dask-adaptive-webhook"] == sorted(bound)


@pytest.mark.parametrize(
    ("watch", "expected"),
    [
        ({}, {}),
        ({"namespaceSelector": SELECTOR}, SELECTOR),
        (
            {"namespaces": ["a", "b"]},
            {
                "matchExpressions": [
                    {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}
                ]
            },
        ),
    ],
)
def test_schedulers_are_reached_in_the_namespaces_that_are_served(
    watch: dict[str, Any], expected: dict[str, Any]
) -> None:
    egress = {"enabled": True, "egress": {"enabled": True}}
    policy = the("NetworkPolicy", {"watch": watch, "networkPolicy": egress})
    peers = [peer for rule in policy["spec"]["egress"] for peer in rule.get("to", ())]

    assert [expected] == [p["namespaceSelector"] for p in peers if "namespaceSelector" in p]
