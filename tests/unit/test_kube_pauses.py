"""Annotations that pause: what they hold, until when, and whose counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio import client

from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.pauses import NAMES, PREFIX
from dask_adaptive.kube.platform import KubePlatform
from dask_adaptive.kube.view import view
from dask_adaptive.kube.world import KINDS
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.pins import instant
from dask_adaptive.model.scaling import NO_PAUSE, Pause
from support import kube_objects as ko

KEY = ClusterKey("ns", "etl")
KIND = {k.resource.kind: k for k in KINDS}
NOW = ko.CREATED_AT + 600
SOON, PAST = instant(NOW + 60), instant(NOW - 60)


def pause(policy: Any = None, cluster: Any = None, *, now: float = NOW) -> Pause:
    world = ko.world_of(
        ko.cluster(**(ko.noted(**cluster) if cluster else {})),
        ko.policy(**(ko.noted(**policy) if policy else {})),
    )
    return view(world, KEY, now=now, read_pin=lambda notes: None).pause


def said(name: str, value: str, on: str = "AdaptivePolicy etl") -> str:
    return f'{PREFIX}{name}: "{value}" on {on}'


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        pytest.param({}, NO_PAUSE, id="nothing"),
        pytest.param(
            {"paused": "true"}, Pause(all=True, message=said("paused", "true")), id="paused"
        ),
        pytest.param({"paused": "false"}, NO_PAUSE, id="not-paused"),
        pytest.param({"paused": ""}, NO_PAUSE, id="empty"),
        pytest.param(
            {"paused_until": SOON},
            Pause(all=True, left_s=60.0, message=f"{said('paused-until', SOON)} until {SOON}"),
            id="until-an-instant",
        ),
        pytest.param({"paused_until": PAST}, NO_PAUSE, id="resumes-by-itself"),
        pytest.param(
            {"paused_until": "15m"},
            Pause(
                all=True,
                left_s=300.0,
                message=f"{said('paused-until', '15m')} until {instant(NOW + 300)}",
            ),
            id="for-a-time-since-it-was-set",
        ),
        pytest.param({"paused_until": "10m"}, NO_PAUSE, id="the-time-is-over"),
        pytest.param(
            {"paused_scale_in": "TRUE"},
            Pause(scale_in=True, message=said("paused-scale-in", "TRUE")),
            id="scale-in",
        ),
        pytest.param(
            {"paused_scale_out": SOON},
            Pause(
                scale_out=True,
                left_s=60.0,
                message=f"{said('paused-scale-out', SOON)} until {SOON}",
            ),
            id="scale-out-until-an-instant",
        ),
        pytest.param(
            {"paused_replicas": "3"},
            Pause(replicas=3, message=said("paused-replicas", "3")),
            id="at-a-number",
        ),
        pytest.param({"paused_replicas": "false"}, NO_PAUSE, id="at-no-number"),
        pytest.param(
            {"paused": "true", "paused_until": PAST},
            Pause(all=True, message=said("paused", "true")),
            id="an-old-instant-lifts-nothing",
        ),
        pytest.param(
            {"paused_scale_in": "true", "paused_until": SOON},
            Pause(
                all=True,
                scale_in=True,
                message=f"{said('paused-until', SOON)} until {SOON}; "
                + said("paused-scale-in", "true"),
            ),
            id="several",
        ),
    ],
)
def test_what_is_held(notes: dict[str, str], expected: Pause) -> None:
    assert expected == pause(notes)
    assert expected.left_s == pause(cluster=notes).left_s


@pytest.mark.parametrize(
    ("name", "value", "held"),
    [
        ("paused", "yes", {"all": True}),
        ("paused_until", "true", {"all": True}),
        ("paused_until", "tomorrow", {"all": True}),
        ("paused_until", "2026-02-01T18:00:00", {"all": True}),  # without its time zone
        ("paused_scale_in", "1", {"scale_in": True}),
        ("paused_scale_out", "-5m", {"scale_out": True}),
        ("paused_replicas", "three", {"all": True}),
        ("paused_replicas", "-1", {"all": True}),
        ("paused_replicas", "true", {"all": True}),
    ],
)
def test_what_cannot_be_read_pauses_and_says_how_to_mend_it(
    name: str, value: str, held: dict[str, Any]
) -> None:
    found = pause({name: value})

    note = said(name.replace("_", "-"), value)
    assert Pause(message=note, problem=found.problem, **held) == found
    assert found.problem.startswith(f"{note} is not ")
    assert "such as" in found.problem
    assert found.problem.endswith("it pauses until it is mended or removed")


def test_the_policys_annotation_wins_over_the_clusters_of_the_same_name() -> None:
    assert NO_PAUSE == pause({"paused": "false"}, {"paused": "true"})
    assert 2 == pause({"paused_replicas": "2"}, {"paused_replicas": "5"}).replicas
    both = pause({"paused": "false"}, {"paused": "true", "paused_scale_in": "true"})
    assert Pause(scale_in=True, message=said("paused-scale-in", "true", "DaskCluster etl")) == both


def test_a_policy_that_is_being_deleted_pauses_nothing() -> None:
    going = ko.policy(**ko.noted(paused="true"), deletionTimestamp=ko.CREATED)
    world = ko.world_of(ko.cluster(), going)

    assert NO_PAUSE == view(world, KEY, now=NOW, read_pin=lambda notes: None).pause


@pytest.fixture
async def offline() -> AsyncIterator[KubeApi]:
    """A connection that is never used: all that is asked is in the cache."""
    api = KubeApi(client.ApiClient(client.Configuration(host="http://127.0.0.1:1")))
    yield api
    await api.close()


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


async def test_a_duration_does_not_begin_anew_when_its_writer_writes_something_else(
    offline: KubeApi,
) -> None:
    """The API server moves a manager's time with each of its writes to the object."""
    clock, world = Clock(), ko.world_of(ko.cluster(), ko.policy(**ko.noted(paused_until="15m")))
    platform = KubePlatform(
        KEY, api=offline, world=world, wall_clock=clock, manual_max_s=lambda: 0.0
    )
    assert 300.0 == (await platform.look()).pause.left_s

    later = ko.noted(paused_until="15m", at=instant(NOW))
    world.take(KIND["AdaptivePolicy"], "MODIFIED", ko.policy(**later, resourceVersion="2"))
    assert 300.0 == (await platform.look()).pause.left_s

    clock.now += 300
    assert NO_PAUSE == (await platform.look()).pause


async def test_a_duration_that_nobody_noted_counts_from_when_it_was_first_seen(
    offline: KubeApi,
) -> None:
    unnoted = {"annotations": {f"{PREFIX}paused-scale-in": "15m"}}
    clock, world = Clock(), ko.world_of(ko.cluster(**unnoted), ko.policy())
    platform = KubePlatform(
        KEY, api=offline, world=world, wall_clock=clock, manual_max_s=lambda: 0.0
    )
    assert 900.0 == (await platform.look()).pause.left_s

    clock.now += 300
    assert 600.0 == (await platform.look()).pause.left_s


def test_a_pause_is_told_to_who_watches_the_cluster() -> None:
    world = ko.world_of(ko.cluster(), ko.policy())
    told: list[ClusterKey] = []
    world.listen(told.append)
    world.take(
        KIND["AdaptivePolicy"],
        "MODIFIED",
        ko.policy(**ko.noted(paused="true"), resourceVersion="2"),
    )

    assert [KEY] == told


def test_every_name_is_read() -> None:
    assert set(NAMES) == {
        "paused", "paused-until", "paused-scale-in", "paused-scale-out", "paused-replicas",
    }  # fmt: skip
