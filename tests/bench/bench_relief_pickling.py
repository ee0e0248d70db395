"""
What pickling a task costs a scheduler: microseconds, by stock code and with relief `pickling`.

    PYTHONPATH=operator:tests python tests/bench/bench_relief_pickling.py [--json]

In a hot loop, without sockets. Stock and ours take turns, so that a slow minute of the machine hits
both. `again` sends one callable many times, as `map` does; `fresh` a new one with each task, as
`submit` in a loop does.
"""

from __future__ import annotations

import argparse
import functools
import json
import operator
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from types import CellType, FunctionType
from typing import Any

import distributed
from distributed.protocol import pickle as distributed_pickle

from dask_adaptive_agent.relief import quick_reduce
from dask_adaptive_agent.relief.pickle_hook import HOOK, _code_of_taker
from support.relief_pickling import as_on_scheduler, hooked, in_main, spec

ARGUMENT = pathlib.Path("/data/in/part-000123/file.parquet")

SCRIPT = in_main(
    """
import dataclasses, hashlib, logging, pathlib, re, time

log = logging.getLogger("script")
PATTERN = re.compile(r"part-([0-9]+)")

@dataclasses.dataclass(frozen=True)
class Config:
    root: pathlib.Path = pathlib.Path("/data/in")
    retries: int = 3
    cols: tuple = tuple("abcdefgh")

class Validator:
    def __init__(self, config):
        self.config = config
    def check(self, path):
        return bool(PATTERN.search(str(path))) and path.suffix == ".parquet"
    def digest(self, path):
        return hashlib.md5(str(path).encode()).hexdigest()

def helper(config, path):
    validator = Validator(config)
    return validator.check(path), validator.digest(path)

def script(config, path):
    for i in range(config.retries):
        ok, digest = helper(config, path)
        if ok:
            return path
        log.debug("bad %s %s", path, digest)

def main(options, path):
    out = []
    for i in range(options["retries"]):
        try:
            if path.name.endswith("parquet"):
                out.append((path.name, i))
            break
        except ValueError as error:
            if i == options["retries"] - 1:
                raise RuntimeError(path) from error
            time.sleep(0)
    return out and path

short = lambda path: path
"""
)


def cases() -> dict[str, Any]:
    options = {"root": pathlib.Path("/data"), "retries": 3, "cols": list("abcdefgh")}
    files = [pathlib.Path(f"/data/in/x{i}.parquet") for i in range(2000)]
    return {
        "named": operator.add,
        "named-partial": functools.partial(operator.add, options),
        "lambda": as_on_scheduler(SCRIPT["short"]),
        "main": as_on_scheduler(functools.partial(SCRIPT["main"], options)),
        "script": as_on_scheduler(functools.partial(SCRIPT["script"], SCRIPT["Config"]())),
        "big-partial": functools.partial(operator.add, {"root": options["root"], "files": files}),
    }


def taker() -> Any:
    """What `protocol/core.py` hands over: a function of its code, that nobody will call here."""
    code = _code_of_taker()
    cells = tuple(CellType([]) for _ in code.co_freevars)
    return FunctionType(code, {}, "taker", None, cells)


def microseconds(dumps: Callable[..., Any], tasks: list[Any], take: Any) -> float:
    start = time.thread_time()
    for task in tasks:
        dumps(task, buffer_callback=take)
    return (time.thread_time() - start) / len(tasks) * 1e6


def compared(make: Callable[[], list[Any]], stock: Any, repeat: int) -> list[tuple[float, float]]:
    """Stock and ours, pair by pair."""
    take, ours = taker(), distributed_pickle.dumps
    rows = []
    for _ in range(repeat + 1):
        tasks = make()
        quick_reduce.end()  # stock as it is without us
        theirs = microseconds(stock, tasks, take)
        tasks = make()
        quick_reduce.begin()
        rows.append((theirs, microseconds(ours, tasks, take)))
    return rows[1:]  # the first one warms up


def measured(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    stock = distributed_pickle.dumps
    with hooked():
        for name, function in cases().items():
            n = arguments.tasks // (10 if name in ("script", "big-partial") else 1)
            again = [spec(function, ARGUMENT)] * n

            def fresh(function: Any = function, n: int = n // 5) -> list[Any]:
                return [spec(as_on_scheduler(function), ARGUMENT) for _ in range(n)]

            for kind, make in (("again", lambda again=again: again), ("fresh", fresh)):
                if (name, kind) not in (("big-partial", "fresh"), ("named", "fresh")):
                    yield row(f"{name} {kind}", compared(make, stock, arguments.repeat))
                    HOOK.memo.clear()


def row(case: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    both = [[round(pair[side], 2) for pair in pairs] for side in (0, 1)]
    stock, ours = map(statistics.median, both)
    return {
        "case": f"pickling a task, {case}", "unit": "us", "stock": stock, "ours": ours,
        "spread": both,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    if not arguments.json:
        print(f"distributed {distributed.__version__}: microseconds a task")
        print(f"{'median of each, and of ours less stock':>55}")
    for one in measured(arguments):
        if arguments.json:
            print(json.dumps({"distributed": distributed.__version__, **one}))
        else:
            more = statistics.median(b - a for a, b in zip(*one["spread"]))  # noqa: B905
            figures = (one["stock"], one["ours"], more)
            print(f"{one['case']:<35}" + "".join(f"{figure:>10.2f}" for figure in figures))


if __name__ == "__main__":
    main()
