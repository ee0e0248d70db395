"""The CRD: defaults, refusals with sentences that help, columns; and the examples."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dask_adaptive.kube.annotated import wanted_spec
from dask_adaptive.kube.objects import parse_cluster
from dask_adaptive.kube.status_json import recycles_of, status_json
from dask_adaptive.loop.status import GroupRow, PauseRow, Status
from dask_adaptive.model.history import Decision, Step
from dask_adaptive.model.observed import ConfigProblem, ReliefState
from dask_adaptive.model.policy import InvalidPolicy, Policy, parse_policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import GpuQuota, Recycle, Replacing
from dask_adaptive.model.scheduler_spec import RELIEFS
from support.kube_server import ROOT, Kubectl
from support.policies import SCALING_MISTAKES, SCALING_NONSENSE, SCALING_TAKEN

#: Of every kind of value, and with keys that are no names of fields.
CONFIG = {
    "distributed": {
        "scheduler": {"worker-ttl": "10m", "allowed-failures": 5, "worker-saturation": 1.5},
        "logging": {"distributed.scheduler": "debug"},
        "comm": {"compression": "None", "require-encryption": False},
        "nanny": {"environ": {"OMP_NUM_THREADS": "2"}},
    },
    "distributed.scheduler.blocked-handlers": ["a", {"b": [1]}],
    "jobqueue": {},
}

REPLACING = sorted(reason.value for reason in Reason if reason.replaces)
EXAMPLES = sorted((ROOT / "manifests/examples").glob("*.yaml"))


def policy(name: str = "p", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "dask-adaptive.dev/v1alpha1",
        "kind": "AdaptivePolicy",
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "etl"}, "maxReplicas": 5, **spec},
    }


@pytest.fixture(scope="module")
def server(admin: Kubectl) -> Iterator[Kubectl]:
    """One namespace for all objects that are refused: nothing of them stays."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin("create", "namespace", name)
    yield admin.within(name)
    admin("delete", "namespace", name, "--wait=false")


def test_defaults_are_those_of_the_model(kubectl: Kubectl) -> None:
    kubectl.apply(policy())
    stored = kubectl.json("get", "dap", "p")["spec"]

    assert Policy(cluster="etl", maximum=5) == parse_policy(stored)
    assert "60s" == stored["idleTimeout"]
    assert {"enabled": True, "timeout": "1h"} == stored["pins"]["shuffle"]
    assert {"enabled": True, "maxDuration": "4h"} == stored["pins"]["client"]
    assert {"enabled": False, "maxDelay": "10m"} == stored["evictionGuard"]
    assert {
        "nodeSignals": "Drain",
        "hints": True,
        "budgets": [{"workers": "25%"}],
        "windows": [],
    } == stored["disruption"]
    assert {"type": "Surge", "maxSurge": 1, "readyTimeout": "10m"} == stored["recycle"]["strategy"]
    assert {"relief": dict.fromkeys(RELIEFS, "Auto")} == stored["scheduler"]
    assert {"source": "StartupAware", "duration": "5s"} == stored["target"]
    rise = {"stabilizationWindow": "0s", "selectPolicy": "Max", "policies": [], "tolerance": "0%"}
    assert rise == stored["behavior"]["scaleUp"]
    fall = {k: v for k, v in rise.items() if k != "stabilizationWindow"}
    assert {**fall, "delayAfterScaleUp": "0s"} == stored["behavior"]["scaleDown"]
    assert [{"action": "Nothing"}, []] == [stored["idle"], stored["schedules"]]
    assert {"failureThreshold": 3, "behavior": "Hold"} == stored["fallback"]
    assert ["5m", "45%"] == [stored["unschedulableTimeout"], stored["maxUnready"]]
    assert {"waitForWorkers": "Auto", "maxWait": "60s"} == stored["shuffle"]


def test_defaults_of_a_groups_recycle_are_those_of_the_model(kubectl: Kubectl) -> None:
    group = {"name": "etl-gpu", "recycle": {"gpuMemory": {"hard": "90%"}}}
    kubectl.apply(policy(workerGroups=[group]))
    stored = parse_policy(kubectl.json("get", "dap", "p")["spec"])

    assert {"etl-gpu": Recycle(gpu=GpuQuota(hard=0.9))} == stored.group_recycle


#: What the server must refuse, and words of the sentence with which it does.
NONSENSE: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"minReplicas": 9},
        ["spec.minReplicas (9)", "spec.maxReplicas (5)", "lower the one or raise the other"],
    ),
    ({"minReplicas": -1}, ["spec.minReplicas", "greater than or equal to 0"]),
    ({"maxReplicas": "many"}, ["spec.maxReplicas", "integer"]),
    ({"idleTimeout": "-5s"}, ["spec.idleTimeout must be a duration such as 90s"]),
    ({"idleTimeout": "5"}, ["spec.idleTimeout must be a duration such as 90s"]),
    ({"idleTimeout": 60}, ["spec.idleTimeout", "string"]),
    ({"target": {"duration": "soon"}}, ["spec.target.duration must be a duration such as 5s"]),
    ({"target": {"duration": "0s"}}, ["spec.target.duration must be longer than 0s"]),
    ({"mode": "auto"}, ["spec.mode", '"Auto", "Advise", "Paused"']),
    ({"retirement": {"onTimeout": "Kill"}}, ["spec.retirement.onTimeout", '"Abort", "Force"']),
    ({"retirement": {"maxConcurrent": 0}}, ["spec.retirement.maxConcurrent"]),
    ({"retirement": {"gracePeriod": "1d"}}, ["spec.retirement.gracePeriod must be a duration"]),
    ({"pins": {"shuffle": {"timeout": "x"}}}, ["spec.pins.shuffle.timeout must be"]),
    ({"pins": {"manual": {"maxDuration": "x"}}}, ["spec.pins.manual.maxDuration must be"]),
    ({"pins": {"client": {"maxDuration": "1d"}}}, ["spec.pins.client.maxDuration must be"]),
    ({"evictionGuard": {"maxDelay": "soon"}}, ["spec.evictionGuard.maxDelay must be a dur"]),
    ({"evictionGuard": {"enabled": "yes"}}, ["spec.evictionGuard.enabled", "boolean"]),
    ({"disruption": {"nodeSignals": "drain"}}, ["nodeSignals", '"Drain", "Ignore"']),
    ({"disruption": {"hint": True}}, ["unknown field", "spec.disruption.hint"]),
    ({"idelTimeout": "5s"}, ["unknown field", "spec.idelTimeout"]),
    ({"workerGroups": [{"recycle": {}}]}, ["spec.workerGroups[0].name", "Required"]),
    (
        {"workerGroups": [{"name": "g", "recycle": {"maxPerHour": 3}}]},
        ["unknown field", "spec.workerGroups[0].recycle.maxPerHour"],
    ),
    (
        {"workerGroups": [{"name": "g", "recycle": {"tasks": {"jitter": "much"}}}]},
        ["spec.workerGroups[0].recycle.tasks.jitter", "must be a percentage from 0% to 100%"],
    ),
    ({"recycle": {"tasks": {"max": -1}}}, ["spec.recycle.tasks.max", "or equal to 0"]),
    ({"recycle": {"lifetime": {"walltime": True}}}, ["recycle.lifetime.walltime needs recycle.li"]),
    ({"recycle": {"lifetime": {"max": "0s"}}}, ["recycle.lifetime.max must be longer than"]),
    ({"recycle": {"lifetime": {"jitter": "101%"}}}, ["recycle.lifetime.jitter must be a perc"]),
    (
        {"recycle": {"memory": {"soft": "92%", "hard": "80.5%"}}},
        ["recycle.memory.soft must be lower than recycle.memory.hard", "raise the other"],
    ),
    (
        {"recycle": {"gpuMemory": {"soft": "9%", "hard": "9%"}}},
        ["recycle.gpuMemory.soft must be lower than recycle.gpuMemory.hard"],
    ),
    ({"recycle": {"memory": {"hard": "0%"}}}, ["recycle.memory.hard must be a percentage of"]),
    ({"recycle": {"memory": {"leakRate": "lots"}}}, ["leakRate must be a quantity", "500Mi"]),
    ({"recycle": {"memory": {"leakRate": "0.0Gi"}}}, ["leakRate must be a quantity"]),
    ({"recycle": {"memory": {"leakWindow": "59s"}}}, ["leakWindow must be at least 1m"]),
    ({"recycle": {"memory": {"measure": "RSS"}}}, ["measure", '"Unmanaged", "Process"']),
    ({"recycle": {"failures": {"patterns": [""]}}}, ["spec.recycle.failures.patterns[0]"]),
    ({"recycle": {"failures": {"patterns": ["*"] * 33}}}, ["patterns", "at most 32"]),
    ({"recycle": {"failures": {"patterns": ["*", "CUDA"]}}}, ["patterns[1]", 'write "*CUDA error']),
    ({"recycle": {"failures": {"patterns": [r"*\d+*"]}}}, ["patterns[0]", "are globs, not regu"]),
    ({"recycle": {"failures": {"patterns": ["^*"]}}}, ["patterns[0]", "are globs, not regular"]),
    ({"retirement": {"onLifetime": "Close"}}, ["retirement.onLifetime", '"Drain", "Stock"']),
    ({"recycle": {"selection": {"by": ["Age"]}}}, ["selection.by[0]", '"Duration"']),
    ({"recycle": {"selection": {"deviations": 0}}}, ["selection.deviations", "greater than 0"]),
    ({"recycle": {"maxPerHour": "some"}}, ["maxPerHour must be a whole number of at least 0"]),
    ({"recycle": {"maxPerHour": -1}}, ["maxPerHour must be a whole number of at least 0"]),
    ({"recycle": {"strategy": {"maxSurge": 0}}}, ["maxSurge must be a whole number of at le"]),
    ({"recycle": {"strategy": {"maxSurge": "0%"}}}, ["or a percentage of more than 0%"]),
    ({"recycle": {"strategy": {"type": "Now"}}}, ["strategy.type", '"Surge", "InPlace"']),
    ({"recycle": {"strategy": {"readyTimeout": "0s"}}}, ["readyTimeout must be longer than"]),
    (
        {"disruption": {"budgets": [{"workers": "half"}]}},
        ["spec.disruption.budgets[0].workers", "or a percentage"],
    ),
    ({"disruption": {"budgets": [{}]}}, ["spec.disruption.budgets[0].workers", "Required"]),
    (
        {"disruption": {"budgets": [{"workers": 1, "reasons": ["Idle"]}]}},
        ["spec.disruption.budgets[0].reasons[0]", '"TaskQuota"'],
    ),
    (
        {"disruption": {"windows": [{"schedule": "daily", "duration": "2h"}]}},
        ["windows[0].schedule", "five fields of cron"],
    ),
    (
        {"disruption": {"windows": [{"schedule": "0 2 * * *"}]}},
        ["spec.disruption.windows[0].duration", "Required"],
    ),
    (
        {"scheduler": {"relief": {"pickling": "Off"}}},
        ["spec.scheduler.relief.pickling", '"Auto", "Shared", "Disabled"'],
    ),
    ({"scheduler": {"relief": {"host": "Shared"}}}, ["relief.host", '"Auto", "Disabled"']),
    ({"scheduler": {"relief": {"pickle": "Auto"}}}, ["unknown field", "relief.pickle"]),
    ({"scheduler": {"config": "worker-ttl"}}, ["spec.scheduler.config", "object"]),
    ({"scheduler": {"config": {"distributed": 1}}}, ["config.distributed", "object"]),
    (
        {"scheduler": {"config": {"distributed": {"scheduler": {"preload": ["x"]}}}}},
        ["must not have distributed.scheduler.preload", "in the DaskCluster instead"],
    ),
    (
        {"scheduler": {"config": {f"k{i}": {"a": 1} for i in range(201)}}},
        ["spec.scheduler.config", "at most 64"],
    ),
    ({"restartAt": "tomorrow"}, ["spec.restartAt", "date-time"]),
    ({"restartAt": "2026-01-31T18:00:00"}, ["spec.restartAt", "date-time"]),
    ({"clusterRef": {"name": ""}}, ["spec.clusterRef.name"]),
    ({"maxReplicas": None}, ["spec.maxReplicas", "Required"]),
]


@pytest.mark.parametrize(("spec", "words"), [*NONSENSE, *SCALING_MISTAKES])
def test_nonsense_is_refused_with_a_sentence(
    server: Kubectl, spec: dict[str, Any], words: list[str]
) -> None:
    said = server.refusal(policy(**spec))

    assert all(word in said for word in words), said


@pytest.mark.parametrize(("spec", "field", "sentence"), SCALING_NONSENSE)
def test_nonsense_about_the_number_is_refused_in_the_parsers_words(
    server: Kubectl, spec: dict[str, Any], field: str, sentence: str
) -> None:
    """`test_policy_scaling.py` asserts the same of the parser."""
    said = server.refusal(policy(**spec))

    assert f"{field}:" in said, said
    assert sentence in said


def test_what_the_server_refuses_a_rehearsal_refuses_too() -> None:
    for duration in ("-5s", "5", "1d", ""):
        with pytest.raises(ValueError, match=r"spec\.idleTimeout"):
            parse_policy(policy(idleTimeout=duration)["spec"])
    for spec, _ in NONSENSE:
        with pytest.raises(InvalidPolicy):
            parse_policy(policy(**spec)["spec"])


@pytest.mark.parametrize(
    "spec",
    [
        {"recycle": {"maxPerHour": "2.5%", "strategy": {"maxSurge": "25%"}}},
        {"recycle": {"maxPerHour": 0, "strategy": {"maxSurge": 3}}},
        {"recycle": {"memory": {"soft": "80.5%", "hard": "100%", "leakRate": 1000}}},
        {"recycle": {"memory": {"leakRate": "0.5Gi"}, "tasks": {"jitter": "100%"}}},
        {"disruption": {"budgets": [], "windows": []}},
        {"workerGroups": [{"name": "g"}, {"name": "h", "recycle": {}}]},
        {"disruption": {"budgets": [{"workers": 0, "reasons": REPLACING}]}},
        {"disruption": {"windows": [{"schedule": "*/5 0-6 1,15 * MON-FRI", "duration": "2h"}]}},
        {"restartAt": "2026-01-31T18:00:00+01:00"},
        {"scheduler": {"relief": dict.fromkeys(RELIEFS, "Disabled")}},
        {"scheduler": {"config": CONFIG}},
        *SCALING_TAKEN,
    ],
)
def test_the_server_and_the_parser_take_the_same(kubectl: Kubectl, spec: dict[str, Any]) -> None:
    written = policy(**spec)
    kubectl.apply(written)

    assert parse_policy(written["spec"]) == parse_policy(kubectl.json("get", "dap", "p")["spec"])


@pytest.mark.parametrize("how", [(), ("--server-side",)], ids=["client", "server"])
def test_none_is_a_null_that_kubectl_does_not_leave_out(
    kubectl: Kubectl, how: tuple[str, ...]
) -> None:
    """For Dask it is a value: no time limit, no compression."""
    for value, expected in (("10m", "10m"), ("None", None)):
        wanted = policy(scheduler={"config": {"distributed": {"scheduler": {"worker-ttl": value}}}})
        kubectl("apply", *how, "-f", "-", stdin=yaml.safe_dump(wanted))
        spec = kubectl.json("get", "dap", "p")["spec"]

        (setting,) = parse_policy(spec).scheduler.config
        assert expected == setting.value


def test_a_status_says_what_a_scheduler_is_relieved_of(kubectl: Kubectl) -> None:
    kubectl.apply(policy())
    status = Status(
        relief=(ReliefState("idle", "Active"), ReliefState("host", "Failed", "why")),
        config=(ConfigProblem("a.b", "Unknown", "a typo"),),
    )
    written = status_json(status, generation=1, before={}, now="2026-02-01T00:00:00Z")
    patch = json.dumps({"status": written})
    kubectl("patch", "dap", "p", "--subresource=status", "--type=merge", "-p", patch)

    assert written == kubectl.json("get", "dap", "p")["status"]


def test_the_cluster_of_a_policy_cannot_be_changed(kubectl: Kubectl) -> None:
    kubectl.apply(policy())
    said = kubectl.refusal(policy(clusterRef={"name": "other"}))

    assert "delete this policy and create one for the other cluster" in said


def test_columns(kubectl: Kubectl) -> None:
    kubectl.apply(policy())
    head = kubectl("get", "dap").splitlines()[0].split()

    assert head[1:8] == "CLUSTER MODE REPLICAS DESIRED PENDING IDLE PINNED".split()  # noqa: SIM905
    assert head[8:] == ["RETIRING", "READY", "REASON", "AGE"]
    assert "p " in kubectl("get", "dask")
    wide = kubectl("get", "dap", "-o", "wide").splitlines()[0].split()
    assert [*head, "WANTED", "MESSAGE", "DISTRIBUTED"] == wide


def test_a_status_says_what_was_decided_for_each_group(kubectl: Kubectl) -> None:
    kubectl.apply(policy())
    step = Step("cap", 2, Reason.MAX_PENDING, "2 workers are on their way")
    row = GroupRow("etl-gpu", 1, 2, 3, 1, 0, Reason.NEEDED_RESOURCES, "6 tasks need GPU=1")
    decision = Decision(
        1.8e9, "etl-gpu", 1, 3, 2, Reason.MAX_PENDING, "3 wanted", "Done",
        inputs={"queued": 6.0, "arrival_s": 12.5}, steps=(step,),
    )  # fmt: skip
    pause = PauseRow("scale-in is paused", until=1.8e9)
    status = Status(groups=(row,), last_decision=decision, pause=pause)
    written = status_json(status, generation=1, before={}, now="2026-02-01T00:00:00Z")
    patch = json.dumps({"status": written})
    kubectl("patch", "dap", "p", "--subresource=status", "--type=merge", "-p", patch)

    assert written == kubectl.json("get", "dap", "p")["status"]


def test_explain_describes_every_field(kubectl: Kubectl) -> None:
    told = kubectl("explain", "adaptivepolicies.spec", "--recursive")

    assert "maxConcurrent" in told
    fields = ("retirement", "evictionGuard", "disruption.budgets", "pins.client", "restartAt")
    fields += ("scheduler.relief.pickling", "scheduler.config")
    fields += ("behavior.scaleUp.maxPending", "behavior.scaleDown.policies.period", "idle.after")
    fields += ("schedules.workerGroup", "fallback.replicas", "maxUnready", "workerGroups.priority")
    for field in (*fields, "recycle.memory.soft", "workerGroups.recycle.tasks.max"):
        assert "<no description>" not in kubectl("explain", f"adaptivepolicies.spec.{field}")


def test_a_status_says_who_holds_which_workers(kubectl: Kubectl) -> None:
    kubectl.apply(policy())
    row = {
        "source": "client",
        "owner": "Client-1",
        "reason": "a look",
        "until": "2026-02-01T00:00:00Z",
        "workers": ["a", "b"],
        "count": 12,
    }
    patch = json.dumps({"status": {"heldBy": [row]}})
    kubectl("patch", "dap", "p", "--subresource=status", "--type=merge", "-p", patch)

    assert [row] == kubectl.json("get", "dap", "p")["status"]["heldBy"]


def test_a_status_says_who_is_replaced(kubectl: Kubectl) -> None:
    kubectl.apply(policy())
    row = Replacing("w1", Reason.TASK_QUOTA, "20 of 20 tasks run", "Due")
    status = Status(recycled=((Reason.TASK_QUOTA, 3),), recent=(1.8e9,), replacing=(row,))
    written = status_json(status, generation=1, before={}, now="2026-02-01T00:00:00Z")
    patch = json.dumps({"status": written})
    kubectl("patch", "dap", "p", "--subresource=status", "--type=merge", "-p", patch)
    stored = kubectl.json("get", "dap", "p")["status"]

    assert written == stored
    assert ({"TaskQuota": 3}, (1.8e9,)) == recycles_of(stored)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_are_accepted(kubectl: Kubectl, path: Any) -> None:
    kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(path))
    for body in yaml.safe_load_all(path.read_text()):
        if body["kind"] == "AdaptivePolicy":
            parse_policy(body["spec"])
        else:
            notes = body["metadata"].get("annotations", {})
            if notes:
                assert 20 == wanted_spec(parse_cluster(body))["maxReplicas"]


def test_the_full_example_names_every_field(kubectl: Kubectl) -> None:
    crd = kubectl.json("get", "crd", "adaptivepolicies.dask-adaptive.dev")
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    full = yaml.safe_load((ROOT / "manifests/examples/full-policy.yaml").read_text())["spec"]

    def is_closed(node: dict[str, Any]) -> bool:
        return "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields")

    def fields(node: dict[str, Any]) -> Any:
        return {k: fields(v) if is_closed(v) else None for k, v in node["properties"].items()}

    def keys(node: Any) -> Any:
        return {k: keys(v) for k, v in node.items()} if isinstance(node, dict) else None

    assert full["scheduler"].pop("config"), "of which nobody can write every field"
    del schema["properties"]["scheduler"]["properties"]["config"]

    assert fields(schema) == keys(full)
