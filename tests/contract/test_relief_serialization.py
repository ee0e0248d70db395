"""What serializing costs: counted by function, weighed by the minute, told once."""

from __future__ import annotations

import functools
import threading
from typing import Any

import distributed
import pytest
from packaging.version import Version

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import uninstall
from dask_adaptive_agent.relief.serialization import (
    MOST_FUNCTIONS,
    NAME_LENGTH,
    SILENCE_S,
    SerializationMeter,
)
from support.agent_cluster import with_agent
from support.agent_work import ask
from support.tables import table

try:
    from dask._task_spec import Task
except ImportError:
    Task = None

HERE = __name__


def convert(x: Any) -> Any:
    return x


class Converter:
    def convert(self, x: Any) -> Any:
        return x

    def __call__(self, x: Any) -> Any:
        return x


class Process:
    """Two clocks, and a meter between them."""

    def __init__(self, *, is_shared: bool = False) -> None:
        self.now = 1000.0
        self.cpu_s = 50.0
        self.told: list[tuple[str, str]] = []
        self.meter = SerializationMeter(
            lambda: self.now,
            lambda kind, text: self.told.append((kind, text)),
            cpu=lambda: self.cpu_s,
            is_shared=is_shared,
        )

    def run(self, seconds: float, *, load: float, part: float, function: Any = convert) -> None:
        """Of each second, `load` is CPU; of that, `part` goes by serializing."""
        for _ in range(round(seconds)):
            for _ in range(4):
                self.meter.add(function, load * part / 4, 7000)
            self.now += 1
            self.cpu_s += load

    def pause(self, seconds: float, *, load: float = 0.0) -> None:
        self.now += seconds
        self.cpu_s += load * seconds


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (convert, f"{HERE}.convert"),
        (functools.partial(convert, 1), f"{HERE}.convert"),
        (functools.partial(functools.partial(convert), 1), f"{HERE}.convert"),
        (Converter().convert, f"{HERE}.Converter.convert"),
        (Converter(), f"{HERE}.Converter"),
        (Converter, f"{HERE}.Converter"),
        # A long name keeps its end.
        (type("a" * 100, (), {}), "…" + "a" * (NAME_LENGTH - 1)),
        (len, "builtins.len"),
        ((), "builtins.tuple"),
    ],
)
def test_functions_are_named(function: Any, expected: str) -> None:
    process = Process()
    process.meter.add(function, 0.5, 10)

    assert [expected] == [row["function"] for row in process.meter.answer()["top"]]


def test_what_people_define_does_not_break_it() -> None:
    class Odd:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    process = Process()
    process.meter.add(Odd(), 0.5, 10)

    assert 1 == process.meter.answer()["calls"]


def test_all_is_added_up() -> None:
    process = Process()
    for n in range(150):
        process.meter.add(convert, 1e-5, 100 + n)
    process.meter.add(len, 0.5, 10)

    answer = process.meter.answer()
    assert (151, 501_500) == (answer["calls"], answer["us"])
    expected = [("builtins.len", 1, 500_000, 10, 10)]
    expected += [(f"{HERE}.convert", 150, 1500, 150 * 100 + 149 * 75, 249)]
    assert expected == [
        (r["function"], r["calls"], r["us"], r["bytes"], r["size"]) for r in answer["top"]
    ]


def test_many_functions_are_bounded_and_the_dear_ones_stay() -> None:
    process = Process()
    for n in range(5 * MOST_FUNCTIONS):
        process.meter.add(type(f"C{n}", (), {}), 1e-6, 1)
        if n % 100 == 0:
            process.meter.add(convert, 0.1, 1)

    assert len(process.meter._rows) <= MOST_FUNCTIONS
    answer = process.meter.answer()
    assert f"{HERE}.convert" == answer["top"][0]["function"]
    assert (10, 5 * MOST_FUNCTIONS + 50) == (len(answer["top"]), answer["calls"])


def test_threads_lose_nothing() -> None:
    process = Process()

    def add() -> None:
        for _ in range(20_000):
            process.meter.add(convert, 1e-6, 1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answer = process.meter.answer()
    assert (80_000, 80_000) == (answer["calls"], answer["bytes"])


def test_the_share_is_of_the_last_minute() -> None:
    process = Process()
    process.run(600, load=0.5, part=0.6)
    process.run(30, load=0.5, part=0.2)
    process.run(30, load=0.5, part=0.4)
    assert 29 <= process.meter.answer()["share"] <= 31
    process.run(30, load=0.5, part=0.0)
    assert 19 <= process.meter.answer()["share"] <= 21
    process.pause(60, load=0.5)
    assert 0 == process.meter.answer()["share"]


def test_a_pause_that_nobody_watches_has_no_part_in_it() -> None:
    process = Process()
    process.run(60, load=1.0, part=0.5)
    process.pause(3600, load=0.01)
    process.run(5, load=1.0, part=0.5)
    # 2.5 of 5 + 0.55 seconds of CPU.
    assert 43 <= process.meter.answer()["share"] <= 47


def test_a_heavy_minute_is_told_once_an_hour() -> None:
    process = Process()
    for _ in range(3):
        process.run(25, load=0.5, part=0.3)
        process.meter.answer()
    ((kind, text),) = process.told
    assert wire.N_SERIALIZATION_HEAVY == kind
    for word in ("30%", f"{HERE}.convert", "7 kB", "pickling: Shared", "scatter"):
        assert word in text
    process.run(SILENCE_S - 60, load=0.5, part=0.3)
    process.meter.answer()
    assert 1 == len(process.told)
    process.run(120, load=0.5, part=0.3)
    process.meter.answer()
    assert 2 == len(process.told)


def test_it_names_who_is_heavy_now() -> None:
    process = Process(is_shared=True)
    process.run(600, load=1.0, part=0.15, function=len)
    process.run(130, load=1.0, part=0.25)
    process.meter.answer()
    ((_, text),) = process.told
    assert f"{HERE}.convert" in text
    assert "Shared" not in text


def test_a_heavy_minute_is_told_when_somebody_asks_at_last() -> None:
    process = Process()
    process.run(90, load=1.0, part=0.5)
    process.pause(900)
    assert [] == process.told
    process.meter.answer()
    assert 1 == len(process.told)


@table(
    "stretches",
    light=[(300, 0.5, 0.19)],
    of_next_to_nothing=[(300, 0.01, 0.9)],
    bursts_shorter_than_a_minute=[(30, 1.0, 0.9), (25, 0.1, 0.0)] * 5,
)
def test_nothing_is_told_of(stretches: list[tuple[float, float, float]]) -> None:
    process = Process()
    for seconds, load, part in stretches:
        process.run(seconds, load=load, part=part)
        process.meter.answer()
    assert [] == process.told


NEEDS_IT = pytest.mark.skipif(
    Version(distributed.__version__) < Version("2023.8.1"),
    reason="this release pickles functions once by itself",
)


@NEEDS_IT
@pytest.mark.parametrize("choice", [wire.AUTO, wire.SHARED])
@with_agent()
async def test_a_snapshot_says_what_serializing_cost(c, s, a, b, choice) -> None:
    await ask(s, wire.CONFIGURE, relief={"pickling": choice})
    by_value = lambda x: convert(x)  # noqa: E731 - what is cheap, by name, need not be counted
    await c.gather(c.map(by_value, range(20), pure=False))
    serialized = (await ask(s, wire.OBSERVE))["serialized"]
    rows = {row["function"]: row for row in serialized["top"]}
    row = rows[next(name for name in rows if name.endswith("<lambda>"))]
    assert 20 == row["calls"]
    assert row["bytes"] > 20 * 50
    await ask(s, wire.CONFIGURE, relief={"pickling": wire.DISABLED})
    assert (await ask(s, wire.OBSERVE))["serialized"] is None
    uninstall(s)
