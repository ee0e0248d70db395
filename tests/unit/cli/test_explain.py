"""What `explain` says of a cluster, of a worker and its quotas, and of a pod."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from distributed import Scheduler

from dask_adaptive.cli import cluster_now
from dask_adaptive.cli.access import Access
from dask_adaptive.cli.explain import quota_facts
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import (
    Clocks,
    Cordon,
    ObservedScheduler,
    ReliefState,
    Serialized,
    SerializedFunction,
)
from dask_adaptive.model.recycle import LifetimeQuota, Quota, QuotaNotes, Recycle, TaskQuota, Use
from dask_adaptive_agent.loading.attach import install
from support import kube_objects as ko
from support.canned_api import CannedApi
from support.certificates import Authority, secret, security
from support.shown_policies import STATUS, policy
from support.worlds import POLICY, busy

Json = dict[str, Any]

FULL = {
    **STATUS,
    "pins": [{"source": "manual", "workers": 1}],
    "recycled": {"TaskQuota": 3},
    "replacing": [{"worker": "w1", "reason": "TaskQuota", "state": "Surging", "message": "20"}],
    "scheduler": {
        "distributed": "2026.8.0", "agent": "0.1.0",
        "relief": [{"name": "idle", "state": "Active", "message": ""}],
    },
}  # fmt: skip


def pod(name: str, **metadata: Any) -> Json:
    """Of worker `w1` if it is called `w1-x`."""
    owner = {"kind": "ReplicaSet", "name": f"{name.removesuffix('-x')}-5d4f"}
    labels = {"dask.org/cluster-name": "etl", "pod-template-hash": "5d4f"}
    meta = {"name": name, "namespace": "team", "labels": labels, "ownerReferences": [owner]}
    return {"kind": "Pod", "metadata": {**meta, **metadata}, "status": {"phase": "Running"}}


def scheduler(monkeypatch: pytest.MonkeyPatch, seen: ObservedScheduler) -> None:
    async def look(*_: Any) -> ObservedScheduler:
        return seen

    monkeypatch.setattr(cluster_now, "observe_scheduler", look)


def test_a_cluster(api: CannedApi, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its status, its scheduler as it is now, and its events."""
    api.add(policy(FULL), {
        "kind": "Event", "metadata": {"name": "e", "namespace": "team"}, "lastTimestamp": "T",
        "involvedObject": {"name": "etl"}, "reason": "Pinned", "message": "held", "count": 2,
    })  # fmt: skip
    functions = (SerializedFunction("etl.step", 4_000, 12.0, 5e7, 57_000),)
    live = ObservedScheduler(
        agent="1.0",
        relief=(
            ReliefState("idle", "Active", "", (("calls", 12_000),)),
            ReliefState("host", "Failed", "WorkerState has no host"),
        ),
        serialized=Serialized(5_000, 12.34, 57_000_000, 0.31, functions),
    )
    scheduler(monkeypatch, live)
    text = run("explain", "etl").output

    for said in (
        "DaskCluster etl, under AdaptivePolicy etl-policy: Auto",
        "  Underutilized: 8 workers, 5 desired: 1 idle ones leave",
        "  wanted by the load: 3",
        "  held by manual: 1",
        "  stay: Pinned: 2",
        "  pending: Unschedulable: 2",
        "  recycled: TaskQuota: 3",
        "  relief idle: Active (calls 12,000)",
        "  relief host: Failed: WorkerState has no host",
        "  serializing: 12.3 s and 57.0 MB for 5,000 tasks; 31% of the scheduler's CPU time",
        "etl.step   4,000   12.00     50.0 MB   57.0 kB",
        "w1       Active     Pinned     pinned by shuffle ab12",
        "  T Pinned: held (2 times)",
    ):
        assert said in text, said
    assert 1 == text.count("relief idle"), "what is live stands instead of what was"
    told = json.loads(run("explain", "etl-policy", "-o", "json").output)
    assert ("DaskCluster etl", "Auto") == (told["about"], told["state"])


def test_a_cluster_without_its_scheduler(api: CannedApi, run: Any) -> None:
    api.add(policy(FULL), policy(name="new", clusterRef={"name": "new"}))

    assert "what reliefs do: not known: kubectl is not on the PATH" in run("explain", "etl").output
    assert "relief idle: Active" in run("explain", "etl").output, "as it was seen last"
    assert "is it running?" in run("explain", "new").output


@pytest.mark.parametrize("name", ["w1", "w1-x"])
@pytest.mark.parametrize("has_pod", [True, False])
def test_a_worker_that_stays(name: str, has_pod: bool, api: CannedApi, run: Any) -> None:
    api.add(policy(FULL), *([pod("w1-x", annotations={"dask-adaptive.dev/pin": "4h"})] * has_pod))
    text = run("explain", name).output

    assert text.startswith(
        "worker w1, under AdaptivePolicy etl-policy: Active\n  Pinned: pinned by"
    )
    assert "held by shuffle ab12: until 2026-02-01T11:00:00Z at the latest" in text
    assert "held by client notebook: until it is released (a look)" in text
    assert "is to be replaced: Surging: TaskQuota: 20" in text
    assert ("dask-adaptive.dev/pin: 4h" in text) is (has_pod and name == "w1-x")


@pytest.mark.parametrize(
    ("made", "state", "said"),
    [
        pytest.param(pod("w2-x"), "Active", "in service", id="nothing-to-say"),
        pytest.param(
            {**pod("w2-x"), "status": {"phase": "Pending"}}, "Pending", "", id="not-started"
        ),
        pytest.param(
            pod("w2-x", deletionTimestamp="2026-01-31T18:00:00Z"), "Going",
            "PodEnding: its pod is being deleted", id="deleted",
        ),
        pytest.param(
            pod("w1-x", deletionTimestamp="2026-01-31T18:00:00Z"), "Going",
            "PodEnding: pinned by shuffle ab12", id="deleted-with-a-row",
        ),
    ],
)  # fmt: skip
def test_a_pod(made: Json, state: str, said: str, api: CannedApi, run: Any) -> None:
    api.add(policy(FULL), made)
    result = run("explain", made["metadata"]["name"], "-o", "json")
    answer = json.loads(result.output)

    assert state == answer["state"]
    assert said in f"{answer['reason']}: {answer['message']}"


def test_what_is_not_there(api: CannedApi, run: Any) -> None:
    api.add(policy(FULL), pod("w-x", labels={"dask.org/cluster-name": "another"}))

    for name in ("nobody", "w-x"):
        result = run("explain", name)
        assert (1, True) == (result.exit_code, "is under a policy" in result.output)


def test_a_pod_has_quotas_that_need_no_scheduler(api: CannedApi, run: Any) -> None:
    limited = policy(FULL, recycle={"lifetime": {"max": "12h"}, "tasks": {"max": 20}})
    limited["metadata"]["namespace"] = "ns"
    api.add(limited, ko.cluster(), ko.group(), ko.deployment(), ko.pod())
    text = run("explain", "-n", "ns", "w1-hash-x").output

    assert "quota lifetime: " in text
    assert " old, of 12h (" in text
    assert "quota tasks" not in text
    assert "counts are missing: kubectl is not on the PATH" in text


def test_each_quota_of_a_worker_and_what_else_there_is_to_say_about_its_replacement() -> None:
    worker = busy(
        "w", use=Use(runs=15), pod_age_s=900.0, drift="image", recycle_asked="annotation",
        cordon=Cordon(Quota.TASKS, "was given 20 of 20 runs"),
        quota_notes=QuotaNotes(problem="recycle-tasks says x"),
    )  # fmt: skip
    limited = Recycle(tasks=TaskQuota(20), lifetime=LifetimeQuota(max_s=3600.0))
    policy = dataclasses.replace(POLICY, recycle=limited)
    facts = dict(quota_facts(worker, policy, Clocks()))

    assert "15 tasks run, of 20 (75%)" == facts["quota tasks"]
    assert "15m old, of 1h (25%)" == facts["quota lifetime"]
    assert {"was given 20 of 20 runs", "image", "annotation", "recycle-tasks says x"} <= set(
        facts.values()
    )


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param("echo no such service >&2; exit 1", "no such service", id="refused"),
        pytest.param(
            # It is refused, and tried again, until the time is over: one of both is told.
            "echo 'Forwarding from 127.0.0.1:9 -> 8786'; exec sleep 30", "tcp://127.0.0.1:9 ",
            id="nobody-there",
        ),
        pytest.param(None, "kubectl is not on the PATH", id="no-kubectl"),
    ],
)  # fmt: skip
async def test_a_scheduler_that_cannot_be_asked_is_a_sentence(
    access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None,
    expected: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if script else str(tmp_path))
    if script:
        stand_in_for_kubectl(tmp_path, script)
    seen = await cluster_now.observe_scheduler(ClusterKey("ns", "etl"), access)

    assert expected in seen.message


def stand_in_for_kubectl(folder: Path, script: str) -> None:
    program = folder / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.fixture
def access(api: CannedApi, tmp_path: Path) -> Access:
    return Access(kubeconfig=api.kubeconfig(tmp_path))


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        pytest.param({"scheduler": {"tls": {"secretName": "certs"}}}, {}, id="the-policys"),
        pytest.param({}, {"scheduler": {"tlsSecretName": "certs"}}, id="the-operators-default"),
    ],
)
async def test_a_scheduler_that_takes_tls_only_is_asked_with_the_secret_of_the_operator(
    spec: dict[str, Any], status: dict[str, Any], api: CannedApi, access: Access,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    authority, policy = Authority(), ko.policy()
    policy["spec"] |= spec
    api.add({**policy, "status": status}, secret("certs", authority.tls(), namespace="ns"))
    async with Scheduler(  # type: ignore[no-untyped-call]
        protocol="tls", security=security(authority.tls()), port=0, dashboard=False
    ) as s:
        install(s)
        port = s.address.rpartition(":")[2]
        forward = f"echo 'Forwarding from 127.0.0.1:{port} -> 8786'; exec sleep 30"
        stand_in_for_kubectl(tmp_path, forward)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        assert (await cluster_now.observe_scheduler(ClusterKey("ns", "etl"), access)).agent

        api.objects.popitem()
        seen = await cluster_now.observe_scheduler(ClusterKey("ns", "etl"), access)
        assert "there is no Secret ns/certs" in seen.message
