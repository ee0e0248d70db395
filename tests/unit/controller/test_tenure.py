"""Of several operators of one name, one serves each policy, as long as it lives."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from dask_adaptive.controller.tenure import ASK_EVERY_S, PATIENCE_S, RETRY_S, Tenures
from dask_adaptive.kube.api import ApiUnreachable, Conflict
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.objects import PolicyObject
from dask_adaptive.kube.reporter import News, Subject
from dask_adaptive.simulate.simulated_ports import completed
from support import kube_objects as ko

#: In so long another operator serves a policy whose operator has gone.
BOUND_S = ASK_EVERY_S + PATIENCE_S + 5 * RETRY_S


class Server:
    """One policy, whose versions operators hear of late; the clock of all, in seconds."""

    def __init__(self, **spec: Any) -> None:
        self.now, self.writes, self.is_down = 0.0, 0, False
        self.body = ko.policy()
        self.body["spec"] |= spec
        self.operators: list[Operator] = []

    def change(self, body: Any) -> Any:
        version = int(self.body["metadata"]["resourceVersion"]) + 1
        self.body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(version)}}
        for operator in self.operators:
            operator.coming.append((self.now + operator.late_s, copy.deepcopy(self.body)))
        return copy.deepcopy(self.body)

    async def patch(self, path: str, body: Any) -> Any:
        assert path.endswith("/adaptivepolicies/etl/status")
        if self.is_down:
            raise ApiUnreachable("no answer")
        if body["metadata"]["resourceVersion"] != self.body["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified")
        self.writes += 1
        status = merged(self.body.get("status") or {}, body["status"])
        return self.change({**self.body, "status": status})

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.now += 1.0
            for operator in self.operators:
                operator.turn()

    @property
    def served_by(self) -> str:
        return str((self.body["status"].get("servedBy") or {}).get("operator", ""))


def merged(old: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    both = {k: merged(old.get(k) if isinstance(old, dict) else None, v) for k, v in patch.items()}
    rest = {k: v for k, v in old.items() if k not in patch} if isinstance(old, dict) else {}
    return rest | {k: v for k, v in both.items() if v is not None}


class Operator:
    """One installation; while it is not alive it hears, says and does nothing."""

    def __init__(self, server: Server, name: str, *, late_s: float = 0.0, **more: Any) -> None:
        self.server, self.name, self.late_s, self.more = server, name, late_s, more
        self.coming: list[tuple[float, Any]] = []
        self.told: list[str] = []
        server.operators.append(self)
        self.start()

    def start(self) -> None:
        """Begin, or begin anew: with a list, and without any memory."""
        api: Any = self.server
        events: Any = self
        self.world, self.coming, self.is_alive = World(), [], True
        ko.take(self.world, "ADDED", copy.deepcopy(self.server.body))
        self.tenures = Tenures(
            self.world, api, events, me=self.name, clock=lambda: self.server.now,
            **{"controller": "dask-adaptive", **self.more},
        )  # fmt: skip
        self.world.listen(self.tenures.on_change)
        self.tenures.on_change(ko.KEY)

    async def post(self, about: Subject, news: News) -> None:
        self.told.append(news.message)

    def turn(self) -> None:
        if not self.is_alive:
            return
        due = [body for at, body in self.coming if at <= self.server.now]
        self.coming = self.coming[len(due) :]
        for body in due:
            ko.take(self.world, "MODIFIED", body)
        completed(self.tenures.settle())

    @property
    def holds(self) -> bool:
        (policy,) = self.world.all(PolicyObject)
        return self.is_alive and self.tenures.holds(policy)


def holders(server: Server) -> list[str]:
    return [operator.name for operator in server.operators if operator.holds]


def test_one_writes_its_name_once_and_then_nothing() -> None:
    server = Server()
    Operator(server, "a")
    server.pass_time(3600)

    assert (["a"], 1) == (holders(server), server.writes)


@pytest.mark.parametrize("late_s", [0.0, 12.0])
def test_of_two_the_second_waits_and_both_tell(late_s: float) -> None:
    server = Server()
    a = Operator(server, "a", late_s=late_s)
    server.pass_time(1)
    b = Operator(server, "b", late_s=late_s)
    for _ in range(3600):
        server.pass_time(1)
        assert ["a"] == holders(server)

    (told_by_a,), (told_by_b,) = set(a.told), set(b.told)
    assert "operator b would serve this policy, too" in told_by_a
    assert "operator a serves this policy, so operator b" in told_by_b
    assert server.writes <= 1 + 2 * (3600 / ASK_EVERY_S + 1)
    assert "b" == server.body["status"]["contestedBy"]["operator"]


def test_who_has_gone_is_followed_and_who_comes_back_waits() -> None:
    server = Server()
    a, b = Operator(server, "a"), Operator(server, "b")
    server.pass_time(400)
    (first,) = holders(server)
    gone, other = (a, b) if first == "a" else (b, a)
    gone.is_alive = False
    server.pass_time(BOUND_S)
    assert [other.name] == holders(server)
    gone.start()
    server.pass_time(BOUND_S)
    assert [other.name] == holders(server)


def test_one_that_only_restarts_loses_nothing() -> None:
    server = Server()
    a = Operator(server, "a")
    server.pass_time(5)
    Operator(server, "b")
    server.pass_time(100)
    for _ in range(20):
        a.is_alive = False
        server.pass_time(PATIENCE_S - 5)
        a.start()
        server.pass_time(60)
        assert ["a"] == holders(server)


def test_a_dispute_is_forgotten_when_the_other_one_has_gone() -> None:
    server = Server()
    Operator(server, "a")
    server.pass_time(5)
    b = Operator(server, "b")
    server.pass_time(400)
    b.is_alive = False
    server.pass_time(3 * ASK_EVERY_S)

    assert "contestedBy" not in server.body["status"]


def test_a_policy_that_gets_another_name_changes_hands_at_once() -> None:
    server = Server()
    a, b = Operator(server, "a"), Operator(server, "b", controller="team-b")
    server.pass_time(400)
    assert (["a"], 1) == (holders(server), server.writes)
    spec = {**server.body["spec"], "controllerName": "team-b"}
    server.change({**server.body, "spec": spec})
    server.pass_time(5)

    assert (["b"], "b") == (holders(server), server.served_by)
    assert [] == a.told + b.told


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_one_holds_and_only_one_for_long(seed: int) -> None:
    """Three operators that hear late, end, begin again, and an API server that is away."""
    rng = random.Random(seed)
    server = Server()
    operators = [Operator(server, name, late_s=rng.choice([0.0, 3.0, 12.0])) for name in "abc"]
    for _ in range(60):
        one = rng.choice(operators)
        if rng.random() < 0.5:
            one.is_alive = False
        elif not one.is_alive:
            one.start()
        server.is_down = rng.random() < 0.1
        for _ in range(rng.choice([1, 10, 60, 200])):
            server.pass_time(1)
            held = holders(server)  # who has not heard yet that it was followed learns of it soon
            late = [o for o in operators if o.name in held and o.coming]
            assert len(held) - len(late) <= 1, held
    server.is_down = False
    alive = rng.choice(operators)
    for one in operators:
        one.is_alive = one is alive
    alive.start()
    server.pass_time(BOUND_S)
    assert [alive.name] == holders(server)
