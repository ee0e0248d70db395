"""DaskAutoscalers that are taken over: which, when upstream rests, and who scales meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.kube.adoption import (
    MARGIN_S,
    RENEW_S,
    REST_S,
    SETTLE_S,
    Adopt,
    at_rest,
    rest_notes,
    rest_of,
    woken_notes,
)
from dask_adaptive.kube.annotated import Complain, Make, Mend, Remove, Rest, Step, Tell, Wake, steps
from dask_adaptive.kube.objects import (
    BY_ADOPTION,
    BY_ANNOTATIONS,
    MANAGED_BY,
    AutoscalerObject,
    ClusterObject,
    PolicyObject,
    parse_autoscaler,
    parse_cluster,
    parse_policy_object,
)
from dask_adaptive.kube.owners import adopted, conflict, is_settling
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.reason import Reason
from support import kube_objects as ko

KEY = ClusterKey("ns", "etl")
NOW = ko.CREATED_AT + 3600
NOTE = "dask-adaptive.dev/"


def cluster(**notes: str) -> ClusterObject:
    annotations = {NOTE + k.replace("_", "-"): v for k, v in notes.items()}
    return parse_cluster(ko.cluster(annotations=annotations))


def resting(*, for_s: float = 400.0, since: float = NOW - 60) -> dict[str, str]:
    return {k: v for k, v in rest_notes(NOW + for_s, since).items() if v is not None}


def asks(name: str = "etl", adopt: str | None = None, **more: Any) -> AutoscalerObject:
    """A DaskAutoscaler as `adapt()` makes it, annotated `adopt`."""
    return parse_autoscaler(body(name, adopt, **more))


def body(name: str = "etl", adopt: str | None = None, **more: Any) -> dict[str, Any]:
    notes = {**more.pop("notes", {}), **({NOTE + "adopt": adopt} if adopt is not None else {})}
    return ko.autoscaler(name, annotations=notes, **more)


def ours(by: str = BY_ADOPTION, **spec: Any) -> PolicyObject:
    body = ko.policy(labels={MANAGED_BY: by}, ownerReferences=[{"uid": "uid-etl"}])
    body["spec"] = {**body["spec"], "maxReplicas": 3, "minReplicas": 0, **spec}
    return parse_policy_object(body)


def written(**spec: Any) -> PolicyObject:
    body = ko.policy("by-hand")
    body["spec"] |= spec
    return parse_policy_object(body)


def todo(
    seen: ClusterObject,
    policies: list[PolicyObject],
    *autoscalers: AutoscalerObject,
    adopt: Adopt = Adopt.ANNOTATED,
) -> list[Step]:
    return steps(seen, policies, autoscalers, adopt=adopt, now=NOW)


NO, YES = cluster(), cluster(adopt="true")
RESTS = {"notes": resting()}


@pytest.mark.parametrize(
    ("adopt", "on_cluster", "on_autoscaler", "expected"),
    [
        pytest.param("Never", "true", "true", False, id="never"),
        pytest.param("Annotated", None, None, False, id="nobody-asked"),
        pytest.param("Annotated", "true", None, True, id="cluster"),
        pytest.param("Annotated", None, "true", True, id="autoscaler"),
        pytest.param("Annotated", "true", "false", False, id="the-autoscaler-s-own-wins"),
        pytest.param("Annotated", "false", "True ", True, id="either-way"),
        pytest.param("Always", None, None, True, id="always"),
        pytest.param("Always", "false", None, False, id="but-where-it-is-forbidden"),
        pytest.param("Always", None, "false", False, id="on-either"),
    ],
)
def test_which_are_taken_over(
    adopt: str, on_cluster: str | None, on_autoscaler: str | None, expected: bool
) -> None:
    seen = cluster(**({"adopt": on_cluster} if on_cluster is not None else {}))
    made = todo(seen, [], asks(adopt=on_autoscaler), adopt=Adopt(adopt))

    assert ([Make, Rest] if expected else []) == [type(step) for step in made]


@pytest.mark.parametrize(
    ("seen", "policies", "autoscalers", "expected"),
    [
        pytest.param(YES, [], [asks()], [Make, Rest], id="taken-over"),
        pytest.param(YES, [ours()], [asks(**RESTS)], [], id="in-step"),
        pytest.param(YES, [ours()], [asks()], [Rest], id="the-policy-was-made-before-a-crash"),
        pytest.param(YES, [ours()], [asks(maximum=9, **RESTS)], [Mend], id="adapt-again"),
        pytest.param(YES, [ours(idleTimeout="9s")], [asks(**RESTS)], [], id="peoples-edits-stay"),
        pytest.param(
            cluster(adopt="true", idle_timeout="2m"), [ours()], [asks(**RESTS)], [Mend], id="idle"
        ),
        pytest.param(NO, [ours()], [asks(**RESTS)], [Remove, Wake], id="released"),
        pytest.param(NO, [], [asks(**RESTS)], [Wake], id="released-after-a-crash"),
        pytest.param(YES, [ours()], [], [Remove, Tell], id="scale-deletes-the-autoscaler"),
        pytest.param(
            YES,
            [ours()],
            [asks(deletionTimestamp=ko.CREATED, **RESTS)],
            [Remove, Tell],
            id="its-deletion-has-begun",
        ),
        pytest.param(YES, [written()], [asks()], [Rest], id="a-persons-policy-serves-it"),
        pytest.param(YES, [written(), ours()], [asks(**RESTS)], [Remove], id="and-ours-goes"),
        pytest.param(NO, [written()], [asks()], [], id="not-asked-for"),
        pytest.param(YES, [written(mode="Advise")], [asks()], [], id="advice-scales-nothing"),
        pytest.param(
            YES, [written(mode="Advise")], [asks(**RESTS)], [Wake], id="so-upstream-goes-on"
        ),
        pytest.param(
            YES, [written(), parse_policy_object(ko.policy("b"))], [asks(**RESTS)], [Wake],
            id="two-policies-scale-nothing-either",
        ),
        pytest.param(
            cluster(adopt="true", max_replicas="3"), [], [asks()], [Make, Rest], id="both-ways"
        ),
        pytest.param(
            cluster(adopt="true", max_replicas="3"), [ours()], [asks(**RESTS)], [Mend],
            id="an-annotation-goes-before-adapt",
        ),
        pytest.param(
            YES, [ours(BY_ANNOTATIONS)], [asks(**RESTS)], [Mend], id="its-bounds-are-back"
        ),
        pytest.param(
            cluster(max_replicas="3"), [ours(BY_ANNOTATIONS, idleTimeout="60s")], [asks()], [],
            id="not-asked-for-with-annotations",
        ),
        pytest.param(YES, [], [asks(minimum=5)], [Complain], id="min-above-max"),
        pytest.param(YES, [], [asks(minimum=-1)], [Complain], id="negative"),
        pytest.param(YES, [ours()], [asks(minimum=5, **RESTS)], [Complain], id="kept-as-it-was"),
        pytest.param(cluster(adopt="yes"), [], [asks()], [Complain], id="malformed"),
        pytest.param(
            cluster(adopt="yes"), [ours()], [asks(**RESTS)], [Complain], id="malformed-later"
        ),
        pytest.param(YES, [], [asks(), asks("b")], [Complain], id="which-of-two"),
        pytest.param(YES, [ours()], [asks(**RESTS), asks("b")], [Complain], id="a-second-one"),
        pytest.param(
            cluster(adopt="true", max_replicas="x"), [], [asks(**RESTS)], [Complain, Wake],
            id="nobody-would-scale",
        ),
    ],
)  # fmt: skip
def test_steps(
    seen: ClusterObject,
    policies: list[PolicyObject],
    autoscalers: list[AutoscalerObject],
    expected: list[type],
) -> None:
    assert expected == [type(step) for step in todo(seen, policies, *autoscalers)]


def test_what_is_made() -> None:
    policy, rest = todo(YES, [], asks(minimum=1, maximum=20))

    assert isinstance(policy, Make)
    assert isinstance(rest, Rest)
    wanted = {"clusterRef": {"name": "etl"}, "maxReplicas": 20, "minReplicas": 1}
    assert wanted == policy.body["spec"]
    assert {MANAGED_BY: "adoption"} == policy.body["metadata"]["labels"]
    assert "uid-etl" == policy.body["metadata"]["ownerReferences"][0]["uid"]
    assert (NOW + REST_S, NOW) == (rest.until, rest.since)
    assert "AdaptivePolicy etl has its bounds" in rest.told


def test_people_are_told_once() -> None:
    (rest,) = todo(YES, [ours()], asks(notes=resting(for_s=RENEW_S - 1)))

    assert isinstance(rest, Rest)
    assert ("", NOW + REST_S, NOW - 60) == (rest.told, rest.until, rest.since)


@pytest.mark.parametrize(
    ("seen", "autoscaler", "word"),
    [
        (YES, asks(minimum=5), "spec.minimum"),
        (cluster(adopt="si"), asks(), '"true" or "false"'),
        (cluster(adopt="true", idle_timeout="soon"), asks(), "soon"),
    ],
)
def test_a_complaint_says_how_to_mend_it(
    seen: ClusterObject, autoscaler: AutoscalerObject, word: str
) -> None:
    (step,) = todo(seen, [], autoscaler)

    assert isinstance(step, Complain)
    assert word in step.message
    assert Reason.INVALID_ADOPTION is step.reason


def test_people_are_told_that_a_deleted_autoscaler_was_released() -> None:
    _, step = todo(YES, [ours()])

    assert isinstance(step, Tell)
    assert Reason.RELEASED is step.reason


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        pytest.param({}, False, id="never-taken-over"),
        pytest.param(resting(), True, id="rests"),
        pytest.param(resting(since=NOW - SETTLE_S + 2), False, id="a-run-may-be-under-way"),
        pytest.param(resting(for_s=MARGIN_S - 1), False, id="about-to-wake"),
        pytest.param(resting(for_s=-1), False, id="woken-as-the-operator-was-away"),
        pytest.param(
            {**resting(), "kubernetes.dask.org/cooldown-until": str(NOW + 15)}, False,
            id="a-late-run-of-upstream-wrote-its-own",
        ),
        pytest.param(
            {"kubernetes.dask.org/cooldown-until": str(NOW + 400)}, False, id="a-persons-own-rest"
        ),
        pytest.param({**resting(), f"{NOTE}adopted": "lately"}, True, id="since-ever"),
        pytest.param(
            {**resting(), "kubernetes.dask.org/cooldown-until": "tomorrow"}, False, id="rubbish"
        ),
        pytest.param(
            {**resting(), "kubernetes.dask.org/cooldown-until": "nan"}, False, id="no-number"
        ),
    ],
)  # fmt: skip
def test_at_rest(notes: dict[str, str], expected: bool) -> None:
    autoscaler = asks(notes=notes)

    assert expected == at_rest(autoscaler, NOW)
    assert expected == (not conflict(world(ko.policy(), body(notes=notes)), KEY, now=NOW))


@given(
    left=st.floats(-1e6, 1e6),
    since=st.one_of(st.none(), st.floats(-1e6, 1e6)),
    later=st.floats(0, RENEW_S - MARGIN_S),
)
def test_upstream_never_wakes_while_we_look_and_never_rests_longer_than_promised(
    left: float, since: float | None, later: float
) -> None:
    began = AutoscalerObject(
        asks().meta, KEY, rests_until=NOW + left, adopted_at=None if since is None else NOW + since
    )
    times = rest_of(began, NOW)
    until, adopted_at = times or (began.rests_until, began.adopted_at)

    assert adopted_at is not None
    assert adopted_at <= NOW + 1
    assert RENEW_S <= until - NOW <= REST_S + MARGIN_S
    seen = AutoscalerObject(began.meta, KEY, rests_until=until, adopted_at=adopted_at)
    again = rest_of(seen, NOW + later)
    assert again is None or again[1] == adopted_at  # made longer, without a break


@given(later=st.floats(0, REST_S * 3))
def test_a_rest_that_nobody_makes_longer_ends(later: float) -> None:
    seen = asks(notes=resting(for_s=REST_S))

    assert at_rest(seen, NOW + later) == (later <= REST_S - MARGIN_S)


def test_what_is_written_is_what_upstream_reads() -> None:
    """dask-kubernetes takes `float()` of it and compares with `time.time()`."""
    notes = rest_notes(NOW + 600.4, NOW)

    assert NOW + 600 == float(notes["kubernetes.dask.org/cooldown-until"] or "")
    assert set(woken_notes()) == set(notes)
    assert {None} == set(woken_notes().values())


def world(*bodies: dict[str, Any]) -> Any:
    return ko.world_of(ko.cluster(), *bodies)


@pytest.mark.parametrize(
    ("bodies", "word"),
    [
        pytest.param([body()], f"annotate daskautoscaler etl {NOTE}adopt=true", id="awake"),
        pytest.param([body(notes=resting(since=NOW))], "is being taken over", id="at-first"),
        pytest.param([body(notes=resting()), body("x")], "DaskAutoscaler x", id="a-second-one"),
        pytest.param([], "was deleted", id="gone"),
        pytest.param(
            [body(notes=resting(), deletionTimestamp=ko.CREATED)], "was deleted", id="going"
        ),
    ],
)
def test_never_two_who_scale(bodies: list[dict[str, Any]], word: str) -> None:
    owner = [{"uid": "uid-etl"}]
    made = ko.policy(labels={MANAGED_BY: BY_ADOPTION}, ownerReferences=owner)

    assert word in conflict(world(made, *bodies), KEY, now=NOW)


@pytest.mark.parametrize(
    ("policy", "status", "notes", "expected"),
    [
        pytest.param(BY_ADOPTION, {}, {}, True, id="just-made"),
        pytest.param(BY_ADOPTION, {}, resting(since=NOW), True, id="a-run-may-be-under-way"),
        pytest.param(BY_ADOPTION, {}, resting(), False, id="rests"),
        pytest.param(BY_ADOPTION, {"reason": "x"}, {}, False, id="it-served-before"),
        pytest.param(BY_ANNOTATIONS, {}, {}, False, id="the-autoscaler-may-never-rest"),
    ],
)
def test_what_lasts_some_seconds_is_waited_for(
    policy: str, status: dict[str, str], notes: dict[str, str], expected: bool
) -> None:
    made = ko.policy(labels={MANAGED_BY: policy}) | {"status": status}

    assert expected == is_settling(world(made, body(notes=notes)), KEY, now=NOW)


def test_a_persons_policy_goes_on_without_an_autoscaler() -> None:
    assert "" == conflict(world(ko.policy()), KEY, now=NOW)
    assert adopted(world(ko.policy()), KEY, now=NOW) is None


def test_the_policy_of_a_daskjobs_cluster_goes_with_the_job() -> None:
    """
    dask-kubernetes' daskjob_create_components makes a DaskCluster of the job's name, with the
    annotations of the DaskJob and of `spec.cluster.metadata`, and gives it to the job.
    """
    job = {"kind": "DaskJob", "name": "etl", "uid": "uid-job"}
    notes = {f"{NOTE}max-replicas": "4"}
    labels = {"dask.org/cluster-name": "etl"}
    made = parse_cluster(ko.cluster(annotations=notes, labels=labels, ownerReferences=[job]))
    (step,) = steps(made, [])

    assert isinstance(step, Make)
    assert 4 == step.body["spec"]["maxReplicas"]
    owners = step.body["metadata"]["ownerReferences"]
    assert [("DaskCluster", "uid-etl")] == [(o["kind"], o["uid"]) for o in owners]
