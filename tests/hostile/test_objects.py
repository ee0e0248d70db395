"""
Objects with hostile values in whatever their parsers read, beside three honest clusters: those are
read as ever, and what can't be read is counted and named.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dask_adaptive.controller.annotated_policies import AnnotatedPolicies
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.annotated import steps
from dask_adaptive.kube.cache.informer import Informer
from dask_adaptive.kube.cache.world import KINDS, Kind, World
from dask_adaptive.kube.notes import PREFIX
from dask_adaptive.kube.objects import (
    HANDLED,
    AutoscalerObject,
    BudgetObject,
    ClusterObject,
    PolicyObject,
    text_at,
)
from dask_adaptive.kube.reporter import EventPoster
from dask_adaptive.kube.shared_budgets import pools_of, read_budgets
from dask_adaptive.kube.view import view
from dask_adaptive.loop.ports import PlatformUnread
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.policy import InvalidPolicy
from support import kube_objects as ko
from support.stored_api import StoredApi

CASES = int(os.environ.get("HOSTILE_CASES", "100"))

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(autouse=True)
def _log_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with halves of characters can't be sent to another process, as pytest-xdist does."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)


#: Of CPU: one object may cost so much. Honest ones cost a hundredth.
LONGEST_S = 0.3

HONEST = [ClusterKey(namespace, "etl") for namespace in ("a", "b", "c")]
EVIL = ClusterKey("evil", "etl")


def deep(depth: int) -> Any:
    node: Any = 1
    for _ in range(depth):
        node = [node]
    return node


HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0.5, 10**400, -(10**30), 1e300, "", "x", "\x1b]0;x\x07\x00", "\ud800", "٣",
    "9" * 5000, "-" + "9" * 5000, "1e999999999", "1e-999999999", "NaN", "Infinity", "1e400",
    "[" * 100_000, "{" * 3000, "-" * 20_000 + "1", f"{{'a': {10**400}}}", "{[]: 1}",
    "{'a': " * 500, f"dask worker --nthreads {'9' * 5000}", "dask worker --nthreads=$(A)",
    "dask worker " + "'" * 999, "dask worker " + "a " * 200_000, "99999999h", "9" * 5000 + "h",
    "9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00", "9" * 5000 + "m", "9" * 39 + "E",
    "a" * 100_000, {}, [], [None], [5], {"a": None}, {"": ""}, {"cpu": "9" * 39 + "E"}, deep(500),
    deep(5000), [{"name": "A", "value": "$(A)" * 1000}] * 50,
)  # fmt: skip


def paths(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else ()
    items = enumerate(node) if isinstance(node, list) else items
    for name, child in items:
        yield (*path, name)
        yield from paths(child, (*path, name))


NODE = ko.node("evil-node", "karpenter.sh/disrupted", spec={"unschedulable": True})
BODIES = {body["kind"]: body for body in (*ko.one_of_each(EVIL), NODE)}
PATHS = {
    kind: [p for p in paths(body) if p != ("kind",) and (kind, p[-1]) != ("Node", "namespace")]
    for kind, body in BODIES.items()
}

#: A kind, and of fields the numbers of their new values; one that there is not: it is left out.
Recipe = tuple[str, list[tuple[tuple[Any, ...], int]]]


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Short to print, as the values are long."""
    kind = draw(st.sampled_from(sorted(BODIES)))
    changes = st.tuples(st.sampled_from(PATHS[kind]), st.integers(0, len(HOSTILE)))
    return kind, draw(st.lists(changes, min_size=1, max_size=3))


def made(recipe: Recipe) -> dict[str, Any]:
    kind, changes = recipe
    body = copy.deepcopy(BODIES[kind])
    for path, number in changes:
        is_gone = number == len(HOSTILE)
        _set(body, path, None if is_gone else HOSTILE[number], is_gone=is_gone)
    return body


def _set(node: Any, path: tuple[Any, ...], value: Any, *, is_gone: bool = False) -> None:
    for name in path[:-1]:
        try:
            node = node[name]
        except (LookupError, TypeError):
            return  # an earlier change has taken its place
        if any(node is one for one in HOSTILE):
            return  # shared by all cases
    if isinstance(node, dict) and is_gone:
        node.pop(path[-1], None)
    else:
        node[path[-1]] = value


class Listed:
    """An API server that lists some objects, and tells of others."""

    def __init__(self, listed: list[Any], told: list[tuple[str, Any]]) -> None:
        self._listed, self._told = listed, told
        self.is_told = asyncio.Event()

    async def pages(self, path: str, *, selector: str = "") -> AsyncIterator[Any]:
        yield {"metadata": {"resourceVersion": "7"}, "items": self._listed}

    async def watch(self, path: str, **_: Any) -> AsyncIterator[tuple[str, Any]]:
        for event, body in self._told:
            yield event, body
        self.is_told.set()
        await asyncio.Event().wait()


async def follow(world: World, kind: Kind, listed: list[Any], told: list[tuple[str, Any]]) -> None:
    """By an informer, until it has heard all."""
    api = Listed(listed, told)
    informer = Informer((kind, None), api=api, world=world)  # type: ignore[arg-type]
    task = asyncio.create_task(informer.run())
    try:
        async with asyncio.timeout(30):
            await api.is_told.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert "" == world.unread(), "one object made its whole kind unreadable"


def seen_of(world: World, key: ClusterKey) -> Any:
    return view(world, key, now=ko.CREATED_AT + 60)


def honest_world() -> World:
    return ko.world_of(*(body for key in HONEST for body in ko.one_of_each(key)), ko.node())


BEFORE = {key: seen_of(honest_world(), key) for key in HONEST}


def look_at_all(world: World) -> None:
    """What is done about all clusters together, outside the border of each of them."""
    for kind in KINDS:
        world.all(kind.type)
    budgets, _ = read_budgets(world.all(BudgetObject))
    pools_of(world, budgets, {})


def made_of(world: World, key: ClusterKey) -> None:
    cluster = world.get(ClusterObject, *key)
    if cluster is not None:
        steps(cluster, world.of(PolicyObject, key), world.of(AutoscalerObject, key))


cases = settings(
    max_examples=CASES, derandomize=True, database=None, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@cases
@given(recipes(), st.booleans())
def test_what_cannot_be_read_is_counted_and_named_and_harms_nobody(
    recipe: Recipe, is_known: bool
) -> None:
    body = made(recipe)
    kind = ko.KIND[body["kind"]]
    world, good = honest_world(), BODIES[body["kind"]]
    if is_known:
        world.take(kind, "ADDED", good)
    every = (*(b for key in HONEST for b in ko.one_of_each(key)), ko.node())
    honest = [one for one in every if one["kind"] == body["kind"]]
    count = len(world.all(kind.type)) - is_known

    began = time.process_time()
    told = [("MODIFIED", body), ("MODIFIED", honest[0])]
    asyncio.run(follow(world, kind, [*honest, body], told))
    assert time.process_time() - began < LONGEST_S + 0.2, "reading it took too long"

    look_at_all(world)
    for key in HONEST:
        assert BEFORE[key] == seen_of(world, key)
        made_of(world, key)
        assert "" == world.fault(key)
    assert world.faults(kind) in (0, 1)
    if world.faults(kind):
        about = ClusterKey(text_at(body, "metadata", "namespace"), text_at(body, *kind.cluster))
        said = next(
            text
            for text in (world.fault(EVIL), world.fault(about), *world.losses("evil"))
            if "can't be read: " in text
        )
        assert len(said) < 600
        assert said.partition("can't be read: ")[2].isprintable()
    elif kind.type is not PolicyObject:
        assert count + 1 == len(world.all(kind.type)), "it is neither read nor counted"

    world.take(kind, "MODIFIED", good)  # it is mended
    world.take(kind, "DELETED", body)
    world.take(kind, "DELETED", good)
    asyncio.run(follow(world, kind, honest, []))
    assert 0 == world.faults(kind)


@cases
@given(recipes())
@example(("ResourceQuota", [(("spec", "scopes"), len(HOSTILE) - 2)]))  # too deep to be looked up
def test_a_clusters_own_pass_says_it_in_words(recipe: Recipe) -> None:
    """What can be read must make sense to whoever looks at the cluster: only such errors."""
    world = ko.world_of(*ko.one_of_each(EVIL))
    ko.take(world, "MODIFIED", made(recipe))
    with contextlib.suppress(InvalidPolicy):
        seen_of(world, EVIL)
        made_of(world, EVIL)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("DaskWorkerGroup", ("metadata", "annotations", HANDLED), "[" * 100_000),
        ("DaskWorkerGroup", ("spec", "worker", "spec", "containers", 0, "args", 0),
         f"dask worker --nthreads {'9' * 5000}"),
        ("DaskWorkerGroup", ("spec", "worker", "spec", "containers", 0, "env", 0, "value"),
         f"{{'a': {10**400}}}"),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "resources", "limits", "cpu"),
         "1e999999999"),
    ],
)  # fmt: skip
def test_legal_and_absurd_values_are_bounded_where_they_are_read(
    kind: str, path: tuple[Any, ...], value: str
) -> None:
    """The API server takes these: one group in any namespace stopped all clusters."""
    body = copy.deepcopy(BODIES[kind])
    _set(body, path, value)

    world = ko.world_of(body)

    assert 0 == world.faults(ko.KIND[kind])


def test_an_object_that_cannot_be_read_holds_its_cluster() -> None:
    """In doubt no worker is taken away: one whose pin is not seen might be."""
    world = honest_world()
    woken: list[ClusterKey] = []
    world.listen(woken.append)
    broken: Mapping[str, Any] = {**ko.group(), "spec": {"cluster": "etl", "worker": 5}}
    broken["metadata"]["namespace"] = "a"
    world.take(ko.KIND["DaskWorkerGroup"], "MODIFIED", broken)

    fault = world.fault(HONEST[0])

    assert "DaskWorkerGroup etl-default can't be read" in fault
    assert [HONEST[0]] == woken
    assert BEFORE[HONEST[0]] == seen_of(world, HONEST[0]), "it is as it was read last"
    assert 1 == world.faults(ko.KIND["DaskWorkerGroup"])


async def test_nothing_is_changed_in_its_cluster_and_its_policy_says_so() -> None:
    world = ko.world_of(*ko.one_of_each(EVIL))
    world.take(ko.KIND["Pod"], "MODIFIED", {**BODIES["Pod"], "status": "\x1b]0;x\x07"})

    with pytest.raises(PlatformUnread, match="Pod w1-hash-x can't be read"):
        await ko.platform_of(EVIL, world).look()


def test_what_is_about_all_clusters_of_a_namespace_is_named_by_each() -> None:
    world = honest_world()
    world.take(ko.KIND["ResourceQuota"], "ADDED", {**BODIES["ResourceQuota"], "status": 5})

    (loss,) = world.losses("evil")

    assert "ResourceQuota team can't be read" in loss
    assert () == world.losses("a")


def test_metrics_count_them_by_kind() -> None:
    world, metrics = World(), Metrics()
    metrics.unreadable("Pod", partial(world.faults, ko.KIND["Pod"]))
    world.take(ko.KIND["Pod"], "ADDED", {"metadata": {"name": "evil", "namespace": "x"}, "spec": 5})

    assert b'dask_adaptive_unreadable_objects{kind="Pod"} 1.0' in metrics.render()


@pytest.mark.parametrize("is_listed", [True, False])
async def test_an_answer_that_comes_after_the_news_of_its_deletion_is_no_object(
    is_listed: bool,
) -> None:
    world, kind = ko.world_of(*ko.one_of_each(EVIL)), ko.KIND["DaskWorkerGroup"]
    (answer,) = world.all(kind.type)
    if is_listed:  # the watch had missed it
        await follow(world, kind, [], [])
    else:
        world.take(kind, "DELETED", BODIES["DaskWorkerGroup"])

    world.put(answer)
    assert [] == world.all(kind.type)

    made_anew = {**BODIES["DaskWorkerGroup"]["metadata"], "uid": "another"}
    world.take(kind, "ADDED", {**BODIES["DaskWorkerGroup"], "metadata": made_anew})
    world.put(answer)
    assert ["another"] == [group.meta.uid for group in world.all(kind.type)]


async def test_one_clusters_annotations_stop_no_others_policy() -> None:
    """`steps` is asked about all clusters in turn, by a task that the operator can't go without."""
    evil = ko.cluster("a-evil", annotations={f"{PREFIX}max-replicas": "9" * 5000})
    honest = ko.cluster("honest", annotations={f"{PREFIX}max-replicas": "3"})
    api = StoredApi(ko.namespace(), evil, honest)
    keeper = AnnotatedPolicies(ko.world_of(evil, honest), api, EventPoster(api, time.time))
    running = asyncio.create_task(keeper.run())
    try:
        async with asyncio.timeout(10):
            while api.count("create events") + api.count("create adaptivepolicies") < 2:
                await asyncio.sleep(0.01)
    finally:
        running.cancel()

    assert "create adaptivepolicies honest" in api.asked
