"""Which evictions wait, for how long, and what is said; the scheduler is a stand-in."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from dask_adaptive.controller.evictions import FORGET_S, EvictionReviewer, is_dry_run
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.reporter import News, Subject
from dask_adaptive.kube.route import Routes
from dask_adaptive.loop.ports import LinkError, Retired, Tls
from dask_adaptive.model.observed import ObservedScheduler, SchedulerWorker
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from support import kube_objects as ko
from support.kube_operator import QuietLink

NO_API: Any = None

DRAINING = "waits for 1 task to finish"


class Link(QuietLink):
    """Answers as its script says: a state for each name that it is asked about."""

    def __init__(self, scene: Scene, address: str) -> None:
        super().__init__(address, timeout_s=1, attach=False)
        self.scene = scene

    async def leave(
        self, names: Sequence[str], *, left_s: float, reason: Reason, ending: bool = True
    ) -> list[Retired]:
        self.scene.asked.append((tuple(names), left_s, ending))
        if isinstance(self.scene.answer, Exception):
            raise self.scene.answer
        if self.scene.answer == "hangs":
            await asyncio.sleep(3600)
        states = self.scene.by_name
        return [
            Retired(n, states.get(n, self.scene.answer), message=self.scene.message) for n in names
        ]

    async def observe(self, policy: Policy) -> ObservedScheduler:
        return ObservedScheduler(workers=self.scene.workers)

    async def close(self) -> None:
        self.scene.closed.append(self.address)


class Events:
    def __init__(self) -> None:
        self.posted: list[tuple[str, str]] = []

    async def post(self, about: Subject, news: News) -> None:
        self.posted.append((about.resource.kind, news.reason))


class Scene:
    def __init__(self, *bodies: dict[str, Any], guard: bool = True, **spec: Any) -> None:
        policy = ko.policy()
        policy["spec"] |= {"evictionGuard": {"enabled": guard, "maxDelay": "10m"}, **spec}
        self.world = ko.world_of(
            ko.cluster(), ko.deployment(), ko.service(), policy, *(bodies or (ko.pod(),))
        )
        self.asked: list[tuple[tuple[str, ...], float, bool]] = []
        self.closed: list[str] = []
        self.answer: Any = "draining"
        self.message = DRAINING
        self.by_name: dict[str, str] = {}
        self.workers: tuple[SchedulerWorker, ...] = ()
        self.now, self.made = 0.0, 0
        self.events, self.metrics = Events(), Metrics()
        events: Any = self.events
        self.reviewer = EvictionReviewer(
            self.world, events, self.metrics, routes=Routes(NO_API, self.world),
            connect=self.connect, clock=lambda: self.now,
        )  # fmt: skip

    def connect(
        self, address: str, *, tls: Tls | None, timeout_s: float, attach: bool, governs: bool
    ) -> Any:
        assert not attach, "who is evicted is no reason to change a scheduler"
        assert not governs, "every replica answers webhooks, and only one leads"
        self.made += 1
        return Link(self, address)

    async def evict(self, name: str = "w1-hash-x", **more: Any) -> dict[str, Any]:
        request = {"uid": "u", "namespace": "ns", "name": name, "object": {}, **more}
        review = {"apiVersion": "admission.k8s.io/v1", "request": request}
        answer = (await self.reviewer.review(review))["response"]
        await asyncio.sleep(0)
        return dict(answer)

    def counted(self, result: str) -> float:
        return float(self.metrics.evictions.labels(result)._value.get())


def process(name: str, address: str, left_s: float = math.inf) -> SchedulerWorker:
    return SchedulerWorker(
        name,
        address,
        "running",
        1,
        processing=1,
        idle_since=0.0,
        sole_bytes=0,
        terminates_at=left_s,
    )


async def test_an_eviction_waits_while_the_worker_drains() -> None:
    scene = Scene()
    answer = await scene.evict()

    assert not answer["allowed"]
    assert (429, "TooManyRequests") == (answer["status"]["code"], answer["status"]["reason"])
    assert (
        "worker w1 is draining: waits for 1 task to finish; evict again in some seconds"
        " (evictionGuard, at most 10m more)"
    ) == answer["status"]["message"]
    assert [(("w1",), 600.0, False)] == scene.asked
    scene.answer = "drained"
    assert (await scene.evict())["allowed"]
    assert (1, 1) == (scene.counted("delayed"), scene.counted("drained"))
    assert 1 == scene.made, "one connection"
    await scene.reviewer.close()
    assert ["tcp://10.96.0.9:8786"] == scene.closed


async def test_people_are_told_once_for_each_pod() -> None:
    scene = Scene()
    for scene.now in (0.0, 5.0, 10.0):
        await scene.evict()
    await scene.reviewer.close()

    assert [("Pod", "EvictionDelayed"), ("AdaptivePolicy", "EvictionDelayed")] == (
        scene.events.posted
    )


async def test_no_eviction_waits_longer_than_the_policy_allows() -> None:
    scene = Scene()
    allowed = []
    for scene.now in (0.0, 300.0, 599.0, 600.0, 605.0):
        allowed.append((await scene.evict())["allowed"])

    assert [False, False, False, True, True] == allowed
    assert [600.0, 300.0, 1.0] == [left_s for _, left_s, _ in scene.asked]
    scene.now += FORGET_S - 1
    assert (await scene.evict())["allowed"], "who still asks has not given up"
    scene.now += FORGET_S
    assert not (await scene.evict())["allowed"], "nobody did for long: this is a new eviction"


@pytest.mark.parametrize(
    ("left_s", "allowed"),
    [
        pytest.param(600.0, [False, False, True], id="the-first-to-tell"),
        pytest.param(math.inf, [False, False, True], id="its-lifetime-ends-whenever-that-is"),
        pytest.param(250.0, [False, True, True], id="another-process-has-told-before"),
        pytest.param(0.0, [True, True, True], id="and-its-time-is-up"),
    ],
)
async def test_what_the_agent_was_told_earlier_counts(left_s: float, allowed: list[bool]) -> None:
    scene = Scene()
    scene.workers = (process("w1", "tcp://10.0.0.1:1", left_s),)
    seen = []
    for scene.now in (0.0, 300.0, 600.0):
        seen.append((await scene.evict())["allowed"])

    assert allowed == seen


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(lambda: Scene(guard=False), id="the-policy-does-not-ask-for-it"),
        pytest.param(lambda: Scene(mode="Advise"), id="advice-only"),
        pytest.param(lambda: Scene(mode="Paused"), id="paused"),
        pytest.param(lambda: Scene(minReplicas=9), id="a-policy-without-sense"),
        pytest.param(lambda: Scene(ko.pod(), ko.policy("b")), id="two-policies"),
        pytest.param(lambda: Scene(ko.pod(), ko.autoscaler()), id="somebody-elses-cluster"),
        pytest.param(lambda: Scene(ko.pod("another")), id="not-a-workers-pod"),
        pytest.param(
            lambda: Scene(ko.pod(metadata={"deletionTimestamp": ko.CREATED})), id="going-anyway"
        ),
    ],
)
async def test_what_is_not_guarded_is_not_asked_about(scene: Any) -> None:
    made = scene()

    assert (await made.evict())["allowed"]
    assert [] == made.asked
    assert 1 == made.counted("not-guarded")


@pytest.mark.parametrize("answer", [LinkError("no answer"), "active", "gone", "drained"])
async def test_what_does_not_drain_is_let_go(answer: Any) -> None:
    scene = Scene()
    scene.answer = answer

    assert (await scene.evict())["allowed"]
    assert [] == scene.events.posted
    if isinstance(answer, LinkError):
        assert 1 == scene.counted("failed")
        await scene.evict()
        assert 2 == scene.made, "a connection that failed is not used again"


async def test_a_scheduler_that_hangs_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dask_adaptive.controller.evictions.ANSWER_S", 0.1)
    scene = Scene()
    scene.answer = "hangs"

    assert (await scene.evict())["allowed"]
    assert 1 == scene.counted("failed")


async def test_a_worker_that_is_named_by_its_address_is_found() -> None:
    address = "tcp://10.0.0.1:4321"
    scene = Scene()
    scene.answer, scene.by_name = "gone", {address: "draining"}
    scene.workers = (process(address, address), process("w9", "tcp://10.0.0.11:4321"))

    assert not (await scene.evict())["allowed"]
    assert (address,) == scene.asked[-1][0]


async def test_the_address_of_a_host_is_nobodys() -> None:
    address = "tcp://10.0.0.1:4321"
    scene = Scene(ko.pod(spec={"hostNetwork": True}))
    scene.answer, scene.workers = "gone", (process(address, address),)

    assert (await scene.evict())["allowed"]
    assert [("w1",)] == [names for names, _, _ in scene.asked]


@pytest.mark.parametrize(
    ("request_", "dry"),
    [
        ({}, False),
        ({"object": {"deleteOptions": {"gracePeriodSeconds": 5}}}, False),
        ({"dryRun": True}, True),
        ({"object": {"deleteOptions": {"dryRun": ["All"]}}}, True),
    ],
)
async def test_a_dry_run_drains_nobody(request_: dict[str, Any], dry: bool) -> None:
    scene = Scene()
    answer = await scene.evict(**request_)

    assert dry == is_dry_run(request_)
    assert dry == answer["allowed"]
    assert dry == (scene.asked == [])
