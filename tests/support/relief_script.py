"""
A user's script that does a bit of everything, run by a test as `__main__`: script.py SCHEDULER_FILE

Prints a line of JSON: what came of each part, as text, and what state the scheduler's reliefs are
in. Needs nothing of ours, as a user's script would.
"""

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import operator
import pathlib
import sys
import threading
import uuid

import dask
from dask import delayed
from distributed import Client, get_client, get_worker, secede, wait, worker_client

FACTOR = 3


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass(frozen=True)
class Config:
    root: pathlib.Path
    factor: int = 2


class Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return self.by * x

    def method(self, x):
        return x + self.by


class Counter:
    n = 0

    def add(self, k):
        self.n += k
        return self.n


def helper(config, x):
    return config.factor * x + FACTOR


def of_script(config, x):
    return Config(config.root / str(x), helper(config, x))


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def nested(n):
    def outer(x):
        return (lambda y: inner(y) + n)(x)

    def inner(y):
        return y * n

    return outer


def append_and_count(seen, x):
    seen.append(x)
    return len(seen)


def flaky(name, bad):
    runs = get_worker().__dict__.setdefault("runs_of_test", collections.Counter())
    runs[name] += 1
    if runs[name] <= bad:
        raise ValueError(f"{name} failed {runs[name]} times")
    return runs[name]


def with_client(n):
    with worker_client() as c:
        return sum(c.gather(c.map(lambda x: x + FACTOR, range(n), pure=False)))


def with_own_client(n):
    c = get_client()
    futures = c.map(Scale(n), range(n))
    secede()
    return c.gather(futures)


def kinds(*values):
    return [type(v).__name__ for v in values], values


def fate(future):
    wait(future)
    error = future.exception()
    return [future.status, type(error).__name__, str(error)]


def tasks(c, first):
    of_config = functools.partial(of_script, Config(pathlib.Path("/in")))
    yield "script", c.gather(c.map(of_config, range(20)))
    yield "lambda", c.gather(c.map(lambda x: x + FACTOR, range(20), pure=False))
    yield "closure", c.gather(c.map(nested(4), range(20)))
    yield "callable", c.gather(c.map(Scale(5), range(10)))
    yield "method", c.gather(c.map(Scale(5).method, range(10)))
    yield "recursive", c.gather(c.map(fibonacci, range(10)))
    yield "partial", c.gather(c.map(functools.partial(operator.add, 4), range(20), pure=False))
    big = functools.partial(lambda all, x: all[x], [pathlib.Path(f"/in/{i}") for i in range(2000)])
    yield "big partial", c.gather(c.map(big, range(20)))
    yield "keywords", c.gather(c.map(lambda x, by: x * by, range(10), by=Scale(2)(4)))
    mutating = functools.partial(append_and_count, [])
    yield "mutating", c.gather(c.map(mutating, range(5), pure=False, workers=[first]))
    yield "submit", [c.submit(lambda x, y=i: x * y, i, pure=False).result() for i in range(20)]
    chain = functools.reduce(lambda f, i: c.submit(Scale(2).method, f), range(10), 1)
    yield "chain", chain.result()


def values(c):
    day = datetime.datetime(2024, 2, 29, 1, 2, 3, tzinfo=datetime.timezone.utc)
    one = uuid.UUID(int=7)
    few = (pathlib.Path("/a"), day, day.date(), decimal.Decimal("1.50"), one, Colour.RED)
    more = (Config(pathlib.Path("b")), {1, 2}, None, b"x", ..., day.time(), range(3), print)
    yield "kinds", c.submit(kinds, *few, *more).result()
    yield "kinds mapped", c.gather(c.map(kinds, few))
    yield "ten megabytes", len(c.submit(lambda b: b + b"!", b"x" * 10_000_000).result())
    scattered = c.scatter([Config(pathlib.Path("s"), i) for i in range(4)])
    yield "scattered", c.gather(c.map(helper, scattered, range(4)))
    everywhere = c.scatter({"k": b"y" * 1_000_000}, broadcast=True)
    yield "broadcast", c.gather(c.map(lambda d, i: len(d["k"]) + i, [everywhere] * 6, range(6)))
    try:
        c.submit(kinds, threading.Lock()).result()
    except Exception as error:
        yield "unpicklable", type(error).__name__
    yield "unpicklable result", fate(c.submit(lambda: threading.Lock()))[:1]


def errors(c, first):
    at = {"workers": [first], "pure": False}
    yield "retried", c.submit(flaky, "a", 2, retries=2, **at).result()
    yield "erred", fate(c.submit(flaky, "b", 9, retries=1, **at))
    yield "lambda erred", fate(c.submit(lambda x: 1 / x, 0))
    erred = c.submit(flaky, "c", 9, **at)
    yield "dependent", fate(c.submit(Scale(2), erred))
    again = c.submit(flaky, "d", 1, **at)
    wait(again)
    again.retry()
    yield "asked again", again.result()


def graphs(c):
    total = delayed(sum)([delayed(fibonacci)(delayed(Scale(2))(i)) for i in range(8)])
    yield "delayed", c.compute(total).result()
    try:
        import dask.array as da
    except ImportError:
        return
    x = da.arange(40 * 40, chunks=200).reshape((40, 40)).rechunk((5, 40))
    with dask.config.set({"optimization.fuse.active": False}):
        y = x.map_blocks(lambda b: b + FACTOR).rechunk((40, 5), method="p2p")
        yield "shuffled", [int(n) for n in c.compute(y.sum(axis=0)).result()]


def rest(c):
    actor = c.submit(Counter, actor=True).result()
    yield "actor", [actor.add(i).result() for i in range(5)], actor.n
    yield "worker_client", c.gather(c.map(with_client, range(1, 4)))
    yield "get_client", c.submit(with_own_client, 4).result()
    c.publish_dataset(kept=c.submit(Scale(7), 6))
    yield "published", c.get_dataset("kept").result()


def books(dask_scheduler):
    """What the scheduler itself makes of what it has been given, while all of it is there."""
    return {
        name: [
            sorted((state, n) for state, n in prefix.states.items() if n),
            len(prefix.groups),
            int(prefix.nbytes_total),
            sorted(prefix.types),
        ]
        for name, prefix in sorted(dask_scheduler.task_prefixes.items())
        if name in ("held", "failing")
    }


def last(c):
    held = c.map(Scale(3), range(30), key=[str((f"held-{i // 10}", i)) for i in range(30)])
    failing = c.map(lambda x: 1 // x, range(2), key=["failing-0", "failing-1"])
    wait(held + failing)
    yield "books", c.run_on_scheduler(books)
    del held[::2]
    yield "sum of the others", sum(c.gather(held))


def main():
    with Client(scheduler_file=sys.argv[1]) as c:
        c.wait_for_workers(2)
        first = min(c.scheduler_info()["workers"].values(), key=lambda w: str(w["name"]))["name"]
        found = {}
        for part in (tasks(c, first), values(c), errors(c, first), graphs(c), rest(c), last(c)):
            found.update({name: repr(value) for name, *value in part})
        states = {}
        try:
            answer = c.sync(c.scheduler.adaptive_hello, protocol=0)
            states = {row["name"]: row["state"] for row in answer["relief"]}
        except Exception:
            pass  # there is no agent
        print(json.dumps({"found": found, "states": states}))


if __name__ == "__main__":
    main()
