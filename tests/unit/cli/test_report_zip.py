"""What `report` lets out: nothing but what the allow-list names, and no secret in free text."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dask_adaptive import DOMAIN
from dask_adaptive.cli.report import FIELDS, GONE, OURS, Report, allowed, scrubbed
from support import kube_objects as ko

Json = dict[str, Any]

FOUND = {body["kind"]: body for body in ko.one_of_each(ko.KEY)}
KINDS = ("DaskWorkerGroup", "DaskAutoscaler", "Deployment", "Pod", "ResourceQuota")
PARTS = {"worker": FOUND["DaskWorkerGroup"]["spec"]["worker"], "scheduler": {"spec": ko.POD_SPEC}}
EVENT: Json = {
    "kind": "Event", "metadata": FOUND["Pod"]["metadata"], "type": "t", "reason": "r",
    "message": "m", "source": {"component": "c", "host": "h"}, "related": {"name": "n"},
    "involvedObject": {"kind": "k", "name": "n", "uid": "u", "fieldPath": "f"},
}  # fmt: skip

#: Where a text may come out, whatever it is. Hashed ones and scrubbed ones are not among them.
STRUCTURE = {
    "kind", "name", "namespace", "uid", "creationTimestamp", "phase", "reason", "startTime", "type",
    "status", "image", "restartPolicy", "priorityClassName", "cpu", "component", "message",
    "dask.org/cluster-name", "dask.org/component", "dask.org/workergroup-name", "cluster",
    "pod-template-hash", "lastTransitionTime", "resourceVersion", "memory", "requests.cpu", "pods",
}  # fmt: skip


def planted(value: Any, places: dict[str, tuple[str, ...]], path: tuple[str, ...] = ()) -> Any:
    """The object with a text of its own at each place; notes the place of each text."""
    if isinstance(value, dict):
        return {key: planted(child, places, (*path, key)) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [planted(child, places, path) for child in value]
    if not isinstance(value, str):
        return value
    text = f"planted{len(places):03d}"
    places[text] = path
    return text


@pytest.mark.parametrize(
    "body",
    [*map(FOUND.get, KINDS), {**FOUND["DaskCluster"], "spec": PARTS}, EVENT],
    ids=lambda body: body["kind"],
)
def test_nothing_comes_out_but_what_is_listed(body: Json) -> None:
    places: dict[str, tuple[str, ...]] = {}
    out = json.dumps(allowed(planted(body, places), FIELDS))

    seen = {place for text, place in places.items() if text in out}
    ours = {place for place in seen if place[-1].startswith(DOMAIN)}
    assert {place[-1] for place in seen - ours} <= STRUCTURE
    inside = {part for place in seen for part in place}
    assert not inside & {"volumes", "imagePullSecrets", "args", "command", "env", "envFrom",
                         "managedFields", "lifecycle", "initContainers", "livenessProbe",
                         "hostAliases", "podIPs", "valueFrom"}  # fmt: skip
    assert seen, "something has to be said"


def test_of_a_policy_dasks_configuration_only_has_its_keys() -> None:
    spec = {
        "clusterRef": {"name": "etl"}, "maxReplicas": 5,
        "scheduler": {"relief": {"pickling": "Auto"}, "config": {"s3": {"key": "AKIAxyz"}}},
    }  # fmt: skip
    conditions = [{"type": "Ready", "message": "password=hunter2"}]
    body = {
        "metadata": FOUND["Pod"]["metadata"],
        "spec": spec,
        "status": {"conditions": conditions},
    }
    out = allowed(body, OURS["policies"])

    assert {"s3": {"key": GONE}} == out["spec"]["scheduler"]["config"]
    assert {"pickling": "Auto"} == out["spec"]["scheduler"]["relief"]
    assert 5 == out["spec"]["maxReplicas"]
    assert "hunter2" not in json.dumps(out["status"])


SECRETS = [
    ("password=hunter2", "hunter2"),
    ('"password": "hunter2 and more"', "hunter2"),
    ("DB_PASSWORD: hunter2", "hunter2"),
    ("--api-key hunter2", "hunter2"),
    ("aws_secret_access_key = hunter2", "hunter2"),
    ("Authorization: Bearer hunter2.abc", "hunter2"),
    ("authorization=Basic aHVudGVyMg==", "aHVudGVyMg"),
    ("got Bearer abcdef123456 from x", "abcdef123456"),
    ("https://me:hunter2@host/path", "hunter2"),
    ("s3://bucket?X-Amz-Signature=hunter2&x=1", "hunter2"),
    ("-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----", "hunter2"),
    ("-----BEGIN CERTIFICATE-----\nhunter2", "hunter2"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "eyJ"),
    ("key AKIAIOSFODNN7EXAMPLE in use", "AKIA"),
    ("ghp_abcdefghij0123456789", "ghp_"),
    ("glpat-abcdefghij", "glpat"),
    ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalr"),
    ("da39a3ee5e6b4b0d3255bfef95601890afd80709", "da39a3"),
    ("tcp://10.0.0.7:8786", "10.0.0.7"),
    ("from fd00:1:2:3:4:5:6:7", "fd00"),
    ("pinned by alice@example.com", "alice"),
]


@pytest.mark.parametrize(("text", "secret"), SECRETS, ids=[text[:24] for text, _ in SECRETS])
def test_free_text_loses_what_looks_like_a_secret(text: str, secret: str) -> None:
    assert secret not in scrubbed(f"at 12:00 {text} was said")
    assert secret not in scrubbed(json.dumps({"message": text}))


@pytest.mark.parametrize(
    "text",
    [
        "set etl-default to 5 replicas: 5 workers exist, 6 are requested",
        "a-long-team-name-cluster-default-worker-0a1b2c3d4e-5d8f7c9b8-abcde is taken away",
        "0/3 nodes are available: 3 Insufficient cpu. preemption: not eligible",
        "2026-02-01T10:00:00Z INFO dask_adaptive.loop: planned reason=Underutilized desired=5",
        "localhost/dask-adaptive:0.1.0",
        "idle for 1m20s, 2 last copies (3.4 MB) to move",
        "the token of the lease and the secret of the webhook were read",
    ],
)
def test_free_text_keeps_what_a_report_is_about(text: str) -> None:
    assert text == scrubbed(text)


def test_the_manifest_says_what_is_in_and_what_is_not(tmp_path: Path) -> None:
    report = Report(files={"versions.json": "{}"}, left_out={"quotas": "may not list"})
    report.write(tmp_path / "r.zip", namespace="team")

    with zipfile.ZipFile(tmp_path / "r.zip") as archive:
        names = archive.namelist()
        told = json.loads(archive.read("manifest.json"))
    assert ["manifest.json", "versions.json"] == names
    assert ["versions.json"] == told["files"]
    assert {"quotas": "may not list"} == told["could not be read"]
