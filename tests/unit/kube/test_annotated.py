"""Policies of annotations and of DaskAutoscalers: what is made, who rests, who scales till then."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.kube.annotated import (
    MARGIN_S,
    RENEW_S,
    REST_S,
    SETTLE_S,
    Adopt,
    Complain,
    Make,
    Mend,
    Remove,
    Rest,
    Step,
    Tell,
    Wake,
    at_rest,
    rest_notes,
    rest_of,
    steps,
    woken_notes,
)
from dask_adaptive.kube.objects import (
    BY_ADOPTION,
    BY_ANNOTATIONS,
    COOLDOWN,
    MANAGED_BY,
    AutoscalerObject,
    ClusterObject,
    PolicyObject,
    parse_autoscaler,
    parse_cluster,
    parse_policy_object,
)
from dask_adaptive.kube.view import adopted, conflict, is_settling
from dask_adaptive.model.policy import DEFAULT_CONTROLLER
from dask_adaptive.model.reason import Reason
from support import kube_objects as ko

NOW = ko.CREATED_AT + 3600
ADOPT = "dask-adaptive.dev/adopt"
OWNER = [{"uid": "uid-etl"}]


def cluster(**notes: str) -> ClusterObject:
    return parse_cluster(ko.cluster(**ko.noted(**notes)))


def resting(*, for_s: float = 400.0, since: float = NOW - 60) -> dict[str, str]:
    return {k: v for k, v in rest_notes(NOW + for_s, since).items() if v is not None}


RESTS = resting()


def body(name: str = "etl", notes: Any = None, **more: Any) -> dict[str, Any]:
    """A DaskAutoscaler as `adapt()` makes it."""
    return ko.autoscaler(name, annotations=notes or {}, **more)


def scaler(name: str = "etl", notes: Any = None, **more: Any) -> AutoscalerObject:
    return parse_autoscaler(body(name, notes, **more))


def made(by: str = BY_ADOPTION, **spec: Any) -> PolicyObject:
    body = ko.policy(labels={MANAGED_BY: by}, ownerReferences=OWNER)
    base = {"minReplicas": 0, "controllerName": "dask-adaptive"}
    base |= {"maxReplicas": 3} if by == BY_ADOPTION else {}
    body["spec"] |= base | spec
    return parse_policy_object(body)


def by_hand(name: str = "by-hand", **spec: Any) -> PolicyObject:
    body = ko.policy(name)
    body["spec"] |= spec
    return parse_policy_object(body)


def todo(
    seen: ClusterObject,
    policies: list[PolicyObject],
    *autoscalers: AutoscalerObject,
    adopt: Adopt = Adopt.ANNOTATED,
    controller: str = DEFAULT_CONTROLLER,
) -> list[Step]:
    return steps(seen, policies, autoscalers, adopt=adopt, controller=controller, now=NOW)


def noting(**spec: Any) -> PolicyObject:
    """A policy that was made from `max_replicas="5"`."""
    return made(BY_ANNOTATIONS, **{"idleTimeout": "Auto", **spec})


FIVE = cluster(max_replicas="5")
WRONG_MINIMUM = cluster(max_replicas="5", min_replicas="6")


def test_of_two_operators_the_first_makes_the_policy_in_its_own_name_and_serves_it() -> None:
    seen, wishes = cluster(max_replicas="5", adopt="true"), [scaler()]
    first, second = (todo(seen, [], *wishes, controller=name) for name in "ab")
    bodies = [step.body for step in (*first, *second) if isinstance(step, Make)]
    # Of two objects of one name the API server makes one.
    assert 1 == len({body["metadata"]["name"] for body in bodies})
    assert ["a", "b"] == [body["spec"]["controllerName"] for body in bodies]

    made = parse_policy_object(ko.policy() | bodies[0] | {"metadata": {
        **ko.policy()["metadata"], **bodies[0]["metadata"]}})  # fmt: skip
    assert [Rest] == [type(step) for step in todo(seen, [made], *wishes, controller="a")]
    assert [] == todo(seen, [made], *wishes, controller="b")
    assert [] == todo(cluster(), [made], *wishes, controller="b")


def test_a_policy_of_an_earlier_cluster_of_that_name_goes_first() -> None:
    labels = {MANAGED_BY: BY_ANNOTATIONS}
    old = parse_policy_object(ko.policy(labels=labels, ownerReferences=[{"uid": "gone"}]))

    assert [Remove("etl", "uid-etl")] == steps(FIVE, [old])


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
    notes = {ADOPT: on_autoscaler} if on_autoscaler is not None else {}
    found = todo(seen, [], scaler(notes=notes), adopt=Adopt(adopt))

    assert ([Make, Rest] if expected else []) == [type(step) for step in found]


NO, YES, UNREADABLE = cluster(), cluster(adopt="true"), cluster(adopt="yes")
AWAKE, RESTING = scaler(), scaler(notes=RESTS)
GOING = scaler(notes=RESTS, deletionTimestamp=ko.CREATED)
ADVISES = by_hand(mode="Advise")
BOTH_WAYS = cluster(adopt="true", max_replicas="3")


@pytest.mark.parametrize(
    ("seen", "policies", "autoscalers", "expected"),
    [
        # By annotations.
        pytest.param(cluster(), [], [], [], id="nothing-asked-for"),
        pytest.param(FIVE, [], [], [Make], id="made"),
        pytest.param(FIVE, [noting()], [], [], id="as-it-was-made"),
        pytest.param(cluster(max_replicas="7"), [noting()], [], [Mend], id="mended"),
        pytest.param(FIVE, [noting(idleTimeout="2m")], [], [Mend], id="default-back"),
        pytest.param(cluster(), [noting()], [], [Remove], id="annotation-gone"),
        pytest.param(FIVE, [by_hand()], [], [], id="a-persons-policy-wins"),
        pytest.param(FIVE, [by_hand(), noting()], [], [Remove], id="and-the-one-we-made-goes"),
        pytest.param(cluster(max_replicas="x"), [noting()], [], [Complain], id="no-number"),
        pytest.param(cluster(max_replicas="-1"), [], [], [Complain], id="negative-number"),
        pytest.param(cluster(max_replicas="5", idle_timeout="soon"), [noting()], [], [Complain],
                     id="no-duration"),
        pytest.param(WRONG_MINIMUM, [], [], [Complain], id="minimum-above-maximum"),
        # An operator of another name serves it: it is left alone.
        pytest.param(FIVE, [noting(controllerName="b")], [], [], id="it-made-the-policy"),
        pytest.param(cluster(), [noting(controllerName="b")], [], [], id="and-it-removes-it"),
        pytest.param(FIVE, [by_hand(controllerName="b")], [], [], id="a-persons-for-it"),
        pytest.param(FIVE, [by_hand(controllerName="b"), noting()], [], [Remove],
                     id="then-ours-goes"),
        pytest.param(YES, [made(controllerName="b")], [AWAKE], [], id="it-adopts"),
        pytest.param(NO, [made(controllerName="b")], [RESTING], [], id="and-it-wakes"),
        # By adoption.
        pytest.param(YES, [], [AWAKE], [Make, Rest], id="taken-over"),
        pytest.param(YES, [made()], [RESTING], [], id="in-step"),
        pytest.param(YES, [made()], [AWAKE], [Rest], id="the-policy-was-made-before-a-crash"),
        pytest.param(YES, [made()], [scaler(notes=RESTS, maximum=9)], [Mend], id="adapt-again"),
        pytest.param(YES, [made(idleTimeout="9s")], [RESTING], [], id="peoples-edits-stay"),
        pytest.param(
            cluster(adopt="true", idle_timeout="2m"), [made()], [RESTING], [Mend], id="idle"
        ),
        pytest.param(NO, [made()], [RESTING], [Remove, Wake], id="released"),
        pytest.param(NO, [], [RESTING], [Wake], id="released-after-a-crash"),
        pytest.param(YES, [made()], [], [Remove, Tell], id="scale-deletes-the-autoscaler"),
        pytest.param(YES, [made()], [GOING], [Remove, Tell], id="its-deletion-has-begun"),
        pytest.param(YES, [by_hand()], [AWAKE], [Rest], id="a-persons-policy-serves-it"),
        pytest.param(YES, [by_hand(), made()], [RESTING], [Remove], id="and-ours-goes"),
        pytest.param(NO, [by_hand()], [AWAKE], [], id="not-asked-for"),
        pytest.param(YES, [ADVISES], [AWAKE], [], id="advice-scales-nothing"),
        pytest.param(YES, [ADVISES], [RESTING], [Wake], id="so-upstream-goes-on"),
        pytest.param(
            YES, [by_hand(), by_hand("b")], [RESTING], [Wake], id="nor-do-two-policies"
        ),
        pytest.param(BOTH_WAYS, [], [AWAKE], [Make, Rest], id="both-ways"),
        pytest.param(BOTH_WAYS, [made()], [RESTING], [Mend], id="an-annotation-goes-before-adapt"),
        pytest.param(YES, [made(BY_ANNOTATIONS)], [RESTING], [Mend], id="its-bounds-are-back"),
        pytest.param(FIVE, [noting()], [AWAKE], [], id="not-asked-for-with-annotations"),
        pytest.param(YES, [], [scaler(minimum=5)], [Complain], id="min-above-max"),
        pytest.param(YES, [], [scaler(minimum=-1)], [Complain], id="negative"),
        pytest.param(
            YES, [made()], [scaler(notes=RESTS, minimum=5)], [Complain], id="kept-as-it-was"
        ),
        pytest.param(UNREADABLE, [], [AWAKE], [Complain], id="malformed"),
        pytest.param(UNREADABLE, [made()], [RESTING], [Complain], id="malformed-later"),
        pytest.param(YES, [], [AWAKE, scaler("b")], [Complain], id="which-of-two"),
        pytest.param(YES, [made()], [RESTING, scaler("b")], [Complain], id="a-second-one"),
        pytest.param(
            cluster(adopt="true", max_replicas="x"), [], [RESTING], [Complain, Wake],
            id="nobody-would-scale",
        ),
    ],
)  # fmt: skip
def test_what_is_to_be_done(
    seen: ClusterObject,
    policies: list[PolicyObject],
    autoscalers: list[AutoscalerObject],
    expected: list[type],
) -> None:
    assert expected == [type(step) for step in todo(seen, policies, *autoscalers)]


#: dask-kubernetes' daskjob_create_components makes a DaskCluster of the job's name, with the
#: annotations of the DaskJob and of `spec.cluster.metadata`, and gives it to the job.
OF_A_JOB = parse_cluster(ko.cluster(
    labels={"dask.org/cluster-name": "etl"}, **ko.noted(max_replicas="4"),
    ownerReferences=[{"kind": "DaskJob", "name": "etl", "uid": "uid-job"}],
))  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "autoscalers", "spec", "by"),
    [
        (cluster(max_replicas="5", min_replicas="1", idle_timeout="2m"), [],
         {"maxReplicas": 5, "minReplicas": 1, "idleTimeout": "2m"}, BY_ANNOTATIONS),
        (OF_A_JOB, [], {"maxReplicas": 4, "minReplicas": 0, "idleTimeout": "Auto"}, BY_ANNOTATIONS),
        (YES, [scaler(minimum=1, maximum=20)], {"maxReplicas": 20, "minReplicas": 1}, BY_ADOPTION),
    ],
)  # fmt: skip
def test_what_is_made(
    seen: ClusterObject, autoscalers: list[AutoscalerObject], spec: Any, by: str
) -> None:
    step, *_ = todo(seen, [], *autoscalers)

    assert isinstance(step, Make)
    meta = step.body["metadata"]
    always = {"clusterRef": {"name": "etl"}, "controllerName": "dask-adaptive"}
    assert {**always, **spec} == step.body["spec"]
    assert {MANAGED_BY: by} == meta["labels"]
    assert [("DaskCluster", "uid-etl")] == [(o["kind"], o["uid"]) for o in meta["ownerReferences"]]


def test_people_are_told_once_that_upstream_rests() -> None:
    _, first = todo(YES, [], AWAKE)
    (again,) = todo(YES, [made()], scaler(notes=resting(for_s=RENEW_S - 1)))

    assert isinstance(first, Rest)
    assert isinstance(again, Rest)
    assert (NOW + REST_S, NOW) == (first.until, first.since)
    assert "AdaptivePolicy etl says" in first.told
    assert ("", NOW + REST_S, NOW - 60) == (again.told, again.until, again.since)


@pytest.mark.parametrize(
    ("seen", "autoscalers", "word"),
    [
        (YES, [scaler(minimum=5)], "spec.minimum"),
        (cluster(adopt="si"), [AWAKE], '"true" or "false"'),
        (cluster(adopt="true", idle_timeout="soon"), [AWAKE], "soon"),
        (cluster(max_replicas="x"), [], "dask-adaptive.dev/max-replicas"),
        (WRONG_MINIMUM, [], "dask-adaptive.dev/max-replicas"),
    ],
)
def test_a_complaint_says_how_to_mend_it(
    seen: ClusterObject, autoscalers: list[AutoscalerObject], word: str
) -> None:
    (step,) = todo(seen, [], *autoscalers)

    assert isinstance(step, Complain)
    assert word in step.message


def test_people_are_told_that_a_deleted_autoscaler_was_released() -> None:
    _, step = todo(YES, [made()])

    assert isinstance(step, Tell)
    assert Reason.RELEASED is step.reason


def conflicting(*bodies: dict[str, Any]) -> str:
    return conflict(ko.world_of(ko.cluster(), *bodies), ko.KEY, now=NOW)


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        pytest.param({}, False, id="never-taken-over"),
        pytest.param(RESTS, True, id="rests"),
        pytest.param(resting(since=NOW - SETTLE_S + 2), False, id="a-run-may-be-under-way"),
        pytest.param(resting(for_s=MARGIN_S - 1), False, id="about-to-wake"),
        pytest.param(resting(for_s=-1), False, id="woken-as-the-operator-was-away"),
        pytest.param({**RESTS, COOLDOWN: str(NOW + 15)}, False, id="a-late-run-wrote-its-own"),
        pytest.param({COOLDOWN: str(NOW + 400)}, False, id="a-persons-own-rest"),
        pytest.param({**RESTS, "dask-adaptive.dev/adopted": "lately"}, True, id="since-ever"),
        pytest.param({**RESTS, COOLDOWN: "tomorrow"}, False, id="rubbish"),
        pytest.param({**RESTS, COOLDOWN: "nan"}, False, id="no-number"),
    ],
)
def test_at_rest(notes: dict[str, str], expected: bool) -> None:
    assert expected == at_rest(scaler(notes=notes), NOW)
    assert expected == (not conflicting(ko.policy(), body(notes=notes)))


@given(
    left=st.floats(-1e6, 1e6),
    since=st.one_of(st.none(), st.floats(-1e6, 1e6)),
    later=st.floats(0, RENEW_S - MARGIN_S),
)
def test_upstream_never_wakes_while_we_look_and_never_rests_longer_than_promised(
    left: float, since: float | None, later: float
) -> None:
    began = AutoscalerObject(
        AWAKE.meta,
        ko.KEY,
        rests_until=NOW + left,
        adopted_at=None if since is None else NOW + since,
    )
    times = rest_of(began, NOW)
    until, adopted_at = times or (began.rests_until, began.adopted_at)

    assert adopted_at is not None
    assert adopted_at <= NOW + 1
    assert RENEW_S <= until - NOW <= REST_S + MARGIN_S
    seen = AutoscalerObject(began.meta, ko.KEY, rests_until=until, adopted_at=adopted_at)
    again = rest_of(seen, NOW + later)
    assert again is None or again[1] == adopted_at  # made longer, without a break


@given(later=st.floats(0, REST_S * 3))
def test_a_rest_that_nobody_makes_longer_ends(later: float) -> None:
    seen = scaler(notes=resting(for_s=REST_S))

    assert at_rest(seen, NOW + later) == (later <= REST_S - MARGIN_S)


def test_what_is_written_is_what_upstream_reads() -> None:
    """dask-kubernetes takes `float()` of it and compares with `time.time()`."""
    notes = rest_notes(NOW + 600.4, NOW)

    assert NOW + 600 == float(notes["kubernetes.dask.org/cooldown-until"] or "")
    assert dict.fromkeys(notes) == woken_notes()


@pytest.mark.parametrize(
    ("bodies", "word"),
    [
        pytest.param([body()], f"annotate daskautoscaler etl {ADOPT}=true", id="awake"),
        pytest.param([body(notes=resting(since=NOW))], "is being adopted", id="at-first"),
        pytest.param([body(notes=RESTS), body("x")], "DaskAutoscaler x", id="a-second-one"),
        pytest.param([], "was deleted", id="gone"),
        pytest.param([body(notes=RESTS, deletionTimestamp=ko.CREATED)], "was deleted", id="going"),
    ],
)
def test_never_two_who_scale(bodies: list[dict[str, Any]], word: str) -> None:
    ours = ko.policy(labels={MANAGED_BY: BY_ADOPTION}, ownerReferences=OWNER)

    assert word in conflicting(ours, *bodies)


@pytest.mark.parametrize(
    ("policy", "status", "notes", "expected"),
    [
        pytest.param(BY_ADOPTION, {}, {}, True, id="just-made"),
        pytest.param(BY_ADOPTION, {}, resting(since=NOW), True, id="a-run-may-be-under-way"),
        pytest.param(BY_ADOPTION, {}, RESTS, False, id="rests"),
        pytest.param(BY_ADOPTION, {"reason": "x"}, {}, False, id="it-served-before"),
        pytest.param(BY_ANNOTATIONS, {}, {}, False, id="the-autoscaler-may-never-rest"),
    ],
)
def test_what_lasts_some_seconds_is_waited_for(
    policy: str, status: dict[str, str], notes: dict[str, str], expected: bool
) -> None:
    ours = ko.policy(labels={MANAGED_BY: policy}) | {"status": status}
    world = ko.world_of(ko.cluster(), ours, body(notes=notes))

    assert expected == is_settling(world, ko.KEY, now=NOW)


def test_a_persons_policy_goes_on_without_an_autoscaler() -> None:
    assert "" == conflicting(ko.policy())
    assert adopted(ko.world_of(ko.cluster(), ko.policy()), ko.KEY, now=NOW) is None
