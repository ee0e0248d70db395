"""Whatever is called with whatever: it comes through as stock code would send it."""

from __future__ import annotations

import datetime
import decimal
import functools
import operator
import pathlib
import pickle
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import distributed
import pytest
from distributed.protocol import pickle as distributed_pickle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from support.relief_pickling import as_on_scheduler, hooked, in_main, run, sent, spec

pytestmark = pytest.mark.skipif(
    Version(distributed.__version__) < Version("2023.8.1"), reason="functions' bytes are kept"
)

NAMES = in_main(
    """
import dataclasses, enum, functools

@dataclasses.dataclass(eq=False)
class Box:
    inside: object
    def method(self, *args):
        return ("method", self.inside, args)
    def __call__(self, *args):
        return ("called", self.inside, args)

class Colour(enum.Enum):
    RED = 1
    BLUE = 2

def named(*args, **kwargs):
    return ("named", args, sorted(kwargs.items()))

def with_class(*args):
    return (Box(args).method(), Colour.RED.name)

def closing_over(inside):
    def inner(*args):
        return ("inner", inside, args)
    return inner

def lambda_over(inside):
    return lambda *args: ("lambda", inside, args)
"""
)

LEAVES = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=5),
    st.sampled_from(["__main__", b"__main__", "_make_skeleton"]),
    st.binary(max_size=5),
    st.builds(pathlib.PurePosixPath, st.text("abc/", max_size=5)),
    st.datetimes(),
    st.just(datetime.timedelta(1)),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.sampled_from([decimal.Decimal("1.5"), uuid.UUID(int=1), len, operator.add, dict, ...]),
    st.sampled_from(list(NAMES["Colour"])),
)
#: One object in several places, that can change.
COMMON: list[Any] = ["common"]
VALUES = st.recursive(
    LEAVES | st.just(COMMON),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        inner.map(NAMES["Box"]),
        inner.map(NAMES["closing_over"]),
    ),
    max_leaves=6,
)
BASES = st.one_of(
    st.just(NAMES["named"]),
    st.just(NAMES["with_class"]),
    st.just(functools.partial(isinstance, 1)),
    VALUES.map(NAMES["closing_over"]),
    VALUES.map(NAMES["lambda_over"]),
    VALUES.map(NAMES["Box"]),
    VALUES.map(lambda inside: NAMES["Box"](inside).method),
)
CALLABLES = st.recursive(
    BASES,
    lambda inner: st.builds(functools.partial, inner, VALUES) | inner.map(NAMES["closing_over"]),
    max_leaves=3,
)


@pytest.fixture(autouse=True)
def _relief() -> Iterator[None]:
    with hooked():
        yield


def shape(one: Any, seen: dict[int, int] | None = None) -> Any:
    """What can be told of an object from outside: its values, and which of them are one."""
    seen = {} if seen is None else seen
    parts = parts_of(one)
    if parts is None:
        return repr(one)
    if not isinstance(one, tuple):
        if id(one) in seen:
            return ("again", seen[id(one)])
        seen[id(one)] = len(seen)
    return (type(one).__name__, *[shape(part, seen) for part in parts])


def parts_of(one: Any) -> Any:
    if isinstance(one, (list, tuple)):
        return one
    if isinstance(one, dict):
        return list(one.items())
    if type(one).__name__ == "Box":
        return [one.inside]
    if isinstance(one, functools.partial):
        return [one.func, one.args, one.keywords]
    if isinstance(one, types.MethodType):
        return [one.__func__.__name__, one.__self__]
    if isinstance(one, types.FunctionType):
        return [one.__qualname__, *[cell.cell_contents for cell in one.__closure__ or ()]]
    return None


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return shape(call())
    except Exception as error:
        return (type(error).__name__, str(error))


@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(function=CALLABLES, args=st.lists(st.lists(VALUES, max_size=3), min_size=2, max_size=4))
def test_tasks_come_through_as_stock_sends_them(function: Any, args: list[list[Any]]) -> None:
    # One graph: a callable, and the arguments of each task; some of it is the same object.
    function, args = as_on_scheduler((function, args))
    for each in args * 2:
        task = spec(function, *each)

        expected = outcome(lambda task=task: run(pickle.loads(distributed_pickle.dumps(task))))

        assert expected == outcome(lambda task=task: sent(task, times=1)[0])


@pytest.mark.thorough
@settings(deadline=None, max_examples=800, suppress_health_check=list(HealthCheck))
@given(function=CALLABLES, args=st.lists(st.lists(VALUES, max_size=3), min_size=2, max_size=4))
def test_many_tasks_come_through_as_stock_sends_them(function: Any, args: list[list[Any]]) -> None:
    test_tasks_come_through_as_stock_sends_them.hypothesis.inner_test(function, args)
