"""The CRD: defaults, refusals with sentences that help, columns; and the examples."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubernetes.client import ApiException, CustomObjectsApi
from kubernetes.config import new_client_from_config

from dask_adaptive.kube.annotated import wanted_spec
from dask_adaptive.kube.objects import parse_cluster
from dask_adaptive.kube.status_json import read_status, status_json
from dask_adaptive.loop.status import (
    READY,
    Condition,
    GroupRow,
    HeldBy,
    SchedulerRow,
    Status,
    WorkerRow,
)
from dask_adaptive.model.codec import Problem
from dask_adaptive.model.plan import Decision, Step
from dask_adaptive.model.policy import ClusterRef, InvalidPolicy, Policy, parse_policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import GroupRecycle, MemoryLimit
from support.kube_bodies import policy
from support.kube_server import ROOT, Kubectl, namespace
from support.policies import FULL, TAKEN, WRONG, changed, spec
from support.tables import table

EXAMPLES = sorted((ROOT / "manifests/examples").glob("*.yaml"))


def test_defaults_are_those_of_the_model(kubectl: Kubectl) -> None:
    kubectl.apply(policy())
    stored = kubectl.json("get", "dap", "p")["spec"]

    assert Policy(ClusterRef("etl"), 5) == parse_policy(stored)
    assert {"workerGroups"} == FULL.keys() - stored.keys(), "all else has one in the schema, too"


def test_defaults_of_a_groups_recycle_are_those_of_the_model(kubectl: Kubectl) -> None:
    group = {"name": "etl-gpu", "recycle": {"memory": {"hard": "90%"}}}
    kubectl.apply(policy(workerGroups=[group]))
    stored = parse_policy(kubectl.json("get", "dap", "p")["spec"])

    assert {"etl-gpu": GroupRecycle(memory=MemoryLimit(hard=0.9))} == {
        group.name: group.recycle for group in stored.worker_groups
    }


class Refused(Exception):
    """What the API server has against a policy: messages, by field."""

    def __init__(self, problems: dict[str, str]) -> None:
        super().__init__(problems)
        self.problems = problems


@pytest.fixture(scope="module")
def create(admin: Kubectl) -> Iterator[Callable[[Any], dict[str, Any]]]:
    """Create a policy, as a dry run; returns its spec, filled in. Raises `Refused`."""
    api = CustomObjectsApi(new_client_from_config(admin.kubeconfig))

    def create(written: Any) -> dict[str, Any]:
        where = ("dask-adaptive.dev", "v1alpha1", kubectl.namespace, "adaptivepolicies")
        body = {**policy(), "spec": written}
        try:
            made = api.create_namespaced_custom_object(
                *where, body, dry_run="All", field_validation="Strict"
            )
        except ApiException as exc:
            raise Refused(causes(json.loads(exc.body))) from None
        spec: dict[str, Any] = made["spec"]
        return spec

    with namespace(admin) as kubectl:
        yield create
    api.api_client.close()


def causes(status: dict[str, Any]) -> dict[str, str]:
    """What is wrong with each field; of some, more than one thing."""
    said = dict.fromkeys(re.findall(r"unknown field \"([^\"]+)\"", status["message"]), "")
    for cause in status.get("details", {}).get("causes", ()):
        said[cause["field"]] = said.get(cause["field"], "") + cause["message"]
    return said


@pytest.mark.parametrize(("written", "field", "words"), WRONG)
def test_the_server_refuses_what_the_model_refuses(
    create: Callable[[Any], Any], written: str, field: str, words: str
) -> None:
    """In the same words where the CRD has words; `test_policy.py` has the model."""
    with pytest.raises(Refused) as caught:
        create(spec(written))

    problems = caught.value.problems
    at = f"spec.{field}"
    found = [f for f in problems if at.startswith(f) or f.startswith(at)]
    assert found, problems
    assert words in problems[found[0]]


@pytest.mark.parametrize("written", TAKEN)
def test_the_server_and_the_model_read_the_same(
    create: Callable[[Any], dict[str, Any]], written: str
) -> None:
    assert parse_policy(spec(written)) == parse_policy(create(spec(written)))


def fields(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Each field, object and entry of the full example but Dask's configuration, of which the API
    server knows nothing."""
    if path == ("scheduler", "config"):
        return
    if path:
        yield path
    entries = node.items() if isinstance(node, dict) else ()
    for key, value in enumerate(node) if isinstance(node, list) else entries:
        yield from fields(value, (*path, key))


ODD = [
    None, True, False, -1, 0, 1, 7, 1.5, 2**31, "", "x", "5", "0s", "1m", "0.5h",
    "1s" * 20,
    "0%", "50%", "100.0%", "100.5%", "1", "0.1", "1Gi", "0Mi", "Auto", "Disabled", "Surge", "*",
    "*a*", "etl-default", "0 2 * * *", "UTC", "2026-01-31T18:00:00Z", "2026-01-31",
    "2026-01-31 18:00:00Z", [], ["x"], [1, 1], [None], {}, {"x": 1}, {"name": "x"}, "drop",
]  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(list(fields(FULL))), st.sampled_from(ODD))
def test_whatever_is_written_both_refuse_it_or_none(
    create: Callable[[Any], Any], path: tuple[Any, ...], value: Any
) -> None:
    written = changed(FULL, path, value)
    theirs: Any = {}
    ours: tuple[Problem, ...] = ()
    try:
        create(written)
    except Refused as exc:
        theirs = exc.problems
    try:
        parse_policy(written)
    except InvalidPolicy as exc:
        ours = exc.problems

    # It has no list of time zones.
    assert bool(theirs) == bool(ours) or (ours and path[-1] == "timeZone"), (theirs, ours)


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


def test_the_cluster_of_a_policy_cannot_be_changed(kubectl: Kubectl) -> None:
    kubectl.apply(policy())
    said = kubectl.refusal(policy(clusterRef={"name": "other"}))

    assert "delete this policy" in said


def test_columns(kubectl: Kubectl) -> None:
    kubectl.apply(policy())
    head = kubectl("get", "dap").splitlines()[0].split()

    assert head[1:8] == "CLUSTER MODE REPLICAS DESIRED PENDING IDLE PINNED".split()  # noqa: SIM905
    assert head[8:] == ["RETIRING", "READY", "REASON", "AGE"]
    assert "p " in kubectl("get", "dask")
    wide = kubectl("get", "dap", "-o", "wide").splitlines()[0].split()
    assert [*head, "WANTED", "MESSAGE", "DISTRIBUTED"] == wide


def test_explain_describes_every_field(kubectl: Kubectl) -> None:
    told = kubectl("explain", "adaptivepolicies.spec", "--recursive")

    assert "maxConcurrent" in told
    fields = ("retirement", "disruption.budgets", "pins.client")
    fields += ("scheduler.relief.pickling", "scheduler.config")
    fields += ("behavior.scaleUp.maxPending", "behavior.scaleDown.policies.period", "idle.after")
    fields += ("schedules.workerGroup", "fallback.replicas", "maxUnready", "workerGroups.priority")
    for field in (*fields, "recycle.memory.soft", "workerGroups.recycle.tasks.max"):
        assert "<no description>" not in kubectl("explain", f"adaptivepolicies.spec.{field}")


RELIEVED = Status(scheduler=SchedulerRow(relief={"idle": "Active", "host": "Failed"}))
DECIDED = Status(
    groups=(GroupRow("etl-gpu", 1, 2, 3, 1, 0, Reason.LOAD_INCREASED, "6 tasks in need of GPU=1"),),
    last_decision=Decision(
        1.8e9, "etl-gpu", 1, 3, 2, Reason.SCALE_UP_LIMITED, "3 wanted", "Done",
        inputs={"queued": 6.0, "arrival_s": 12.5},
        steps=(Step("cap", 2, Reason.SCALE_UP_LIMITED, "2 workers are on their way"),),
    ),
)  # fmt: skip
HELD = Status(held_by=(HeldBy("client", "Client-1", "a look", ("a", "b"), 12, until=1.8e9),))
REPLACED = Status(
    recycled={Reason.TASK_QUOTA: 3}, recent=(1.8e9,),
    workers=(WorkerRow("w1", "Due", Reason.TASK_QUOTA, "20 of 20 tasks run"),),
)  # fmt: skip


@table(
    "status",
    what_a_scheduler_is_relieved_of=RELIEVED,
    what_was_decided_for_each_group=DECIDED,
    who_holds_which_workers=HELD,
    who_is_replaced=REPLACED,
)
def test_a_status_is_stored_as_it_is_written(kubectl: Kubectl, status: Status) -> None:
    kubectl.apply(policy())
    written = status_json(status, before={}, now="2026-02-01T00:00:00Z")
    patch = json.dumps({"status": written})
    kubectl("patch", "dap", "p", "--subresource=status", "--type=merge", "-p", patch)
    stored = kubectl.json("get", "dap", "p")["status"]

    assert written == stored
    read = read_status(stored)
    assert (status.recycled, status.recent) == (read.recycled, read.recent)


@table(
    "lacks, more",
    no_reason=("reason", {}),
    no_time=("lastTransitionTime", {}),
    a_reason_of_two_words=("", {"reason": "two words"}),
    no_name_of_a_type=("", {"type": "-Ready"}),
    before_the_first_generation=("", {"observedGeneration": -1}),
    well=("", {}),
)
def test_conditions_are_those_of_kubernetes(
    kubectl: Kubectl, lacks: str, more: dict[str, Any]
) -> None:
    kubectl.apply(policy())
    well = Status(1, conditions=(Condition(READY, True, Reason.RECONCILED, "fine"),))
    (row,) = status_json(well, before={}, now="2026-02-01T00:00:00Z")["conditions"]
    row = {k: v for k, v in row.items() if k != lacks} | more
    patch = json.dumps({"status": {"conditions": [row]}})
    done = kubectl.run("patch", "dap", "p", "--subresource=status", "--type=merge", "-p", patch)

    assert bool(done.returncode) == bool(lacks or more), done.stderr


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_are_accepted(kubectl: Kubectl, path: Any) -> None:
    kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(path))
    for body in yaml.safe_load_all(path.read_text()):
        if body["kind"] == "AdaptivePolicy":
            parse_policy(body["spec"])
        else:
            notes = body["metadata"].get("annotations", {})
            if notes:
                assert 20 == wanted_spec(parse_cluster(body), "x")["maxReplicas"]


def test_the_full_example_names_every_field(kubectl: Kubectl) -> None:
    crd = kubectl.json("get", "crd", "adaptivepolicies.dask-adaptive.dev")
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    full = copy.deepcopy(FULL)

    def is_closed(node: dict[str, Any]) -> bool:
        return "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields")

    def fields(node: dict[str, Any]) -> Any:
        return {k: fields(v) if is_closed(v) else None for k, v in node["properties"].items()}

    def keys(node: Any) -> Any:
        return {k: keys(v) for k, v in node.items()} if isinstance(node, dict) else None

    assert full["scheduler"].pop("config"), "of which nobody can write every field"
    del schema["properties"]["scheduler"]["properties"]["config"]

    assert fields(schema) == keys(full)
