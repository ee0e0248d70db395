"""Callables that cross to each worker once, on streams of real bytes."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import time
import types
from collections.abc import AsyncIterator, Callable
from typing import Any

import distributed
import pytest
from distributed import Client, LocalCluster, Nanny, Worker
from distributed.protocol.serialize import ToPickle
from distributed.utils_test import gen_cluster
from packaging.version import Version

from dask_adaptive_agent.component import Context
from dask_adaptive_agent.relief.registry import Reliefs
from dask_adaptive_agent.relief.sharing import MOST_LACKS, SharedPicklingRelief, workers_half
from support.agent_pins import in_loop
from support.agent_work import until
from support.relief_pickling import in_main
from support.relief_pickling import spec as spec_of

# distributed 2023.8.1 is the first that pickles the callable with each task.
pytestmark = pytest.mark.skipif(
    Version(distributed.__version__) < Version("2023.8.1"),
    reason="workers of this release keep functions by themselves",
)

ONE = [("127.0.0.1", 1)]
LARGE = 200_000


@contextlib.asynccontextmanager
async def shared(scheduler: Any) -> AsyncIterator[SharedPicklingRelief]:
    sharing = installed(scheduler)
    try:
        await until_ready(scheduler, sharing)
        yield sharing
    finally:
        sharing.uninstall()


def installed(scheduler: Any) -> SharedPicklingRelief:
    sharing = SharedPicklingRelief(Reliefs(Context(scheduler, time.monotonic)))
    sharing.install()

    return sharing


async def until_ready(scheduler: Any, sharing: SharedPicklingRelief) -> None:
    await until(lambda: len(scheduler.workers) == sharing.counts()["shared_workers"])


def large(n: int = LARGE) -> Callable[[Any], Any]:
    """A callable by value, and of some size."""
    data = os.urandom(n)
    return functools.partial(lambda data, x: (len(data), x), data)


def held_by(sharing: SharedPicklingRelief, worker: Any) -> dict[bytes, Any]:
    """What a worker of this process holds."""
    line, _ = sharing._lines[worker.address]
    found: dict[bytes, Any] = workers_half().held.get(line.name, {})
    return found


def bytes_sent(scheduler: Any) -> int:
    return sum(stream.byte_count for stream in scheduler.stream_comms.values())


async def mapped(client: Any, fn: Any, *args: Any) -> list[Any]:
    results: list[Any] = await client.gather(client.map(fn, *args, pure=False))
    return results


@gen_cluster(client=True)
async def test_bytes_cross_to_each_worker_once(c, s, a, b) -> None:
    async with shared(s) as sharing:
        before = bytes_sent(s)
        fn = large()

        assert [(LARGE, i) for i in range(100)] == await mapped(c, fn, range(100))
        assert [(LARGE, i) for i in range(100)] == await mapped(c, fn, range(100))
        # The client sends it twice, and the scheduler twice as part of a task, until it is kept.
        assert 2 * LARGE < bytes_sent(s) - before < 8 * LARGE
        counts = sharing.counts()
        assert 2 == counts["shared_definitions"]
        assert 190 <= counts["shared_uses"]
        assert [1, 1] == [len(held_by(sharing, a)), len(held_by(sharing, b))]


@gen_cluster(client=True, nthreads=ONE)
async def test_a_callable_that_changes_itself_is_shared(c, s, a) -> None:
    def append_and_len(seen: list[Any], data: bytes, x: Any) -> int:
        seen.append(x)
        return len(seen)

    async def lengths() -> list[int]:
        function = functools.partial(append_and_len, [], bytes(LARGE))
        return sorted(await mapped(c, function, range(5)))

    assert [1, 1, 1, 1, 1] == await lengths()
    async with shared(s):
        assert 1 < max(await lengths())
    assert [1, 1, 1, 1, 1] == await lengths()


@gen_cluster(client=True, nthreads=ONE)
async def test_callables_deep_inside(c, s, a) -> None:
    async with shared(s) as sharing:
        fn = large()

        deep = await mapped(c, lambda some, i: some["deep"][0](i), [{"deep": [fn]}] * 20, range(20))
        assert [(LARGE, i) for i in range(20)] == deep
        assert 2 == sharing.counts()["shared_definitions"]
        assert 30 <= sharing.counts()["shared_uses"]


@gen_cluster(client=True, nthreads=ONE)
async def test_a_worker_holds_so_much_and_then_begins_anew(c, s, a) -> None:
    async with shared(s) as sharing:
        line, _ = sharing._lines[a.address]
        line._most_bytes = int(1.5 * LARGE)
        one, two, three = [large() for _ in range(3)]
        for fn in (one, two, one, three, one, two):
            assert [(LARGE, i) for i in range(20)] == await mapped(c, fn, range(20))
            assert len(held_by(sharing, a)) <= 2
        assert 4 <= sharing.counts()["shared_definitions"]
        assert 0 == sharing.counts()["shared_lacks"]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 2)])
async def test_a_worker_that_lacks_one_asks_once(c, s, a) -> None:
    async with shared(s) as sharing:
        fn = large()
        await mapped(c, fn, range(20))
        held_by(sharing, a).clear()

        assert [(LARGE, i) for i in range(50)] == await mapped(c, fn, range(50))
        assert 1 <= sharing.counts()["shared_lacks"] <= MOST_LACKS
        assert 0 < len(held_by(sharing, a))
        # Also where the callable is not what the task calls, and is not called at all.
        held_by(sharing, a).clear()
        assert [1] * 20 == await mapped(c, len, [[fn]] * 20)


@pytest.mark.parametrize("refers", ["say", "module"])
def test_code_that_is_loaded_anew_is_what_runs(refers: str) -> None:
    """As after `Client.upload_file`: what tasks call means the same, by a name that does not."""

    @gen_cluster(client=True, nthreads=[("127.0.0.1", 2)])
    async def test(c, s, a) -> None:
        script = in_main("def asks(x):\n    return getattr(the, 'say', the)(x)")

        def load(word: str) -> None:
            module: Any = types.ModuleType("loaded_anew")
            exec(f"def say(x):\n    return {word!r}, x", vars(module))
            sys.modules["loaded_anew"] = module
            script["the"] = module if refers == "module" else module.say

        async with shared(s) as sharing:
            for word in ("one", "two", "three"):
                load(word)
                assert [(word, i) for i in range(20)] == await mapped(c, script["asks"], range(20))
            assert 20 < sharing.counts()["shared_uses"]

    try:
        test()
    finally:
        sys.modules.pop("loaded_anew", None)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 2)])
async def test_a_worker_that_keeps_lacking_is_sent_everything(c, s, a) -> None:
    async with shared(s) as sharing:
        for _ in range(MOST_LACKS + 1):
            await mapped(c, fn := large(), range(20))
            if a.address in sharing._lines:
                held_by(sharing, a).clear()
            assert [(LARGE, i) for i in range(20)] == await mapped(c, fn, range(20))
        assert 0 == sharing.counts()["shared_workers"]
        assert MOST_LACKS < sharing.counts()["shared_lacks"]
        assert [(LARGE, 1)] == await mapped(c, fn, [1])


@gen_cluster(client=True, nthreads=[("127.0.0.1", 2)] * 2, timeout=60)
async def test_it_goes_in_the_middle_of_work_and_comes_back(c, s, a, b) -> None:
    def wait_and(data: bytes, x: Any) -> Any:
        time.sleep(0.002)
        return len(data), x

    fn = functools.partial(wait_and, os.urandom(LARGE))
    stock = dict(s.stream_handlers)
    futures = c.map(fn, range(300), pure=False)
    for _ in range(3):
        async with shared(s) as sharing:
            await until(lambda: sharing.counts()["shared_uses"] > 20)
        assert stock == s.stream_handlers
        assert all("send" not in vars(stream) for stream in s.stream_comms.values())
        assert "dask-adaptive-shared" not in s.plugins
    assert [(LARGE, i) for i in range(300)] == await c.gather(futures)
    await until(lambda: not workers_half().held)


@gen_cluster(client=True, nthreads=[])
async def test_workers_join_leave_and_come_back(c, s) -> None:
    sharing = installed(s)
    fn = large()
    async with Worker(s.address, nthreads=1) as a:
        await until_ready(s, sharing)
        address = a.address
        assert [(LARGE, 1)] * 20 == await mapped(c, fn, [1] * 20)
    await until(lambda: not s.workers)
    assert 0 == len(workers_half().held)
    async with Worker(s.address, nthreads=1, port=int(address.rpartition(":")[2])) as a:
        await until_ready(s, sharing)
        assert address == a.address
        assert [(LARGE, 1)] * 20 == await mapped(c, fn, [1] * 20)
        assert {"shared_definitions": 2, "shared_lacks": 0}.items() <= sharing.counts().items()
    sharing.uninstall()


@gen_cluster(client=True, nthreads=ONE)
async def test_tasks_may_go_back_by_themselves(c, s, a) -> None:
    def back_once(data: bytes, x: int) -> int:
        seen = distributed.get_worker().__dict__.setdefault("seen_by_test", set())
        if x not in seen:
            seen.add(x)
            raise distributed.Reschedule
        return x

    async with shared(s):
        fn = functools.partial(back_once, os.urandom(LARGE))
        assert list(range(20)) == await mapped(c, fn, range(20))


@gen_cluster(client=True, nthreads=ONE)
async def test_what_can_not_be_pickled_is_left_to_stock_code(c, s, a) -> None:
    class Once:
        def __reduce__(self) -> Any:
            raise ValueError("not again")

    async with shared(s) as sharing:
        line, _ = sharing._lines[a.address]
        fn = large()
        spec = ToPickle(spec_of(fn, Once(), [fn] * 20))
        message = {"op": "compute-task", "run_spec": spec}
        sharing._replace(line, message)
        assert spec is message["run_spec"]
        # Nothing counts as sent.
        assert {} == line._held
        assert [(LARGE, 1)] * 20 == await mapped(c, fn, [1] * 20)


@gen_cluster(client=True, nthreads=ONE)
async def test_actors_are_made_as_ever(c, s, a) -> None:
    class Counter:
        def __init__(self, start: int) -> None:
            self.n = start

        def add(self) -> int:
            self.n += 1
            return self.n

    async with shared(s):
        actors = [await c.submit(Counter, 5, actor=True, pure=False) for _ in range(3)]
        assert [6, 6, 6] == [await actor.add() for actor in actors]


def test_workers_in_the_scheduler_s_process_get_objects() -> None:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        assert cluster.scheduler_address.startswith("inproc://")
        sharing = in_loop(client, lambda: installed(cluster.scheduler))
        fn = large()
        assert [(LARGE, i) for i in range(20)] == client.gather(client.map(fn, range(20)))
        assert 0 == sharing.counts()["shared_workers"]
        in_loop(client, sharing.uninstall)


@pytest.mark.thorough
@gen_cluster(
    client=True, nthreads=ONE * 2, Worker=Nanny, worker_kwargs={"death_timeout": 60}, timeout=120
)
async def test_processes_that_die_or_restart_start_anew(c, s, a, b) -> None:
    async with shared(s) as sharing:
        fn = large()
        assert [(LARGE, i) for i in range(40)] == await mapped(c, fn, range(40))
        before = set(s.workers)
        pid = await c.submit(os.getpid)
        os.kill(pid, signal.SIGKILL)
        assert [(LARGE, i) for i in range(40)] == await mapped(c, fn, range(40))
        await until(lambda: len(s.workers) == 2 and before != set(s.workers), 60)
        await until_ready(s, sharing)
        assert [(LARGE, i) for i in range(40)] == await mapped(c, fn, range(40))
        await c.restart()
        await until(lambda: len(s.workers) == 2, 60)
        await until_ready(s, sharing)
        assert [(LARGE, i) for i in range(40)] == await mapped(c, fn, range(40))
        assert 0 == sharing.counts()["shared_lacks"]
        assert 5 == sharing.counts()["shared_definitions"]


@pytest.mark.thorough
@gen_cluster(client=True, nthreads=ONE * 3, timeout=120)
async def test_tasks_that_are_stolen_bring_what_they_need(c, s, *workers) -> None:
    def slow(data: bytes, x: Any) -> Any:
        time.sleep(0.01)
        return len(data), x

    async with shared(s) as sharing:
        fn = functools.partial(slow, os.urandom(LARGE))
        futures = c.map(
            fn, range(150), pure=False, workers=[workers[0].address], allow_other_workers=True
        )
        assert [(LARGE, i) for i in range(150)] == await c.gather(futures)
        assert any(held_by(sharing, worker) for worker in workers[1:])
        assert 0 == sharing.counts()["shared_lacks"]
