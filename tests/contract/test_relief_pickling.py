"""What is pickled once means the same to whoever reads it, and costs once."""

from __future__ import annotations

import copyreg
import enum
import functools
import gc
import operator
import pathlib
import pickle
import sys
import threading
import tracemalloc
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import distributed
import pytest
from distributed import Nanny
from distributed.protocol import pickle as distributed_pickle
from distributed.utils_test import gen_cluster
from packaging.version import Version

from dask_adaptive_agent.agent import Agent, install, uninstall
from dask_adaptive_agent.relief import pickling
from dask_adaptive_agent.relief.pickle_cache import LARGEST, LEAST_PARTIAL, MOST_BYTES, MOST_OBJECTS
from dask_adaptive_agent.relief.pickling import PICKLES, TASK, PicklingRelief
from support.relief_pickling import (
    Told,
    as_on_scheduler,
    frames,
    hooked,
    in_main,
    received,
    run,
    sent,
    spec,
)

# distributed 2023.8.1 is the first that pickles the callable with each task.
pytestmark = pytest.mark.skipif(
    Version(distributed.__version__) < Version("2023.8.1"), reason="functions' bytes are kept"
)

SCRIPT = in_main(
    """
import dataclasses, pathlib, re

PATTERN = re.compile(r"part-([0-9]+)")

@dataclasses.dataclass(frozen=True)
class Config:
    root: pathlib.Path = pathlib.Path("/data")
    factor: int = 3
    def scaled(self, x):
        return x * self.factor + helper(self)

def helper(config):
    return len(str(config.root))

def task(config, x):
    return config.scaled(x), PATTERN.search(f"part-{x}").group(1)

def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)
"""
)

#: In a partial these are worth keeping, as numbers are not.
MANY = [f"s3://bucket/part-{n}" for n in range(1000)]


def reused() -> int:
    return PICKLES.counts()["reused"]


def adder(n: int) -> Callable[[int], int]:
    def inner(x: int) -> int:
        return x + n

    return inner


def counter() -> tuple[Callable[[], None], Callable[[], int]]:
    n = 0

    def more() -> None:
        nonlocal n
        n += 1

    return more, lambda: n


@pytest.fixture
def told() -> Iterator[Told]:
    before = distributed_pickle.dumps
    with hooked() as told:
        yield told
    assert distributed_pickle.dumps is before
    assert 0 == PICKLES.counts()["kept"]


def as_stock(task: Any) -> Any:
    """What it gives where stock code pickles it: without a taker of buffers it is none of ours."""
    return run(pickle.loads(distributed_pickle.dumps(task)))


@pytest.mark.parametrize(
    ("name", "argument"), [("helper", types.SimpleNamespace(root="abc")), ("factorial", 5)]
)
def test_the_same_callable_is_pickled_once(told: Told, name: str, argument: Any) -> None:
    function = as_on_scheduler(SCRIPT[name])
    before, pickled = reused(), PICKLES.counts()["pickled"]

    sent(spec(function, argument), times=5)

    # It is kept when it comes again, and put in from then on.
    assert 3 == reused() - before
    assert 1 == PICKLES.counts()["pickled"] - pickled
    assert 5 == len(told.rows)
    assert 0 == len([row for row in told.rows if row[2] == 0])


def nested(*call: Any) -> Any:
    """A task that calls what is within another call's arguments."""
    if TASK is None:
        return (distributed.worker.execute_task, (call,), {})
    from dask._task_spec import convert_legacy_task

    return convert_legacy_task("key-1", call, set())


def mapped(values: list[int], function: Callable[[int], int]) -> list[int]:
    return [function(value) for value in values]


def column() -> Any:
    """As `df["x"].apply(lambda v: v * 3, meta=...)` is fused: `getitem`, then the lambda."""
    if TASK is None:
        return nested(list, (map, lambda v: v * 3, (operator.getitem, {"x": [1, 2]}, "x")))
    from dask._task_spec import TaskRef

    first = TASK("a", operator.getitem, {"x": [1, 2]}, "x")
    return TASK.fuse(first, TASK("b", mapped, TaskRef("a"), lambda v: v * 3))


def one_object() -> Any:
    both: list[int] = []
    is_one = functools.partial(lambda one, other: one is other, both)
    yield spec(is_one, both)
    yield spec(is_one, [])
    more, n = as_on_scheduler(counter())
    yield spec(lambda more, n: (more(), n())[1], more, n)
    yield spec(functools.partial(lambda more, n: (more(), n())[1], more), n)
    yield spec(lambda more, n: n.__globals__ is more.__globals__, more, n)
    yield spec(functools.partial(lambda more, n: n.__globals__ is more.__globals__, more), n)


def one_text(unknown: Any) -> Any:
    def is_unknown(x: Any) -> bool:
        return x is unknown

    yield spec(is_unknown, unknown)
    yield spec(lambda f, x: f(x()), is_unknown, lambda: unknown)
    yield spec(functools.partial(lambda table, x: x is table[0], [unknown, *MANY]), unknown)
    yield spec(lambda x, *, y=unknown: x is y, unknown)


def global_variables() -> Any:
    """By stock code, functions of one script see each other's."""
    scope = in_main(
        """
from __future__ import annotations
import typing

N = 1

class Config:
    pass

def of_config(config: Config) -> int:
    return config.n

def hints(function):
    return sorted(typing.get_type_hints(function)), Config.__name__

def sets(one, other):
    getattr(one, "__globals__")["N"] = 5
    return N, other()

def n():
    return N

def also_n(_=0):
    return N
"""
    )
    names = as_on_scheduler({name: scope[name] for name in ("of_config", "hints")})
    yield spec(names["hints"], names["of_config"])
    names = as_on_scheduler({name: scope[name] for name in ("sets", "n", "also_n")})
    yield spec(names["sets"], names["n"], names["also_n"])


def others() -> Any:
    def append(to: list[int], x: int) -> int:
        to.append(x)
        return len(to)

    yield spec(functools.partial(append, []), 1)
    # Found in 0.1.0. Its memo of what had been written was off by one.
    join = (functools.reduce, lambda a, b: a + "," + b, ["cost", "price", "price"])
    yield nested(*join, (operator.getitem, ["first", "x"], 0))
    yield column()
    yield spec(functools.partial(lambda a, b: len(a) + b, bytes(10_000_000)), 1)
    yield spec(lambda a: len(a), bytes(10_000_000))


@pytest.mark.parametrize(
    "tasks",
    [
        pytest.param(one_object, id="one-object-twice"),
        *(functools.partial(one_text, one) for one in ("not known", b"not known", "—", 1 + 2j)),
        *(global_variables, others),
    ],
)
def test_each_time_it_gives_what_it_gives_by_stock_code(told: Told, tasks: Any) -> None:
    for task in tasks():
        assert [as_stock(task)] * 4 == sent(task, times=4)


def cell_contents(function: Any, kind: type) -> Any:
    cells = [cell.cell_contents for cell in function.__closure__]
    return next(contents for contents in cells if isinstance(contents, kind))


def looks_the_same(before: Any, after: Any) -> Any:
    """1 and True, say."""
    table, scope = [before], {"inner": before}
    yield (
        spec(functools.partial(lambda *args: repr(args), list(MANY), table, scope)),
        lambda: (operator.setitem(table, 0, after), scope.update(inner=after)),
    )
    closure = as_on_scheduler(lambda: repr((table, scope)))
    yield spec(closure), lambda: operator.setitem(cell_contents(closure, list), 0, before)


def lone_cell() -> Any:
    cell = types.CellType("old")
    function = functools.partial(lambda cell, _: cell.cell_contents, cell, list(MANY))
    yield spec(function), lambda: setattr(cell, "cell_contents", "new")


class Measured:
    """Workers can import it."""

    value = 0


def measured(value: int) -> Measured:
    made = Measured()
    made.value = value
    return made


def large(one: Any) -> Any:
    """A task that calls something with it in a partial that is worth keeping."""
    return spec(functools.partial(lambda one, _: getattr(one, "value", one), one, [*MANY]))


def reducers() -> Any:
    for table in (cloudpickle.Pickler.dispatch_table, copyreg.dispatch_table):
        for task in (spec(lambda one: one.value, Measured()), large(Measured())):
            yield task, lambda table=table: table.update({Measured: lambda _: (measured, (7,))})
            del table[Measured]


def given_states() -> Any:
    one, state = Measured(), {"value": 1}
    one.__getstate__ = lambda: dict(state)  # type: ignore[attr-defined]
    yield large(one), lambda: state.update(value=2)
    yield large(Measured()), lambda: setattr(Measured, "__getstate__", lambda self: {"value": 3})
    del Measured.__getstate__


LEVEL = {"now": 1}


class Level(enum.Enum):
    """What goes to workers is for itself to say."""

    HIGH = 1

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int, (LEVEL["now"],)


class Listed(types.GenericAlias):
    def __reduce__(self) -> Any:
        return int, (LEVEL["now"],)


def reduced_by_its_class() -> Any:
    for one in (Level.HIGH, Listed(list, (int,))):
        yield large(one), lambda: LEVEL.update(now=LEVEL["now"] + 1)


def modules() -> Any:
    """`upload_file` loads a module anew in the scheduler, too; what is held is the old one."""
    module = types.ModuleType("loaded_module")
    exec("value = 1\ndef f(): return value", vars(module))
    old = module.f
    sys.modules["loaded_module"] = module
    named = eval("lambda: module.value", {"module": module, "__name__": "__main__"})
    yield spec(as_on_scheduler(lambda: old())), lambda: exec("def f(): return 2", vars(module))
    # As many modules as before, but not this one.
    yield spec(named), lambda: sys.modules.update(come_module=sys.modules.pop("loaded_module"))
    del sys.modules["come_module"]


ALIKE = [
    *((1, True), (True, 1), (0.0, -0.0), (1, 1.0), (float("nan"), 0), ([1], [True]), ("", b""))
]


@pytest.mark.parametrize(
    "changes",
    [
        *(pytest.param(functools.partial(looks_the_same, *two), id=f"{two}") for two in ALIKE),
        *(lone_cell, reducers, given_states, reduced_by_its_class, modules),
    ],
)
def test_what_has_changed_since_is_sent_as_it_is(told: Told, changes: Any) -> None:
    for task, change in changes():
        assert [as_stock(task)] * 4 == sent(task, times=4)
        change()
        assert [as_stock(task)] * 3 == sent(task, times=3)


def test_it_is_plain_pickle(told: Told) -> None:
    function = adder(1)
    sent(spec(function, 1))

    data, is_put_in = PICKLES.pickled(spec(function, 1), [])

    assert is_put_in
    assert 2 == run(pickle.loads(data)) == run(pickle._loads(data))  # type: ignore[attr-defined]


def test_names_and_keys_in_common_are_no_reason_to_pickle_anew(told: Told) -> None:
    def scaled(x: dict[str, int], *, scale: int = 1) -> int:
        return x["number"] * scale * {"number": 1}["number"]

    together = as_on_scheduler((scaled, {"scale": 2}, {"number": 3}))
    before = reused()

    assert [6] * 4 == sent(spec(together[0], together[2], **together[1]), times=4)
    assert 2 == reused() - before


def test_workers_never_see_a_class_go_back(told: Told) -> None:
    together = as_on_scheduler({name: SCRIPT[name] for name in ("task", "Config")})
    first = spec(functools.partial(together["task"], together["Config"]()), 1)
    sent(first)
    kept = reused()

    # A client sets an attribute and submits again: cloudpickle sets it on the class that is here.
    together["Config"].colour = "a colour"
    try:
        assert b"a colour" in written(first)
        sent(first)
        assert b"a colour" in written(first)
    finally:
        del together["Config"].colour
    assert b"a colour" not in written(first)
    assert kept < reused()


def written(task: Any) -> bytes:
    return b"".join(map(bytes, frames(task)))


def test_what_is_large_stays_out_of_band(told: Told) -> None:
    np = pytest.importorskip("numpy")
    array = np.arange(100_000)

    for task in (spec(adder(1), array), spec(functools.partial(lambda a, b: a, array), 1)):
        for _ in range(3):
            assert array.nbytes in {memoryview(frame).nbytes for frame in frames(task)}
        assert all((run(received(task)) >= array).all() for _ in range(2))
    small = spec(functools.partial(lambda a, b: a + b, np.arange(5)), np.float64(1.5))
    assert all((one == np.arange(5) + 1.5).all() for one in sent(small))


def test_what_cannot_be_pickled_gives_the_stock_error(told: Told) -> None:
    lock = threading.Lock()
    for task in (
        spec(functools.partial(lambda a: a, lock)),
        spec(lambda a: a, lock),
        spec(functools.partial(operator.add, lock), 1),
    ):
        with pytest.raises(TypeError) as stock:
            cloudpickle.dumps(task)
        for _ in range(3):
            with pytest.raises(type(stock.value), match="cannot pickle"):
                frames(task)


@pytest.mark.parametrize("bound", [(), (1,), (*range(9),), ([*range(5000)],)], ids=len)
def test_what_pickle_does_as_fast_is_neither_kept_nor_counted(
    told: Told, bound: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take longer for anything than what counts as slow.
    monkeypatch.setattr(pickling, "perf_counter", lambda: 0.0)
    task = spec(functools.partial(len, *bound) if bound else len, 1)
    for _ in range(20):
        frames(task)

    assert 0 == PICKLES.counts()["kept"]
    assert len(told.rows) <= 1  # whether a large one is worth keeping is tried once


def test_a_large_partial_of_a_named_function_is_kept(told: Told) -> None:
    large = functools.partial(max, *range(LEAST_PARTIAL))
    before = reused()

    assert [LEAST_PARTIAL - 1] * 4 == sent(spec(large, 7), times=4)
    assert 2 == reused() - before


def test_a_partial_of_what_a_script_consists_of_is_kept(told: Told) -> None:
    """It has hundreds of small parts, and cloudpickle takes three times as long as comparing."""
    script = as_on_scheduler({name: SCRIPT[name] for name in ("task", "Config")})
    task = spec(functools.partial(script["task"], script["Config"]()), 1)
    before = PICKLES.counts()["left_to_stock"]

    for _ in range(9):
        frames(task)
    assert 1 == PICKLES.counts()["left_to_stock"] - before


def test_modules_registered_by_value_are_left_to_stock(told: Told) -> None:
    before, function = reused(), adder(1)
    cloudpickle.register_pickle_by_value(pathlib)
    try:
        assert [2] * 3 == sent(spec(function, 1))
    finally:
        cloudpickle.unregister_pickle_by_value(pathlib)

    assert before == reused()


def test_fused_tasks_reuse_all_that_they_call(told: Told) -> None:
    if isinstance(spec(len), tuple):
        task = (distributed.worker.execute_task, ((add_one(), (times_two(), 3)),), {})
    else:
        from dask._task_spec import Task, TaskRef

        inner = [Task("a", times_two(), 3), Task("b", add_one(), TaskRef("a"))]
        task = Task.fuse(*inner)
    before = reused()

    assert [7] * 5 == sent(task, times=5)
    assert 4 <= reused() - before


def add_one() -> Callable[[int], int]:
    return adder(1)


def times_two() -> Callable[[int], int]:
    return lambda x: 2 * x


@pytest.mark.long
def test_fresh_callables_leave_nothing_behind(told: Told) -> None:
    refs = []
    for n in range(2 * MOST_OBJECTS):
        closure = adder(n)
        refs.append(weakref.ref(closure))
        for _ in range(n % 4):
            frames(spec(closure, 1))
    told.rows.clear()
    del closure
    gc.collect()

    assert [] == [ref for ref in refs if ref() is not None]
    assert 0 == PICKLES.counts()["kept_bytes"]


@pytest.mark.long
def test_what_is_held_is_bounded_and_counted(told: Told) -> None:
    large = [functools.partial(len, bytes(LARGEST // 4)) for _ in range(30)]
    huge = [functools.partial(len, bytes(2 * LARGEST)) for _ in range(3)]
    for partial in large + huge:
        for _ in range(3):
            frames(spec(partial))
    counts = PICKLES.counts()
    refs = [weakref.ref(partial) for partial in huge]
    told.rows.clear()
    del partial, huge
    gc.collect()

    assert LARGEST * 2 < counts["kept_bytes"] <= MOST_BYTES
    assert counts["kept"] * LARGEST // 4 <= counts["kept_bytes"]
    assert [None] * 3 == [ref() for ref in refs]


def test_what_has_gone_takes_no_room(told: Told) -> None:
    stays = adder(1)
    for n in range(6):
        task = spec(functools.partial(len, bytes(LARGEST - 1000)) if n else stays, 1)
        PICKLES.pickled(task, [])
        PICKLES.pickled(task, [])
    del task

    assert 1 == PICKLES.counts()["kept"]


@pytest.mark.long
@pytest.mark.parametrize("part", [None, 7, (), {}], ids=repr)
def test_what_is_noted_is_counted(told: Told, part: Any) -> None:
    """A pickle has a byte for None, and what is noted of a list eight."""
    parts = [part] * 200_000
    tasks = [spec(adder(parts[:]), 1) for _ in range(3)]  # type: ignore[arg-type]
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(3):
            for task in tasks:
                PICKLES.pickled(task, [])
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert 3 == PICKLES.counts()["kept"]
    assert held < 1.2 * PICKLES.counts()["kept_bytes"]


def test_what_nobody_asks_for_is_dropped(told: Told) -> None:
    used, unused = adder(1), adder(2)
    for _ in range(3):
        sent(spec(used, 1), 1)
        sent(spec(unused, 1), 1)
    kept = PICKLES.counts()["kept"]

    PICKLES.cache.age()
    sent(spec(used, 1), 1)
    PICKLES.cache.age()

    assert (2, 1) == (kept, PICKLES.counts()["kept"])


def test_what_changes_all_the_time_is_not_kept_for_ever_anew(told: Told) -> None:
    function = adder(0)
    before = PICKLES.counts()["pickled"]
    for n in range(20):
        assert function.__closure__ is not None
        function.__closure__[0].cell_contents = n
        assert [n + 1] == sent(spec(function, 1), 1)

    assert 2 >= PICKLES.counts()["pickled"] - before


def test_threads_may_share_the_memo(told: Told) -> None:
    functions = [adder(n) for n in range(20)]
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(20):
            wrong.extend(n for n, fn in enumerate(functions) if sent(spec(fn, 1), 1) != [n + 1])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == wrong


def test_others_who_pickle_are_none_of_our_business(told: Told) -> None:
    task = spec(adder(1), 1)
    for _ in range(3):
        distributed_pickle.dumps(task)
        distributed_pickle.dumps(task, protocol=4)
        distributed_pickle.dumps([task], buffer_callback=[].append)

    assert 0 == len(told.rows)
    assert 0 == PICKLES.counts()["kept"]


# With real schedulers, and workers in processes of their own.

NANNIES = {"client": True, "nthreads": [("127.0.0.1", 1)], "Worker": Nanny}


def relief(s: Any) -> PicklingRelief:
    agent = install(s)
    found = agent.reliefs.get("pickling")
    assert isinstance(found, PicklingRelief)
    return found


@pytest.mark.long
@gen_cluster(**NANNIES)
async def test_it_comes_and_goes_while_tasks_are_sent(c, s, a) -> None:
    stock = distributed_pickle.dumps
    agent = Agent(s)
    futures = c.map(lambda x: x + 1, range(300))
    for n in range(5):
        found = PicklingRelief(agent.reliefs)
        found.install()

        assert n + 1 == await c.submit(adder(1), n, pure=False)
        found.uninstall()
        assert distributed_pickle.dumps is stock

    assert list(range(1, 301)) == await c.gather(futures)


@gen_cluster(nthreads=[])
async def test_what_nobody_observes_is_not_kept_alive(s) -> None:
    found = relief(s)
    function = adder(1)
    sent(spec(function, 1), times=1)
    ref = weakref.ref(function)
    del function

    found._age()

    gc.collect()
    assert ref() is None
    uninstall(s)
