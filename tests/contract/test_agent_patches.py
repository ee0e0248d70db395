"""What the agent changes of upstream's code: little of it, and nothing once it has gone."""

from __future__ import annotations

import ast
import copyreg
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import pytest
from distributed import Client, Scheduler, Worker
from distributed.utils_test import gen_cluster
from packaging.version import Version

import dask_adaptive_agent
from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.agent import install, uninstall
from dask_adaptive_agent.patching import Mismatch, Target, _owner, _Place
from support.agent_cluster import clear_shared, in_force, reliefs_in_force, with_agent
from support.agent_quota import limit, runs
from support.agent_work import ask, ran, retire, until

AGENT = Path(dask_adaptive_agent.__file__).parent
OURS = object()
MODULES = {
    name: module
    for name, module in sorted(sys.modules.items())
    if name.partition(".")[0] in ("distributed", "dask", "cloudpickle", "pickle")
}


@pytest.fixture(autouse=True)
def _nobody_holds() -> Iterator[None]:
    """What other tests have left, and this one."""
    clear_shared()
    yield
    clear_shared()


def code_of(owner: Any, name: str) -> dict[str, Any]:
    """Functions, classes and descriptors that belong to a class, a module or an object."""
    return {
        f"{name}.{key}": value
        for key, value in vars(owner).items()
        if callable(value) or isinstance(value, (property, classmethod, staticmethod))
    }


def of_process() -> dict[str, Any]:
    """Of modules that are there now: one that is imported later is no patch."""
    out: dict[str, Any] = {}
    for name, module in MODULES.items():
        out.update(code_of(module, name))
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == name:
                out.update(code_of(value, f"{name}.{value.__qualname__}"))
    return out


def places(s: Any) -> dict[str, Any]:
    """All of a scheduler and of its process that somebody may patch, named as targets are."""
    return {
        **code_of(s, "Scheduler"),
        **{f'Scheduler.handlers["{name}"]': call for name, call in s.handlers.items()},
        **{f'Scheduler.stream_handlers["{name}"]': c for name, c in s.stream_handlers.items()},
        **{k: v for n, e in s.extensions.items() for k, v in code_of(e, f"extensions.{n}").items()},
        **{k: v for n, e in s.stream_comms.items() for k, v in code_of(e, f"stream {n}").items()},
        **of_process(),
    }


def rest(s: Any) -> dict[str, Any]:
    """What else would be changed if something of us stayed."""
    return {
        "attributes": set(vars(s)),
        "tables": {
            name: type(v) for name, v in vars(s).items() if isinstance(v, (dict, set, list))
        },
        "plugins": dict(s.plugins),
        "worker_plugins": dict(s.worker_plugins),
        "callbacks": set(s.periodic_callbacks),
        "transitions": id(s._TRANSITIONS_TABLE),
        "copyreg": dict(copyreg.dispatch_table),
    }


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    every = before.keys() | after.keys()
    return {name for name in every if before.get(name, OURS) != after.get(name, OURS)}


async def use_all(c, s, a, b) -> None:
    """Everything on that patches something, and at work."""
    await limit(s, [a, b], 1000, exact=True, left_ms=3_600_000)
    await ask(s, wire.CONFIGURE, relief={"pickling": "Shared"})
    await ask(s, wire.OBSERVE, meters=True, demand=True)
    assert 20 == len(await c.gather(c.map(runs, range(20), [0.001] * 20, pure=False)))
    s.plugins["dask-adaptive"].transition("shuffle-barrier-none", "released", "waiting")
    await retire(s, a.name)
    await ask(s, wire.CANCEL, names=[str(a.name)])
    await c.submit(lambda x: x, 1, pure=False)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_after_detaching_all_is_as_it_was(c, s, a, b) -> None:
    await c.submit(runs, 0, pure=False)
    before, before_else = places(s), rest(s)
    for _ in range(3):
        agent = install(s)
        await use_all(c, s, a, b)
        assert len(in_force(agent.patches)) >= 11
        assert all(in_force(agent.patches).values())

        uninstall(s)

        await until(lambda: not any("adaptive" in name for name in a.plugins))
        assert set() == changed(before, places(s))
        assert before_else == rest(s)
        assert {} == in_force(agent.patches)


@pytest.mark.parametrize("choice", [wire.AUTO, wire.SHARED])
async def test_a_scheduler_that_ends_leaves_nothing_in_its_process(choice: str) -> None:
    before = of_process(), dict(copyreg.dispatch_table)
    async with Scheduler(port=0, dashboard=False, dashboard_address=":0") as s:
        install(s)
        await ask(s, wire.CONFIGURE, relief={"pickling": choice})
        async with Worker(s.address, nthreads=1), Client(s.address, asynchronous=True) as c:
            assert [1, 2, 3] == await c.gather(c.map(lambda x: x + 1, range(3), pure=False))
        during = of_process()

    assert set() == changed(before[0], of_process())
    assert before[1] == dict(copyreg.dispatch_table)
    assert changed(before[0], during)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_also_where_features_come_and_go_while_it_is_attached(c, s, a, b) -> None:
    """0.1.0 left 3, then 12 layers on the reports of runs."""
    before = s.stream_handlers["task-finished"]
    install(s)
    with_agent = s.stream_handlers["task-finished"]
    for _ in range(4):
        await use_all(c, s, a, b)
        await ask(s, wire.CONFIGURE, relief={"pickling": "Auto"})
        await limit(s, [])

    assert with_agent is s.stream_handlers["task-finished"]
    uninstall(s)
    assert before == s.stream_handlers["task-finished"]


@gen_cluster(nthreads=[("127.0.0.1", 1)])
async def test_by_default_little_of_upstream_is_changed(s, a) -> None:
    before = places(s)
    agent = install(s)
    declared = {**in_force(agent.patches), **reliefs_in_force(agent)}
    seen = changed(before, places(s)) - {f'Scheduler.handlers["{n}"]' for n in agent.handlers()}

    assert set(declared) == seen
    assert seen <= {str(target) for target in patching.TARGETS}
    assert all(declared.values())
    if distributed.__version__ >= "2026":
        assert len(seen) <= 8, sorted(seen)
    uninstall(s)


def imported() -> list[str]:
    """What the agent imports of distributed at run time, from its own source."""
    out = set()
    for path in AGENT.rglob("*.py"):
        tree = ast.parse(path.read_text())
        hidden = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and id(node) not in hidden:
                module = node.module or ""
                if module.partition(".")[0] == "distributed" and not node.level:
                    out |= {f"{module}:{alias.name}" for alias in node.names}
    return sorted(out - CORE)


#: Without these there is no scheduler to speak of, or no way to speak to it.
CORE = {
    "distributed:Scheduler",
    "distributed:Client",
    "distributed:scheduler",
    "distributed:worker",
    "distributed:shuffle",
    "distributed.core:Status",
    "distributed.core:rpc",
    "distributed.diagnostics.plugin:SchedulerPlugin",
    "distributed.diagnostics.plugin:WorkerPlugin",
    "distributed.protocol:core",
    "distributed.protocol:pickle",
    "distributed.scheduler:Scheduler",
    "distributed.scheduler:WorkerState",
    "distributed.worker:Worker",
}
WITHOUT = """
import asyncio, builtins, sys
from distributed import Client, Scheduler, Worker

stock, refused = builtins.__import__, []

def without(name, globals=None, locals=None, fromlist=(), level=0):
    "Upstream has moved it: its own modules find it, ours do not."
    module, _, symbol = sys.argv[1].partition(":")
    importer = (globals or {}).get("__name__", "")
    if name == module and symbol in (fromlist or ()) and importer.startswith("dask_adaptive"):
        refused.append(importer)
        raise ImportError(f"cannot import name {symbol!r} from {module!r}")
    return stock(name, globals, locals, fromlist, level)

async def main():
    async with Scheduler(port=0, dashboard=False) as s, Worker(s.address), Client(
        s.address, asynchronous=True
    ) as c:
        builtins.__import__ = without
        from dask_adaptive_agent.agent import install, uninstall

        agent = install(s)
        rows = agent.reliefs.rows()
        lost = [row["name"] for row in rows if row["state"] == "Failed"]
        lost += [name for name, patches in agent.features.items() if not patches]
        assert s.handlers["adaptive_observe"](), "no snapshot"
        assert 3 == await c.submit(lambda x, y: x + y, 1, 2), "no result"
        uninstall(s)
        assert 5 == await c.submit(lambda x, y: x + y, 2, 3), "no result without it"
        assert lost or not refused, refused
        print("LOST", *lost)

asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.parametrize("symbol", imported())
def test_what_upstream_has_moved_costs_what_needs_it_and_not_the_agent(symbol: str) -> None:
    module, _, name = symbol.partition(":")
    try:
        here = hasattr(__import__(module, fromlist=[name]), name)
    except ImportError:
        here = False
    if not here:
        pytest.skip("this release has it elsewhere")

    done = ran(WITHOUT, symbol)

    assert 0 == done.returncode, done.stderr[-3000:]
    assert "LOST" in done.stdout


RELEASE = Version(distributed.__version__)
#: Whether this release of distributed needs it.
NEEDED = {
    "prefixes": RELEASE < Version("2024.6.0"),
    "pickling": RELEASE >= Version("2023.8.1"),
    "host": RELEASE < Version("2025.4.0"),
    "identity": RELEASE < Version("2026.7.0"),
    "clientInfo": Version("2025.4.0") <= RELEASE < Version("2026.7.0"),
}
TARGETS = {
    one: name for name in NEEDED for one in patching.TARGETS if one.way_out == patching.relief(name)
}


def place_of(target: Target, s: Any) -> Any:
    try:
        place = _Place(_owner(target, s), target.name)
    except Mismatch:
        pytest.skip("there is no such place")
    if place.call() is None or (isinstance(place.owner, type) and target.name == "__len__"):
        pytest.skip("nothing is there, or not what an instance calls")
    return place


def another(place: Any) -> Any:
    """What another package would put there, over what is there now."""
    below = place.read()
    if isinstance(below, property):
        return property(lambda self: below.fget(self))
    return lambda *args, **kwargs: below(*args, **kwargs)


def states(agent: Any) -> dict[str, str]:
    return {row["name"]: row["state"] for row in agent.reliefs.rows()}


@with_agent(1, client=False)
async def test_it_is_applied_where_it_is_needed(s, a, agent) -> None:
    active = reliefs_in_force(agent)

    expected = {n: wire.R_ACTIVE if is_ else wire.R_NOT_NEEDED for n, is_ in NEEDED.items()}
    assert expected == states(agent)
    assert [""] * sum(NEEDED.values()) == [
        row["message"] for row in agent.reliefs.rows() if row["state"] == wire.R_ACTIVE
    ]
    assert {name for name, is_ in NEEDED.items() if is_} == {
        name for target, name in TARGETS.items() if str(target) in active
    }
    assert all(active.values())
    uninstall(s)


@pytest.mark.parametrize("target", [one for one in TARGETS if one.guard is not None], ids=str)
@gen_cluster(nthreads=[])
async def test_another_packages_code_is_not_replaced(s, target) -> None:
    place = place_of(target, s)
    stock, theirs = place.read(), another(place)
    place.write(theirs)
    try:
        agent = install(s)

        assert theirs is place.read()
        name = TARGETS[target]
        assert NEEDED[name] == (states(agent)[name] == wire.R_FAILED)
        uninstall(s)
    finally:
        place.write(stock)
