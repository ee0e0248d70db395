"""What `report` lets out: nothing but what the allow-list names, and no secret in free text."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dask_adaptive.cli.report import FIELDS, GONE, NEVER, OURS, Report, allowed, scrubbed

Json = dict[str, Any]

META: Json = {
    "name": "n", "namespace": "ns", "uid": "u", "creationTimestamp": "t", "generateName": "g",
    "labels": {"dask.org/cluster-name": "l", "team": "l2"},
    "annotations": {
        "dask-adaptive.dev/pin-reason": "a1", "kubectl.kubernetes.io/last-applied": "a2",
        "iam.amazonaws.com/role": "a3",
    },
    "managedFields": [{"manager": "m"}],
    "ownerReferences": [{"kind": "k", "name": "o", "uid": "ou", "apiVersion": "v"}],
}  # fmt: skip
CONTAINER: Json = {
    "name": "c", "image": "i", "command": ["c1"], "args": ["a1", "a2"], "workingDir": "w",
    "env": [
        {"name": "E1", "value": "v1"},
        {"name": "E4", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ],
    "envFrom": [{"secretRef": {"name": "s"}}],
    "resources": {"limits": {"cpu": "r"}},
    "volumeMounts": [{"name": "v", "mountPath": "p"}],
    "lifecycle": {"preStop": {"exec": {"command": ["h"]}}},
    "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "h", "value": "v"}]}},
}  # fmt: skip
POD_SPEC: Json = {
    "nodeName": "n", "serviceAccountName": "s", "imagePullSecrets": [{"name": "p"}],
    "volumes": [{"secret": {"secretName": "s"}}], "containers": [CONTAINER],
    "initContainers": [CONTAINER], "hostAliases": [{"ip": "i", "hostnames": ["h"]}],
    "restartPolicy": "r", "priorityClassName": "p", "schedulerName": "s",
}  # fmt: skip
POD: Json = {
    "kind": "Pod", "metadata": META, "spec": POD_SPEC,
    "status": {
        "phase": "p", "reason": "r", "message": "m", "hostIP": "h", "podIP": "i",
        "podIPs": [{"ip": "i"}], "startTime": "t",
        "conditions": [{"type": "t", "status": "s", "reason": "r", "message": "m"}],
        "containerStatuses": [
            {"name": "n", "image": "i", "imageID": "d", "containerID": "c",
             "state": {"waiting": {"reason": "r", "message": "m"}}}
        ],
    },
}  # fmt: skip
CLUSTER: Json = {
    "kind": "DaskCluster", "metadata": META,
    "spec": {
        "worker": {"replicas": 1, "metadata": META, "spec": POD_SPEC},
        "scheduler": {"spec": POD_SPEC, "service": {"type": "t", "ports": [{"name": "p"}]}},
    },
    "status": {"phase": "p", "other": "o"},
}  # fmt: skip
DEPLOYMENT: Json = {
    "kind": "Deployment", "metadata": META,
    "spec": {"template": {"metadata": META, "spec": POD_SPEC}, "selector": {"matchLabels": {}}},
    "status": {"conditions": [{"type": "t", "message": "m", "lastUpdateTime": "l"}]},
}  # fmt: skip
EVENT: Json = {
    "kind": "Event", "metadata": META, "type": "t", "reason": "r", "message": "m",
    "involvedObject": {"kind": "k", "name": "n", "uid": "u", "fieldPath": "f"},
    "source": {"component": "c", "host": "h"}, "related": {"name": "n"},
}  # fmt: skip

#: Where a text may come out, whatever it is. Hashed ones and scrubbed ones are not among them.
STRUCTURE = {
    "kind", "name", "namespace", "uid", "creationTimestamp", "phase", "reason", "startTime", "type",
    "status", "image", "restartPolicy", "priorityClassName", "cpu", "component", "message",
    "dask.org/cluster-name", "dask-adaptive.dev/pin-reason",
}  # fmt: skip


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from leaves(child, (*path, key))
    elif isinstance(value, (list, tuple)):
        for n, child in enumerate(value):
            yield from leaves(child, (*path, str(n)))
    elif isinstance(value, str):
        yield path, value


def planted(body: Json) -> tuple[Json, dict[str, tuple[str, ...]]]:
    """The object with a text of its own at each place, and the place of each text."""
    # Not a deep copy: what is there twice would stay one.
    marked, places = json.loads(json.dumps(body)), {}
    for n, (path, _) in enumerate(list(leaves(body))):
        at: Any = marked
        for key in path[:-1]:
            at = at[int(key)] if isinstance(at, list) else at[key]
        text = f"planted{n:03d}"
        places[text] = path
        if isinstance(at, list):
            at[int(path[-1])] = text
        else:
            at[path[-1]] = text
    return marked, places


@pytest.mark.parametrize(
    "body", [POD, CLUSTER, DEPLOYMENT, EVENT], ids=["pod", "cluster", "deployment", "event"]
)
def test_nothing_comes_out_but_what_is_listed(body: Json) -> None:
    marked, places = planted(body)
    out = json.dumps(allowed(marked, FIELDS))

    seen = {place for text, place in places.items() if text in out}
    assert {place[-1] for place in seen} <= STRUCTURE
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
    body = {"metadata": META, "spec": spec, "status": {"conditions": conditions}}
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
    assert list(NEVER) == told["never in"]
