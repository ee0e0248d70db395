"""
Graphs with known results. Their tasks note each of their runs in a folder that is not Dask's, so
that a run counts even if nobody ever hears of it. All functions travel by value: workers cannot
import them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from soak.books import Shape

#: Where workers find the folder for their notes; `NOTES` in their environment says otherwise.
FOLDER = "/soak"

PLAIN, BY_VALUE, SHUFFLE = "plain", "by value", "shuffle"


def made_of(number: int, size: int, *parts: bytes) -> bytes:
    """A result that tells whether it was made of the right inputs."""
    digest = hashlib.sha256(b"".join((str(number).encode(), *parts))).digest()
    return digest * size


def _by_value() -> tuple[Callable[..., Any], ...]:
    def note(what: str, key: str) -> None:
        import os
        import time

        name = os.path.join(os.environ.get("NOTES", "/soak"), os.environ["HOSTNAME"])
        with open(name, "a") as file:  # a line in one write, which no other process tears
            file.write(f"{what} {key} {time.time():.3f}\n")

    def noted(key: str, seconds: float, size: int, *parts: bytes) -> bytes:
        import hashlib
        import time

        note("began", key)
        time.sleep(seconds)
        number = key.rpartition("-")[2]
        result = hashlib.sha256(b"".join((number.encode(), *parts))).digest() * size
        note("ended", key)
        return result

    def carrying(payload: bytes) -> Callable[..., bytes]:
        """A function of each task's own, that has its data with it."""

        def carried(key: str, seconds: float, size: int, *parts: bytes) -> bytes:
            return noted(key, seconds, size, payload, *parts)

        return carried

    def source(named: tuple[int, str], rows: int, seconds: float) -> Any:
        import time

        import pandas as pd

        i, key = named
        note("began", key)
        time.sleep(seconds)
        frame = pd.DataFrame(
            {"k": [(i + 7 * v) % 97 for v in range(rows)], "x": range(i * rows, (i + 1) * rows)}
        )
        note("ended", key)
        return frame

    def summary(frame: Any, key: str, seconds: float) -> tuple[int, int, list[int]]:
        """Rows, their sum, and the keys: a key in two parts has been left apart."""
        import time

        note("began", key)
        time.sleep(seconds)
        found = len(frame), int(frame["x"].sum()), sorted(set(map(int, frame["k"])))
        note("ended", key)
        return found

    def joined(parts: Sequence[tuple[int, int, list[int]]]) -> tuple[int, int, list[int]]:
        rows, sums, keys = zip(*parts)  # noqa: B905 (the workers' Python may be older)
        return sum(rows), sum(sums), sorted(k for some in keys for k in some)

    return noted, carrying, source, summary, joined


_noted, _carrying, _source, _summary, _joined = _by_value()


@dataclass(frozen=True)
class Graph:
    """A graph of one round."""

    round: int
    shape: Shape
    #: Submits it, with this attempt's part of the keys; the futures whose results are wanted.
    submit: Callable[[Any, str], list[Any]]
    expected: Sequence[Any]

    def start(self, client: Any, attempt: int) -> list[Any]:
        return self.submit(client, f"{self.round}-{attempt}")


@dataclass(frozen=True)
class _Step:
    """A task of a plain graph."""

    seconds: float
    size: int  # of its result, in units of 32 bytes
    needs: tuple[int, ...]
    payload: bytes = b""


def draw(dice: random.Random, round_: int, kind: str) -> Graph:
    """A graph of a kind, at random."""
    if kind == SHUFFLE:
        return shuffle(round_, dice)
    steps: list[_Step] = []
    length = dice.choice([0.05, 0.2, 0.5])
    for i in range(dice.randint(20, 60)):
        near = range(max(0, i - 12), i)
        needs = dice.sample(near, min(len(near), dice.choice([0, 0, 1, 2, 3])))
        seconds = dice.choice([4.0, 8.0]) if dice.random() < 0.03 else length
        payload = dice.randbytes(20_000) if kind == BY_VALUE else b""
        steps.append(_Step(seconds, dice.choice([1, 1, 1000, 20_000]), tuple(needs), payload))
    return stepwise(round_, kind, steps)


def stepwise(round_: int, kind: str, steps: Sequence[_Step]) -> Graph:
    """What nothing else needs is what is wanted; the rest is released as soon as it can be."""
    needed = {n for step in steps for n in step.needs}
    wanted = [i for i in range(len(steps)) if i not in needed]
    results: list[bytes] = []
    for i, step in enumerate(steps):
        parts = [step.payload] if step.payload else []
        results.append(made_of(i, step.size, *parts, *(results[n] for n in step.needs)))

    def submit(client: Any, prefix: str) -> list[Any]:
        futures: list[Any] = []
        for i, step in enumerate(steps):
            run = _carrying(step.payload) if step.payload else _noted
            key = f"{kind.replace(' ', '')}-{prefix}-{i}"
            inputs = [futures[n] for n in step.needs]
            futures.append(client.submit(run, key, step.seconds, step.size, *inputs, key=key))
        return [futures[i] for i in wanted]

    needs: Mapping[int, Sequence[int]] = {i: step.needs for i, step in enumerate(steps)}
    return Graph(round_, Shape(kind, needs), submit, [results[i] for i in wanted])


def shuffle(round_: int, dice: random.Random) -> Graph:
    """A P2P shuffle of parts that take some time into others that are worked on."""
    sources, outputs = dice.choice([6, 10, 16]), dice.choice([3, 8, 12])
    rows, seconds, later = dice.choice([500, 5000]), dice.choice([0.1, 0.4]), dice.choice([0.1, 1])
    numbers = range(sources * rows)

    def submit(client: Any, prefix: str) -> list[Any]:
        import dask
        import dask.dataframe as dd
        import pandas as pd
        from dask.delayed import delayed

        columns = pd.DataFrame({"k": pd.Series(dtype="int64"), "x": pd.Series(dtype="int64")})
        named = [(i, f"source-{prefix}-{i}") for i in range(sources)]
        make: Any = dd.from_map
        with dask.config.set({"dataframe.shuffle.method": "p2p"}):
            frame = make(_source, named, rows=rows, seconds=seconds, meta=columns)
            parts = frame.shuffle("k", npartitions=outputs).to_delayed()
        keys = [f"summary-{prefix}-{100 + i}" for i in range(outputs)]
        each = [
            delayed(_summary)(part, key, later, dask_key_name=key)
            for part, key in zip(parts, keys, strict=True)
        ]
        joined = delayed(_joined)(each, dask_key_name=f"total-{prefix}-999")
        return [client.compute(joined)]

    keys = sorted({(i + 7 * v) % 97 for i in range(sources) for v in range(rows)})
    return Graph(round_, Shape(SHUFFLE), submit, [(len(numbers), sum(numbers), keys)])
