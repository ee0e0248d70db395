"""Which evictions wait, for how long, and what is said; the scheduler is a stand-in."""

import asyncio
import math

import pytest

from dask_adaptive.controller.evictions import FORGET_S, EvictionReviewer, is_dry_run
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.route import Routes
from dask_adaptive.loop.ports import LinkError, Retired
from dask_adaptive.model.observed import ObservedScheduler, SchedulerWorker
from support import kube_objects as ko
from support.kube_operator import QuietLink
from support.tables import table

NO_API = None

DRAINING = "waits for 1 task to finish"


class Link(QuietLink):
    """Answers as its script says: a state for each name that it is asked about."""

    def __init__(self, scene, address):
        super().__init__(address, timeout_s=1, attach=False)
        self.scene = scene

    async def leave(self, names, *, left_s, reason, ending=True):
        self.scene.asked.append((tuple(names), left_s, ending))
        if isinstance(self.scene.answer, Exception):
            raise self.scene.answer
        if self.scene.answer == "hangs":
            await asyncio.sleep(3600)
        states = self.scene.by_name
        return [
            Retired(n, states.get(n, self.scene.answer), message=self.scene.message) for n in names
        ]

    async def observe(self, policy):
        return ObservedScheduler(workers=self.scene.workers)

    async def close(self):
        self.scene.closed.append(self.address)


class Events:
    def __init__(self):
        self.posted = []

    async def post(self, about, news):
        self.posted.append((about.resource.kind, news.reason))


class Scene:
    def __init__(self, *bodies, guard=True, **spec):
        policy = ko.policy()
        policy["spec"] |= {"evictionGuard": {"enabled": guard, "maxDelay": "10m"}, **spec}
        self.world = ko.world_of(
            ko.cluster(), ko.deployment(), ko.service(), policy, *(bodies or (ko.pod(),))
        )
        self.asked = []
        self.closed = []
        self.answer = "draining"
        self.message = DRAINING
        self.by_name = {}
        self.workers = ()
        self.now, self.made = 0.0, 0
        self.events, self.metrics = Events(), Metrics()
        events = self.events
        self.reviewer = EvictionReviewer(
            self.world, events, self.metrics, routes=Routes(NO_API, self.world),
            connect=self.connect, clock=lambda: self.now,
        )  # fmt: skip

    def connect(self, address, *, tls, timeout_s, attach, governs):
        assert not attach, "who is evicted is no reason to change a scheduler"
        assert not governs, "every replica answers webhooks, and only one leads"
        self.made += 1
        return Link(self, address)

    async def evict(self, name="w1-hash-x", **more):
        request = {"uid": "u", "namespace": "ns", "name": name, "object": {}, **more}
        review = {"apiVersion": "admission.k8s.io/v1", "request": request}
        answer = (await self.reviewer.review(review))["response"]
        await asyncio.sleep(0)
        return dict(answer)

    def counted(self, result):
        return float(self.metrics.evictions.labels(result)._value.get())


def process(name, address, left_s=math.inf):
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


async def test_an_eviction_waits_while_the_worker_drains():
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


async def test_people_are_told_once_for_each_pod():
    scene = Scene()
    for scene.now in (0.0, 5.0, 10.0):
        await scene.evict()
    await scene.reviewer.close()

    assert [("Pod", "EvictionDelayed"), ("AdaptivePolicy", "EvictionDelayed")] == (
        scene.events.posted
    )


async def test_no_eviction_waits_longer_than_the_policy_allows():
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


@table(
    "left_s, allowed",
    the_first_to_tell=(600.0, [False, False, True]),
    its_lifetime_ends_whenever_that_is=(math.inf, [False, False, True]),
    another_process_has_told_before=(250.0, [False, True, True]),
    and_its_time_is_up=(0.0, [True, True, True]),
)
async def test_what_the_agent_was_told_earlier_counts(left_s, allowed):
    scene = Scene()
    scene.workers = (process("w1", "tcp://10.0.0.1:1", left_s),)
    seen = []
    for scene.now in (0.0, 300.0, 600.0):
        seen.append((await scene.evict())["allowed"])

    assert allowed == seen


@table(
    "scene",
    the_policy_does_not_ask_for_it=lambda: Scene(guard=False),
    advice_only=lambda: Scene(mode="Advise"),
    paused=lambda: Scene(mode="Paused"),
    a_policy_without_sense=lambda: Scene(minReplicas=9),
    two_policies=lambda: Scene(ko.pod(), ko.policy("b")),
    somebody_elses_cluster=lambda: Scene(ko.pod(), ko.autoscaler()),
    not_a_workers_pod=lambda: Scene(ko.pod("another")),
    going_anyway=lambda: Scene(ko.pod(metadata={"deletionTimestamp": ko.CREATED})),
)
async def test_what_is_not_guarded_is_not_asked_about(scene):
    made = scene()

    assert (await made.evict())["allowed"]
    assert [] == made.asked
    assert 1 == made.counted("not-guarded")


@pytest.mark.parametrize("answer", [LinkError("no answer"), "active", "gone", "drained"])
async def test_what_does_not_drain_is_let_go(answer):
    scene = Scene()
    scene.answer = answer

    assert (await scene.evict())["allowed"]
    assert [] == scene.events.posted
    if isinstance(answer, LinkError):
        assert 1 == scene.counted("failed")
        await scene.evict()
        assert 2 == scene.made, "a connection that failed is not used again"


async def test_a_scheduler_that_hangs_delays_nothing(monkeypatch):
    monkeypatch.setattr("dask_adaptive.controller.evictions.ANSWER_S", 0.1)
    scene = Scene()
    scene.answer = "hangs"

    assert (await scene.evict())["allowed"]
    assert 1 == scene.counted("failed")


async def test_a_worker_that_is_named_by_its_address_is_found():
    address = "tcp://10.0.0.1:4321"
    scene = Scene()
    scene.answer, scene.by_name = "gone", {address: "draining"}
    scene.workers = (process(address, address), process("w9", "tcp://10.0.0.11:4321"))

    assert not (await scene.evict())["allowed"]
    assert (address,) == scene.asked[-1][0]


async def test_the_address_of_a_host_is_nobodys():
    address = "tcp://10.0.0.1:4321"
    scene = Scene(ko.pod(spec={"hostNetwork": True}))
    scene.answer, scene.workers = "gone", (process(address, address),)

    assert (await scene.evict())["allowed"]
    assert [("w1",)] == [names for names, _, _ in scene.asked]


@table(
    "request_, dry",
    ({}, False),
    ({"object": {"deleteOptions": {"gracePeriodSeconds": 5}}}, False),
    ({"dryRun": True}, True),
    ({"object": {"deleteOptions": {"dryRun": ["All"]}}}, True),
)
async def test_a_dry_run_drains_nobody(request_, dry):
    scene = Scene()
    answer = await scene.evict(**request_)

    assert dry == is_dry_run(request_)
    assert dry == answer["allowed"]
    assert dry == (scene.asked == [])
