"""What can go wrong, each fault with a beginning and an end; and schedules of faults, by seed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from chaos.apiserver import Ask, Cut, Trouble
from chaos.store import Refused
from dask_adaptive.kube import api

if TYPE_CHECKING:
    from chaos.round import World

#: Kinds without which nothing can be decided, and those whose loss costs a feature.
NEEDED = (api.POLICIES, api.CLUSTERS, api.GROUPS, api.DEPLOYMENTS, api.PODS)
OPTIONAL = (api.AUTOSCALERS, api.SERVICES, api.QUOTAS, api.NODES)

Step: TypeAlias = "Callable[[World], Awaitable[None] | None]"


@dataclass
class Fault:
    """
    Attributes:
        seconds: From its beginning to its end; 0: it is over at once.
        trouble: Of the API server, meanwhile.
    """

    about: str = ""
    seconds: float = 0.0
    trouble: Trouble | None = None
    begin: Step = lambda world: None
    end: Step = lambda world: None


@dataclass
class Where(Trouble):
    """Trouble for operators alone, with some kinds in some namespace."""

    world: World
    kinds: tuple[api.Resource, ...] = ()  # empty: all
    namespace: str = ""  # empty: all

    def hits(self, ask: Ask) -> bool:
        return (
            ask.who in self.world.operators
            and (not self.kinds or ask.kind in self.kinds)
            and self.namespace in ("", ask.namespace)
        )

    def __str__(self) -> str:
        kinds = "+".join(kind.plural for kind in self.kinds)
        return f"{kinds}{' of ' if self.namespace else ''}{self.namespace}"


@dataclass
class Answers(Where):
    """A share of requests is refused; open streams break, too, where all are refused."""

    code: int = 503
    share: float = 1.0
    after_s: int | None = None
    only: Callable[[Ask], bool] = lambda ask: True

    def hits(self, ask: Ask) -> bool:
        return super().hits(ask) and self.only(ask)

    async def before(self, ask: Ask) -> None:
        if self.hits(ask) and self.world.dice.random() < self.share:
            raise refusal(self.code, self.after_s)

    def ends(self, ask: Ask) -> None:
        if self.hits(ask) and self.share == 1.0:
            raise Cut


@dataclass
class StreamError(Where):
    code: int = 500

    def ends(self, ask: Ask) -> None:
        if self.hits(ask):
            raise refusal(self.code)


@dataclass
class Late(Where):
    by_s: float = math.inf

    def late_s(self, ask: Ask) -> float:
        return self.by_s if self.hits(ask) else 0.0


@dataclass
class Slow(Where):
    """Answers take as long as clients wait; some numbers are written as late."""

    async def before(self, ask: Ask) -> None:
        if self.hits(ask) and ask.part == "scale" and self.world.dice.random() < 0.5:
            await asyncio.sleep(10.0)

    async def after(self, ask: Ask) -> None:
        if self.hits(ask):
            await asyncio.sleep(self.world.dice.uniform(8.0, 11.0))


@dataclass
class Partition(Late):
    """Nothing arrives, in either direction. What was asked meanwhile is lost."""

    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def before(self, ask: Ask) -> None:
        if self.hits(ask):
            await self.over.wait()
            raise Cut


class Reset(Where):
    """Connections break, and new ones are refused."""

    async def before(self, ask: Ask) -> None:
        self.ends(ask)

    def ends(self, ask: Ask) -> None:
        if self.hits(ask):
            raise Cut


@dataclass
class Kill(Where):
    """The operator that writes next is killed: before the write is carried out, or after."""

    is_after: bool = False

    async def before(self, ask: Ask) -> None:
        if not self.is_after:
            self._strike(ask)

    async def after(self, ask: Ask) -> None:
        if self.is_after:
            self._strike(ask)

    def _strike(self, ask: Ask) -> None:
        if self.hits(ask) and ask.writes and self in self.world.server.troubles:
            self.world.server.troubles.remove(self)
            self.world.kill(ask.who, f"right {'after' if self.is_after else 'before'} {ask}")
            raise Cut


_WORDS = {
    403: ("Forbidden", "forbidden: the role was changed a moment ago"),
    410: ("Expired", "too old resource version"),
    429: ("TooManyRequests", "the server is busy"),
    500: ("InternalError", "etcdserver: leader changed"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
}


def refusal(code: int, after_s: int | None = None) -> Refused:
    return Refused(code, *_WORDS[code], after_s=after_s)


def _somewhere(world: World, dice: Random) -> str:
    """One namespace of two, if the operator watches each by itself; or all."""
    if world.is_partial:
        return world.namespaces[0]
    return dice.choice(("", world.namespaces[0])) if world.is_namespaced else ""


def _set(of: object, **values: float) -> Step:
    return lambda world: vars(of).update(values)


def stream_error(world: World, dice: Random) -> Fault:
    kind, code = dice.choice(NEEDED + OPTIONAL), dice.choice((410, 500, 403))
    trouble = StreamError(world, (kind,), _somewhere(world, dice), code)
    return Fault(f"{code} {trouble}", 0.3, trouble)


def kind_unavailable(world: World, dice: Random) -> Fault:
    trouble = Answers(world, (dice.choice(NEEDED),), _somewhere(world, dice))
    seconds = dice.choice((4.0, 15.0, 60.0))
    return Fault(str(trouble), seconds, trouble)


def kind_silent(world: World, dice: Random) -> Fault:
    trouble = Late(world, (dice.choice(NEEDED),), _somewhere(world, dice))
    seconds = dice.choice((12.0, 12.0, 90.0))
    return Fault(str(trouble), seconds, trouble)


def kind_late(world: World, dice: Random) -> Fault:
    trouble = Late(world, (dice.choice(NEEDED),), _somewhere(world, dice), by_s=12.0)
    return Fault(str(trouble), 25.0, trouble)


def kind_forbidden(world: World, dice: Random) -> Fault:
    trouble = Answers(world, (dice.choice(OPTIONAL),), code=403)
    return Fault(str(trouble), dice.uniform(5, 30), trouble)


def namespace_forbidden(world: World, dice: Random) -> Fault:
    trouble = Answers(world, namespace=world.namespaces[0], code=403)
    return Fault("", dice.uniform(5, 30), trouble)


def continue_expired(world: World, dice: Random) -> Fault:
    """Lists are interrupted; streams are ended, so that there are lists."""
    kinds = (dice.choice(NEEDED),)
    trouble = Answers(world, kinds, code=410, only=lambda ask: "continue" in ask.query)
    seconds, error = dice.uniform(2, 6), StreamError(world, kinds, code=410)
    return Fault(str(trouble), seconds, trouble, lambda world: world.for_a_moment(error))


def throttled(world: World, dice: Random) -> Fault:
    after_s, share = dice.choice((1, 3, 10)), dice.choice((0.5, 1.0))
    trouble = Answers(
        world, code=429, share=share, after_s=after_s, only=lambda ask: ask.verb != "watch"
    )
    return Fault(f"{share:.0%}, again after {after_s} s", dice.uniform(3, 12), trouble)


def flaky(world: World, dice: Random) -> Fault:
    code = dice.choice((500, 503))
    return Fault(f"30% {code}", dice.uniform(5, 30), Answers(world, code=code, share=0.3))


def partition(world: World, dice: Random) -> Fault:
    trouble = Partition(world)
    seconds = dice.choice((5.0, 14.0, 30.0, 100.0, 300.0))
    return Fault("", seconds, trouble, end=lambda world: trouble.over.set())


def slow_answers(world: World, dice: Random) -> Fault:
    return Fault("", dice.uniform(5, 25), Slow(world))


def apiserver_restarted(world: World, dice: Random) -> Fault:
    return Fault("", dice.uniform(0.2, 8), Reset(world))


def etcd_restored(world: World, dice: Random) -> Fault:
    ago_s = dice.choice((2.0, 4.0, 8.0))
    about = f"as {ago_s:g} s ago"
    return Fault(about, 0.5, Reset(world), lambda world: world.restore(ago_s))


def clock_wrong(world: World, dice: Random) -> Fault:
    """The API server's; the operators' are wrong each from its start."""
    wrong_s = dice.choice((-600.0, 600.0))
    seconds = dice.uniform(10, 30)
    begin, end = _set(world, wrong_s=wrong_s), _set(world, wrong_s=0.0)
    return Fault(f"{wrong_s:+.0f} s", seconds, None, begin, end)


def lease_stolen(world: World, dice: Random) -> Fault:
    return Fault(begin=lambda world: world.steal_lease())


def two_operators(world: World, dice: Random) -> Fault:
    seconds = dice.uniform(5, 20)
    return Fault("", seconds, begin=lambda w: w.start_operator(), end=lambda w: w.end_one())


def leader_cut_off(world: World, dice: Random) -> Fault:
    """It can write, but not renew the lease; another operator is there to take it."""
    trouble = Answers(world, (api.LEASES,), only=lambda ask: False)

    def begin(world: World) -> Awaitable[None]:
        leader = world.judge.holder()
        trouble.only = lambda ask: ask.who == leader
        return world.start_operator()

    return Fault("", 30.0, trouble, begin, lambda world: world.end_one())


def killed(world: World, dice: Random) -> Fault:
    return Fault(begin=lambda world: world.kill("", "anywhere"))


def killed_at_write(world: World, dice: Random) -> Fault:
    kind = dice.choice(
        (api.GROUPS, api.GROUPS, api.DEPLOYMENTS, api.POLICIES, api.LEASES, api.PODS)
    )
    trouble = Kill(world, (kind,), is_after=dice.random() < 0.7)
    return Fault(f"{'after' if trouble.is_after else 'before'} {trouble}", 20.0, trouble)


def scheduler_away(world: World, dice: Random) -> Fault:
    cluster = dice.choice(world.clusters[:-1])
    delay_s = {"dead": 0.0, "slow": 4.9, "silent": 1e6}
    how, is_restarted = dice.choice(list(delay_s)), dice.random() < 0.5

    async def begin(world: World) -> None:
        cluster.scheduler.slow_down(delay_s[how])
        if how == "dead":
            await cluster.stop()

    async def end(world: World) -> None:
        cluster.scheduler.slow_down(0.0)
        if how == "dead" or is_restarted:
            await cluster.stop()
            await cluster.start()

    about = f"of {cluster.name}: {how}"
    return Fault(about, dice.uniform(3, 20), None, begin, end)


def scheduler_restarted(world: World, dice: Random) -> Fault:
    cluster = dice.choice(world.clusters[:-1])
    about = f"of {cluster.name}"
    return Fault(about, 1.0, begin=lambda w: cluster.stop(), end=lambda w: cluster.start())


def upstream_slow(world: World, dice: Random) -> Fault:
    begin, end = _set(world.kubernetes, handle_s=6.0), _set(world.kubernetes, handle_s=0.5)
    return Fault("", dice.uniform(5, 20), None, begin, end)


MAKERS: dict[str, Callable[[World, Random], Fault]] = {
    make.__name__: make
    for make in (
        stream_error, kind_unavailable, kind_silent, kind_late, kind_forbidden,
        namespace_forbidden, continue_expired, throttled, flaky, partition, slow_answers,
        apiserver_restarted, etcd_restored, clock_wrong, lease_stolen, two_operators,
        leader_cut_off, killed, killed_at_write, scheduler_away,
        scheduler_restarted, upstream_slow,
    )
}  # fmt: skip

#: Those that the last cluster must not feel, if the operator watches its namespace by itself.
PARTIAL = ("stream_error", "kind_unavailable", "kind_silent", "kind_late", "kind_forbidden",
           "namespace_forbidden", "scheduler_away", "scheduler_restarted")  # fmt: skip


def schedule(
    world: World, dice: Random, count: int, names: list[str]
) -> list[tuple[float, str, Fault]]:
    """When faults begin, in seconds, with their names; they may overlap."""
    at, gap_s, found, deck = 0.0, dice.choice((3.0, 6.0)), [], list[str]()
    while len(found) < count:
        deck = deck or dice.sample(names, len(names))
        name = deck.pop()
        found.append((at, name, MAKERS[name](world, dice)))
        at += dice.expovariate(1 / gap_s)
    return found
