"""Policies of annotations and of DaskAutoscalers: what is made, who rests, who scales till then."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.kube import annotated
from dask_adaptive.kube.annotated import Complain, Make, Mend, Remove, Suspend, Tell, Wake, steps
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
from support import kube_objects as ko
from support.tables import table

NOW = ko.CREATED_AT + 3600
ADOPT = "dask-adaptive.dev/adopt"
OWNER = [{"uid": "uid-etl"}]


def cluster(**notes: str) -> ClusterObject:
    return parse_cluster(ko.cluster(**ko.noted(**notes)))


def resting(*, for_s: float = 400.0, since: float = NOW - 60) -> dict[str, str]:
    return annotated.suspension_notes(NOW + for_s, since)


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
    seen: ClusterObject, policies: list[PolicyObject], *autoscalers: AutoscalerObject,
    adopt: annotated.Adopt = annotated.Adopt.ANNOTATED, controller: str = DEFAULT_CONTROLLER,
) -> list[annotated.Step]:  # fmt: skip
    return steps(seen, policies, autoscalers, adopt=adopt, controller=controller, now=NOW)


def noting(**spec: Any) -> PolicyObject:
    """A policy that was made from `max_replicas="5"`."""
    return made(BY_ANNOTATIONS, **{"idleTimeout": "Auto", **spec})


FIVE = cluster(max_replicas="5")
WRONG_MINIMUM = cluster(max_replicas="5", min_replicas="6")


def test_a_policy_of_an_earlier_cluster_of_that_name_goes_first() -> None:
    labels = {MANAGED_BY: BY_ANNOTATIONS}
    old = parse_policy_object(ko.policy(labels=labels, ownerReferences=[{"uid": "gone"}]))

    assert [Remove("etl", "uid-etl")] == steps(FIVE, [old])


@table(
    "adopt, on_cluster, on_autoscaler, expected",
    never=("Never", "true", "true", False),
    nobody_asked=("Annotated", None, None, False),
    cluster=("Annotated", "true", None, True),
    autoscaler=("Annotated", None, "true", True),
    the_autoscaler_s_own_wins=("Annotated", "true", "false", False),
    either_way=("Annotated", "false", "True ", True),
    always=("Always", None, None, True),
    but_where_it_is_forbidden=("Always", "false", None, False),
    on_either=("Always", None, "false", False),
)
def test_which_are_taken_over(
    adopt: str, on_cluster: str | None, on_autoscaler: str | None, expected: bool
) -> None:
    seen = cluster(**({"adopt": on_cluster} if on_cluster is not None else {}))
    notes = {ADOPT: on_autoscaler} if on_autoscaler is not None else {}
    found = todo(seen, [], scaler(notes=notes), adopt=annotated.Adopt(adopt))

    assert ([Make, Suspend] if expected else []) == [type(step) for step in found]


NO, YES, UNREADABLE = cluster(), cluster(adopt="true"), cluster(adopt="yes")
AWAKE, RESTING = scaler(), scaler(notes=RESTS)
GOING = scaler(notes=RESTS, deletionTimestamp=ko.CREATED)
ADVISES = by_hand(mode="Advise")
BOTH_WAYS = cluster(adopt="true", max_replicas="3")


@table(
    "seen, policies, autoscalers, expected",
    # By annotations.
    nothing_asked_for=(cluster(), [], [], []),
    made=(FIVE, [], [], [Make]),
    as_it_was_made=(FIVE, [noting()], [], []),
    mended=(cluster(max_replicas="7"), [noting()], [], [Mend]),
    default_back=(FIVE, [noting(idleTimeout="2m")], [], [Mend]),
    annotation_gone=(cluster(), [noting()], [], [Remove]),
    a_persons_policy_wins=(FIVE, [by_hand()], [], []),
    and_the_one_we_made_goes=(FIVE, [by_hand(), noting()], [], [Remove]),
    no_number=(cluster(max_replicas="x"), [noting()], [], [Complain]),
    negative_number=(cluster(max_replicas="-1"), [], [], [Complain]),
    no_duration=(cluster(max_replicas="5", idle_timeout="soon"), [noting()], [], [Complain]),
    minimum_above_maximum=(WRONG_MINIMUM, [], [], [Complain]),
    # An operator of another name serves it: it is left alone.
    it_made_the_policy=(FIVE, [noting(controllerName="b")], [], []),
    and_it_removes_it=(cluster(), [noting(controllerName="b")], [], []),
    a_persons_for_it=(FIVE, [by_hand(controllerName="b")], [], []),
    then_ours_goes=(FIVE, [by_hand(controllerName="b"), noting()], [], [Remove]),
    it_adopts=(YES, [made(controllerName="b")], [AWAKE], []),
    and_it_wakes=(NO, [made(controllerName="b")], [RESTING], []),
    # By adoption.
    taken_over=(YES, [], [AWAKE], [Make, Suspend]),
    in_step=(YES, [made()], [RESTING], []),
    the_policy_was_made_before_a_crash=(YES, [made()], [AWAKE], [Suspend]),
    adapt_again=(YES, [made()], [scaler(notes=RESTS, maximum=9)], [Mend]),
    peoples_edits_stay=(YES, [made(idleTimeout="9s")], [RESTING], []),
    idle=(cluster(adopt="true", idle_timeout="2m"), [made()], [RESTING], [Mend]),
    released=(NO, [made()], [RESTING], [Remove, Wake]),
    released_after_a_crash=(NO, [], [RESTING], [Wake]),
    scale_deletes_the_autoscaler=(YES, [made()], [], [Remove, Tell]),
    its_deletion_has_begun=(YES, [made()], [GOING], [Remove, Tell]),
    a_persons_policy_serves_it=(YES, [by_hand()], [AWAKE], [Suspend]),
    and_ours_goes=(YES, [by_hand(), made()], [RESTING], [Remove]),
    not_asked_for=(NO, [by_hand()], [AWAKE], []),
    advice_scales_nothing=(YES, [ADVISES], [AWAKE], []),
    so_upstream_goes_on=(YES, [ADVISES], [RESTING], [Wake]),
    nor_do_two_policies=(YES, [by_hand(), by_hand("b")], [RESTING], [Wake]),
    both_ways=(BOTH_WAYS, [], [AWAKE], [Make, Suspend]),
    an_annotation_goes_before_adapt=(BOTH_WAYS, [made()], [RESTING], [Mend]),
    its_bounds_are_back=(YES, [made(BY_ANNOTATIONS)], [RESTING], [Mend]),
    not_asked_for_with_annotations=(FIVE, [noting()], [AWAKE], []),
    min_above_max=(YES, [], [scaler(minimum=5)], [Complain]),
    negative=(YES, [], [scaler(minimum=-1)], [Complain]),
    kept_as_it_was=(YES, [made()], [scaler(notes=RESTS, minimum=5)], [Complain]),
    malformed=(UNREADABLE, [], [AWAKE], [Complain]),
    malformed_later=(UNREADABLE, [made()], [RESTING], [Complain]),
    which_of_two=(YES, [], [AWAKE, scaler("b")], [Complain]),
    a_second_one=(YES, [made()], [RESTING, scaler("b")], [Complain]),
    nobody_would_scale=(cluster(adopt="true", max_replicas="x"), [], [RESTING], [Complain, Wake]),
)
def test_what_is_to_be_done(
    seen: ClusterObject, policies: list[PolicyObject], autoscalers: list[AutoscalerObject],
    expected: list[type],
) -> None:  # fmt: skip
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
    (again,) = todo(YES, [made()], scaler(notes=resting(for_s=annotated.RENEW_S - 1)))

    assert isinstance(first, Suspend)
    assert isinstance(again, Suspend)
    assert (NOW + annotated.REST_S, NOW) == (first.until, first.since)
    assert "AdaptivePolicy etl apply" in first.told
    assert ("", NOW + annotated.REST_S, NOW - 60) == (again.told, again.until, again.since)


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


def conflicting(*bodies: dict[str, Any]) -> str:
    return conflict(ko.world_of(ko.cluster(), *bodies), ko.KEY, now=NOW)


@table(
    "notes, expected",
    never_taken_over=({}, False),
    rests=(RESTS, True),
    a_run_may_be_under_way=(resting(since=NOW - annotated.SETTLE_S + 2), False),
    about_to_wake=(resting(for_s=annotated.MARGIN_S - 1), False),
    woken_as_the_operator_was_away=(resting(for_s=-1), False),
    a_late_run_wrote_its_own=({**RESTS, COOLDOWN: str(NOW + 15)}, False),
    a_persons_own_rest=({COOLDOWN: str(NOW + 400)}, False),
    since_ever=({**RESTS, "dask-adaptive.dev/adopted": "lately"}, True),
    rubbish=({**RESTS, COOLDOWN: "tomorrow"}, False),
    no_number=({**RESTS, COOLDOWN: "nan"}, False),
)
def test_at_rest(notes: dict[str, str], expected: bool) -> None:
    assert expected == annotated.is_suspended(scaler(notes=notes), NOW)
    assert expected == (not conflicting(ko.policy(), body(notes=notes)))


@given(
    left=st.floats(-1e6, 1e6),
    since=st.one_of(st.none(), st.floats(-1e6, 1e6)),
    later=st.floats(0, annotated.RENEW_S - annotated.MARGIN_S),
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
    times = annotated.suspension_of(began, NOW)
    until, adopted_at = times or (began.rests_until, began.adopted_at)

    assert adopted_at is not None
    assert adopted_at <= NOW + 1
    assert annotated.RENEW_S <= until - NOW <= annotated.REST_S + annotated.MARGIN_S
    seen = AutoscalerObject(began.meta, ko.KEY, rests_until=until, adopted_at=adopted_at)
    again = annotated.suspension_of(seen, NOW + later)
    assert again is None or again[1] == adopted_at  # made longer, without a break


@table(
    "bodies, word",
    awake=([body()], f"annotate daskautoscaler etl {ADOPT}=true"),
    at_first=([body(notes=resting(since=NOW))], "is being adopted"),
    a_second_one=([body(notes=RESTS), body("x")], "DaskAutoscaler x"),
    gone=([], "was deleted"),
    going=([body(notes=RESTS, deletionTimestamp=ko.CREATED)], "was deleted"),
)
def test_never_two_who_scale(bodies: list[dict[str, Any]], word: str) -> None:
    ours = ko.policy(labels={MANAGED_BY: BY_ADOPTION}, ownerReferences=OWNER)

    assert word in conflicting(ours, *bodies)


@table(
    "policy, status, notes, expected",
    just_made=(BY_ADOPTION, {}, {}, True),
    a_run_may_be_under_way=(BY_ADOPTION, {}, resting(since=NOW), True),
    rests=(BY_ADOPTION, {}, RESTS, False),
    it_served_before=(BY_ADOPTION, {"reason": "x"}, {}, False),
    the_autoscaler_may_never_rest=(BY_ANNOTATIONS, {}, {}, False),
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
