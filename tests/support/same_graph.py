"""
Random tasks, as scripts and notebooks make them, and what can be told of what they give.

A graph comes from a seed. It is sent by stock code and by ours, in turns, while what it consists of
changes; each kind of sending has a process of its own that loads and runs what it gets.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import math
import operator
import pathlib
import pickle
import random
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import cloudpickle
from distributed.protocol import pickle as distributed_pickle
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from dask_adaptive_agent.relief.pickling import TASK, TaskPickles
from dask_adaptive_agent.relief.sharing import WorkerLine
from support import same_graph_worker
from support.relief_pickling import Told, in_main, spec

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

#: A script. `{n}` makes each graph's functions differ.
SCRIPT = """
import dataclasses, enum, functools, operator, pathlib, re

N = {n}
TABLE = [1, 2, {{"three": 3}}]
UNKNOWN = "not known"
PATTERN = re.compile("a+")

@dataclasses.dataclass
class Config:
    root: object = pathlib.Path("/data")
    many: list = dataclasses.field(default_factory=list)
    factor: int = 3
    def scaled(self, *args):
        return ("scaled", self.factor, self.root, args)

class Plain:
    limit = 5
    both = []
    def __init__(self, inside):
        self.inside = inside
    def method(self, *args):
        return ("method", self.limit, self.both, self.inside, args)
    @property
    def double(self):
        return (self.inside, self.limit)
    @classmethod
    def made(cls, *args):
        return cls(args)

class Slotted:
    __slots__ = ("a", "b")
    def __init__(self, a):
        self.a = a

class Reduced(Plain):
    def __reduce__(self):
        return Reduced, (self.inside,)

class Called:
    def __init__(self, inside):
        self.inside = inside
    def __call__(self, *args):
        return ("called", self.inside, args)

class Colour(enum.Enum):
    RED = 1

def named(*args, **kwargs):
    return ("named", N, TABLE, args, sorted(kwargs.items()))

def with_default(x=0, *, more=(1, [2])):
    return ("default", x, more, with_default.__dict__)

def recursive(x=3):
    return ("end", N) if x == 0 else ("again", recursive(x - 1))

def with_classes(*args):
    plain = Plain(args)
    return (plain.method(), plain.double, Config().scaled(N), PATTERN.pattern)

def is_same(*args):
    return [a is b for a in args for b in args]

def is_unknown(*args):
    return [arg is UNKNOWN for arg in args]

def writes(x=1):
    global N
    N += 1
    return ("writes", N, reads())

def reads(*_):
    return N

def fails(*args):
    raise ValueError(args)

def mutates(kept, *args):
    kept.append(len(kept))
    return list(kept)

def counts(*args):
    counts.n = getattr(counts, "n", 0) + 1
    return counts.n

def closure(inside):
    def inner(*args, **kwargs):
        return ("inner", inside, args, kwargs)
    return inner

def twins(inside):
    n = [inside]
    def one(*args):
        n.append(args)
        return n
    def other(*args):
        return ("other", n, args)
    return one, other

def calls(function, *args):
    return function(*args)
"""


class Serialized:
    """A type that distributed has a serializer for."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside


def _no_serializer(obj: Serialized) -> tuple[dict[str, Any], list[bytes]]:
    return {"inside": "serialized"}, []


dask_serialize.register(Serialized, _no_serializer)
dask_deserialize.register(Serialized, same_graph_worker.deserialized)


class Graph:
    """Tasks that have objects in common, as a scheduler holds them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.names = in_main(SCRIPT.format(n=seed % 7))
        self.common: list[Any] = [["common", 1, 0.0]]
        self.is_mutating = False
        self.common += [self._value(2) for _ in range(3)]
        made = [self._task() for _ in range(self.dice.randrange(1, 4))]
        try:
            self.tasks = cloudpickle.loads(cloudpickle.dumps(made))  # a client sends them
        except Exception:
            self.tasks = made  # a lock in them: schedulers meet it in graphs of their own

    def _leaf(self) -> Any:
        dice = self.dice
        leaves = [
            *(None, True, 1, 0, -0.0, 0.0, math.nan),
            *("text", "__main__", b"__main__", b"", "x" * 200),
            *(pathlib.PurePosixPath("/a/b"), datetime.timedelta(3), decimal.Decimal("1.5"), ...),
            *(len, operator.add, dict, math, re.compile("x"), range(3), frozenset({1, "a"})),
            *(datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc), functools.reduce),
            *(self.names["Colour"].RED, self.names["Config"], bytearray(b"abc"), object),
            *(self.names["UNKNOWN"], self.names["UNKNOWN"]),
        ]
        return dice.choice(leaves)

    def _value(self, depth: int) -> Any:
        dice, names = self.dice, self.names
        if depth == 0 or dice.random() < 0.3:
            return self._leaf()
        makes: list[Callable[[], Any]] = [
            lambda: [self._value(depth - 1) for _ in range(dice.randrange(3))],
            lambda: (self._value(depth - 1), self._value(depth - 1)),
            lambda: {dice.choice("abc"): self._value(depth - 1), 1: 2},
            lambda: set(dice.sample(["a", 1, 2.5, None], 2)),
            lambda: names[dice.choice(("Plain", "Slotted", "Called", "Reduced"))](
                self._value(depth - 1)
            ),
            lambda: names["Config"](self._value(depth - 1), [self._value(depth - 1)]),
            lambda: self._function(depth - 1),
            lambda: dice.choice(self.common),
            lambda: dice.choice(self.common),
            lambda: types.SimpleNamespace(inside=self._value(depth - 1)),
            lambda: list(range(1000)),
        ]
        rare: list[Callable[[], Any]] = [
            lambda: Serialized(self._value(depth - 1)),
            threading.Lock,
            lambda: names["Plain"](1).method,
            lambda: memoryview(b"abc"),
        ]
        if np is not None:
            rare += [lambda: np.arange(5.0), lambda: np.arange(100_000), lambda: np.float64(1)]
        return dice.choice(rare if dice.random() < 0.05 else makes)()

    def _function(self, depth: int) -> Any:
        dice, names = self.dice, self.names
        plain = ("named", "with_default", "recursive", "with_classes", "is_same", "writes", "reads")
        makes: list[Callable[[], Any]] = [
            lambda: names[dice.choice(plain)],
            lambda: names[dice.choice(plain)],
            lambda: names["closure"](self._value(depth - 1) if depth > 0 else self._leaf()),
            lambda: names["twins"](self._leaf())[1],
            lambda: eval("lambda *args, n=N: ('lambda', n, args)", names),
            lambda: dice.choice((operator.itemgetter(0), max, repr, functools.partial(max, 1))),
            lambda: names["fails"],
            lambda: names["is_unknown"],
            lambda: names["Called"](self._leaf()),
            lambda: names["Plain"](self._leaf()).method,
            lambda: names["Plain"].made,
            lambda: names["Config"],
        ]
        if depth > 0:
            makes += [
                lambda: functools.partial(self._function(depth - 1), self._value(depth - 1)),
                lambda: functools.partial(self._function(depth - 1), list(range(900))),
                lambda: functools.partial(names["calls"], self._function(depth - 1)),
                self._mutating,
            ]
        return dice.choice(makes)()

    def _mutating(self) -> Any:
        self.is_mutating = True  # what `Shared` says that it changes
        names = self.names
        mutates = functools.partial(names["mutates"], [])
        return self.dice.choice((mutates, names["counts"], names["twins"](1)[0]))

    def _task(self) -> Any:
        args = [self._value(2) for _ in range(self.dice.randrange(3))]
        kwargs = {"more": self._value(1)} if self.dice.random() < 0.1 else {}
        if self.dice.random() < 0.4:
            return self._nest(args)
        function = self._function(2)
        return spec(function, *args, **kwargs)

    def _nest(self, args: list[Any]) -> Any:
        """Fused tasks, and nested ones."""
        inner, outer = self._function(2), self._function(2)
        if TASK is None:
            from distributed.worker import execute_task

            nested = (outer, (inner, *args), (operator.getitem, [(inner, 1), 2], 1))
            return execute_task, (nested,), {}
        from dask._task_spec import List, TaskRef

        first = TASK("a", inner, *args)
        last = TASK("b", outer, TaskRef("a"), List(TaskRef("a"), self._value(1)))
        return TASK.fuse(first, last) if self.dice.random() < 0.7 else TASK("c", outer, first)

    def change(self) -> None:
        """Something that the scheduler holds is not what it was, or only looks like it."""
        changeable = list(self._changeable(tuple(self.tasks), set()))
        if changeable:
            self.dice.choice(changeable)(self.dice.choice((1, True, 0.0, -0.0, "new", [1])))

    def _changeable(self, one: Any, seen: set[int]) -> Any:
        """Calls that change something, given a new value."""
        if id(one) in seen or len(seen) > 300:
            return
        seen.add(id(one))
        if isinstance(one, types.FunctionType) and one.__module__ == "__main__":
            for cell in one.__closure__ or ():
                yield functools.partial(setattr, cell, "cell_contents")
            yield functools.partial(operator.setitem, one.__globals__, "N")
            yield lambda value: setattr(one, "__defaults__", one.__defaults__ and (value,))
            yield functools.partial(setattr, one, "noted")
        elif isinstance(one, list) and one:
            yield functools.partial(operator.setitem, one, 0)
        elif isinstance(one, dict):
            yield functools.partial(operator.setitem, one, "a")
        elif isinstance(one, type) and one.__module__ == "__main__" and one.__name__ == "Plain":
            yield functools.partial(setattr, one, "limit")
        for part in _held_by(one):
            yield from self._changeable(part, seen)


def _held_by(one: Any) -> list[Any]:
    if isinstance(one, types.FunctionType) and one.__module__ == "__main__":
        cells = [cell.cell_contents for cell in one.__closure__ or ()]
        return [*(one.__defaults__ or ()), *one.__globals__.values(), *cells]
    if isinstance(one, dict):
        return list(one.values())
    if isinstance(one, functools.partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, (list, tuple, set, frozenset)):
        return list(one)
    if TASK is not None and isinstance(one, TASK):
        return [one.func, one.args, one.kwargs]
    if type(one).__module__ == "__main__" and hasattr(one, "__dict__"):
        return [type(one), one.__dict__]
    return []


class Reader:
    """A process that loads tasks, runs them, and says what came of it. It has nothing of ours."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, same_graph_worker.__file__],
            env={"PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def give(self, data: Any, buffers: list[Any]) -> Callable[[], str]:
        """What asks for the outcome: all readers work at the same time."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        pickle.dump((bytes(data), [bytearray(buffer) for buffer in buffers]), stdin)
        stdin.flush()
        return lambda: str(pickle.load(stdout))

    def close(self) -> None:
        self._process.communicate()


class Senders:
    """Stock code, ours, and ours with what is kept crossing once."""

    def __init__(self) -> None:
        self._stock = distributed_pickle.dumps
        self._pickles = TaskPickles()
        told: Any = Told()
        self._pickles.add(told)
        self._ours = self._pickles.over(self._stock)
        self._line = WorkerLine("line-", TaskPickles())
        self._readers = [Reader() for _ in range(3)]

    def close(self) -> None:
        for reader in self._readers:
            reader.close()

    def outcomes(self, task: Any) -> list[str]:
        """By each, in that order."""
        ways = (self._by(self._stock), self._by(self._ours), self._shared)
        given = [self._given(way, reader, task) for way, reader in zip(ways, self._readers)]
        out = [ask() for ask in given]
        if out[2].startswith("Reschedule: this worker lacks"):
            # A task before it could not be loaded. A worker's connection ends by that; this one's
            # does not, so the task goes back, and is sent whole.
            self._line.lacks()
            out[2] = self._given(self._shared, self._readers[2], task)()
        return out

    def n_reused(self) -> int:
        return self._pickles.cache.n_used

    def _given(self, way: Callable[[Any], Any], reader: Reader, task: Any) -> Callable[[], str]:
        try:
            data, buffers = way(task)
        except Exception as error:
            text = f"dumps: {type(error).__name__}: {error}"
            return lambda: text
        return reader.give(data, buffers)

    def _by(self, dumps: Callable[..., bytes]) -> Callable[[Any], Any]:
        def way(task: Any) -> Any:
            buffers: list[Any] = []
            return dumps(task, buffer_callback=buffers.append), [b.raw() for b in buffers]

        return way

    def _shared(self, task: Any) -> Any:
        try:
            sent = self._line.pickled(task)[0]
        except Exception:
            return self._by(self._stock)(task)
        return sent.header["pickled-obj"], sent.frames


def differences(seed: int, senders: Senders, n_sends: int = 6) -> list[str]:
    """What a graph gives otherwise with us than without."""
    graph = Graph(seed)
    wrong = []
    for i in range(n_sends):
        if i > 2 and graph.dice.random() < 0.4:
            graph.change()
        task = graph.dice.choice(graph.tasks)
        stock, ours, shared = senders.outcomes(task)
        compared = {"ours": ours} if graph.is_mutating else {"ours": ours, "shared": shared}
        for name, outcome in compared.items():
            if outcome != stock:
                at = next((n for n, (a, b) in enumerate(zip(stock, outcome)) if a != b), 0)
                part = slice(max(0, at - 200), at + 200)
                text = f"stock …{stock[part]}\n {name} …{outcome[part]}"
                wrong.append(f"graph {seed}, send {i}:\n {text}\n {str(task)[:500]}")
    return wrong
