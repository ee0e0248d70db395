"""What `explain` prints of a cluster, a worker and a budget: golden files; see `support.golden`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Scheduler

from dask_adaptive.cli import cluster_now
from dask_adaptive.cli.access import Access
from dask_adaptive.cli.explain import Answer, of_budget, of_cluster, of_worker
from dask_adaptive.cli.status_view import views_of
from dask_adaptive.cli.why import Live
from dask_adaptive.kube.api import BUDGETS, SECRETS, KubeApi
from dask_adaptive.kube.objects import parse_policy_object
from dask_adaptive.kube.status_json import history_body
from dask_adaptive.loop.words import ENDS, FREE
from dask_adaptive.model.amounts import read_instant
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import (
    ObservedCluster,
    ObservedScheduler,
    Pin,
    ReliefState,
    Retiring,
    Serialized,
    SerializedFunction,
)
from dask_adaptive.model.plan import Decision
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Quota, Use
from dask_adaptive_agent.agent import install
from support import kube_objects as ko
from support.certificates import Authority, secret, security
from support.golden import compare_text, rendered
from support.kube_bodies import body
from support.kube_server import FORWARDS, stand_in_kubectl
from support.shown_policies import OLD, STATUS, policy
from support.stored_api import ServedApi
from support.tables import table
from support.worlds import busy, cluster, dated, pending, worker

Json = dict[str, Any]

NOW = read_instant("2026-02-01T10:00:00Z") or 0.0

FULL = {
    **STATUS,
    "scheduler": {
        "distributed": "2026.8.0", "agent": "0.1.0",
        "relief": {"idle": "Active"},
    },
    "workers": [
        *STATUS["workers"],
        {"name": "w2", "state": "Surging", "reason": "TaskQuota", "message": "20"},
        {"name": "w10", "state": "Active", "reason": "NoRecipient", "message": "refused lately"},
    ],
}  # fmt: skip

SHUFFLE, CLIENT = Pin("shuffle", "ab12", "", 60.0, 3600.0), Pin("client", "nb", "a look", 60.0)

WORKERS = [
    worker("w1", pins=(SHUFFLE,), pod="w1-x"),
    busy("w2", pins=(SHUFFLE, CLIENT), pod="w2-x", node="n1", use=Use(runs=15), drift="image"),
    busy("w4"),
    worker("w5", idle_s=20.0),
    worker("w6", closable=False),
    worker("w7", actors=True, sole_bytes=3),
    worker("w8", sole_bytes=48_000_000),
    worker("w9", retiring=Retiring(message="2 results to move")),
    worker("w10"),
    pending("w11", waiting="Unschedulable: 0/3 nodes are free"),
    worker("w12", stopped="was given 20 of 20 runs", stopped_for=Quota.TASKS),
    worker("w13", annotation_problem="expires-at says x"),
]

FUNCTIONS = (SerializedFunction("etl.step", 4_000, 12.0, 5e7, 57_000),)

SCHEDULER: dict[str, Any] = {
    "relief": (
        ReliefState("idle", "Active", "", {"calls_saved": 12_000}),
        ReliefState("host", "Failed", "WorkerState has no host"),
    ),
    "serialized": Serialized(5_000, 12.34, 57_000_000, 0.31, FUNCTIONS),
}

ALL = cluster(WORKERS, **SCHEDULER)
PINS = {w.name: w.process.pins for w in WORKERS}
ALL = replace(
    ALL,
    scheduler=replace(
        ALL.scheduler, workers=tuple(replace(w, pins=PINS[w.name]) for w in ALL.scheduler.workers)
    ),
)

DECISIONS = [
    Decision(NOW + at, "etl-default", 2, 8, 6, Reason.LOAD_INCREASED, "8 wanted", outcome)
    for at, outcome in ((-600.0, "Done"), (-540.0, "Failed: the quota is used up"))
]


def live(status: Any = FULL, observed: ObservedCluster | None = None, unknown: str = "") -> Live:
    (view,) = views_of(
        [policy(status, idleTimeout="60s", recycle={"tasks": {"max": 20}, "lifetime": {}})]
    )
    return Live(view, dated(observed or ALL, NOW), unknown)


def text(answer: Answer) -> str:
    return rendered(answer.lines(), colours=False)


def golden(name: str, answer: Answer) -> None:
    compare_text(f"explain-{name}.txt", text(answer))


def test_a_cluster_is_golden() -> None:
    golden("cluster", of_cluster(live(), DECISIONS))


@table(
    "seen, said",
    no_kubectl=(live(observed=cluster(WORKERS), unknown="no kubectl"), "not asked: no kubectl"),
    paused=(live({**OLD, "reason": "Paused", "message": "nothing is scaled"}), "because of Paused"),
    none_too_many=(
        live({"connected": 1, "desiredReplicas": 1}, cluster([worker("w1")])), "none to remove"),
    not_looked_at=(live(None, cluster([])), "not processed it yet"),
)  # fmt: skip
def test_a_cluster_of_which_little_is_known(seen: Live, said: str) -> None:
    assert said in text(of_cluster(seen, []))


def test_a_pinned_worker_is_golden() -> None:
    golden("worker", of_worker("w2", live(), ends=False))


@table(
    "name, seen, ends, said",
    idle=("w5", live(), False, "IdleGrace"),
    blind=("w1", live(unknown="no answer"), False, "not asked: no answer"),
    its_pod_is_deleted=("w9", live(), True, "PodEnding: 2 results to move"),
)
def test_a_worker_in_a_word(name: str, seen: Live, ends: bool, said: str) -> None:
    assert said in text(of_worker(name, seen, ends=ends))


def test_every_worker_says_what_ends_it() -> None:
    found = {stay.worker: stay for stay in live().stays()}

    assert sorted(found) == sorted(w.name for w in WORKERS)
    assert {w.name for w in WORKERS if not found[w.name].ends} <= {"w11", "w12", "w13"}
    assert ("refused lately", "in 40s") == (found["w10"].message, found["w5"].ends)


def test_what_ends_is_known_of_nothing_but_reasons() -> None:
    assert ENDS.keys() <= {FREE, *(reason.value for reason in Reason)}


BUDGET = body(BUDGETS, "data", {"limits": {"workers": 200, "memory": "1Ti"}})
GROUP = {"namespace": "etl", "name": "nightly-default", "cluster": "nightly"}
SHARED = {
    "held": {"workers": "190 workers", "memory": "708 GiB memory"},
    "groups": [
        {**GROUP, "held": 24, "wanted": 40, "allowed": 30, "waitingSince": "2026-02-01T10:00:00Z"},
        {**GROUP, "cluster": "b", "name": "b-default", "held": 166, "wanted": 99, "allowed": 170},
    ],
    "conditions": [
        {"type": "Ready", "status": "True", "message": "2 share 200 workers; 1 waits"}
    ],
}  # fmt: skip


def test_a_budget_is_golden() -> None:
    golden("budget", of_budget({**BUDGET, "status": SHARED}))


@pytest.fixture
def etl(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Namespace `ns` with cluster `etl` and its worker `w1`, without a way to its scheduler."""
    limited = ko.policy()
    limited["spec"]["recycle"] = {"lifetime": {"max": "12h"}, "tasks": {"max": 20}}
    api.add(limited, ko.cluster(), ko.group(), ko.deployment(), ko.pod(), BUDGET)
    kept = history_body(parse_policy_object(limited), DECISIONS)
    api.add({"kind": "ConfigMap", **kept})


@pytest.mark.usefixtures("etl")
@pytest.mark.parametrize(
    ("subject", "about"),
    [
        ("etl", "DaskCluster etl in ns"),
        ("dap/etl", "DaskCluster etl in ns"),
        ("daskcluster.kubernetes.dask.org/etl", "DaskCluster etl in ns"),
        ("worker/w1", "worker w1"),
        ("pod/w1-hash-x", "worker w1"),
        ("dab/data", "AdaptiveBudget data"),
    ],
)
def test_a_subject_is_named_as_kubectl_does(subject: str, about: str, run: Any) -> None:
    told = json.loads(run("explain", subject, "-n", "ns", "-o", "json").output)

    assert about == told["about"].partition(",")[0]


@pytest.mark.usefixtures("etl")
def test_without_the_scheduler_what_kubernetes_knows_is_told(run: Any) -> None:
    told = json.loads(run("explain", "worker/w1", "-n", "ns", "-o", "json").output)
    of_cluster = json.loads(run("explain", "etl", "-n", "ns", "-o", "json").output)

    assert ["lifetime"] == [row["quota"] for row in told["quotas"]]
    assert "kubectl" in told["facts"]["the scheduler was not asked"]
    assert [d.outcome for d in DECISIONS] == [row["outcome"] for row in of_cluster["decisions"]]


@pytest.mark.parametrize(
    ("subject", "code"), [("nobody", 1), ("worker/nobody", 1), ("budget/nobody", 1), ("node/n1", 2)]
)
def test_what_is_not_there(subject: str, code: int, run: Any) -> None:
    assert code == run("explain", subject).exit_code


@table(
    "script, expected",
    refused=("echo no such service >&2; exit 1", "no such service"),
    nobody_there=(
        # It is refused, and tried again, until the time is over: one of both is told.
        "echo 'Forwarding from 127.0.0.1:9 -> 8786'; exec sleep 30", "tcp://127.0.0.1:9 "),
    no_kubectl=(None, "kubectl is not on the PATH"),
)  # fmt: skip
async def test_a_scheduler_that_cannot_be_asked_is_a_sentence(
    access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None,
    expected: str,
) -> None:  # fmt: skip
    if script:
        stand_in_kubectl(tmp_path, script, monkeypatch)
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    seen = await asked(access)

    assert expected in seen.message


async def asked(access: Access) -> ObservedScheduler:
    api = await KubeApi.connect(kubeconfig=access.kubeconfig)
    try:
        return await cluster_now.observe_scheduler(api, ClusterKey("ns", "etl"), access)
    finally:
        await api.close()


@pytest.fixture
def access(api: ServedApi, tmp_path: Path) -> Access:
    return Access(kubeconfig=api.kubeconfig(tmp_path))


@table(
    "spec, status",
    the_policys=({"scheduler": {"tls": {"secretName": "certs"}}}, {}),
    the_operators_default=({}, {"scheduler": {"tlsSecretName": "certs"}}),
)
async def test_a_scheduler_that_takes_tls_only_is_asked_with_the_secret_of_the_operator(
    spec: dict[str, Any], status: dict[str, Any], api: ServedApi, access: Access,
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
        stand_in_kubectl(tmp_path, FORWARDS.format(port=port), monkeypatch)
        assert (await asked(access)).agent

        api.store.remove(SECRETS, "ns", "certs")
        seen = await asked(access)
        assert "there is no Secret ns/certs" in seen.message
