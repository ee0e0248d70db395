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
import operator
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from distributed.protocol import pickle as distributed_pickle
from measuring import Row, options, show_sides, sides

try:
    from distributed.worker import execute_task
except ImportError:
    execute_task = None

from dask_adaptive_agent.relief.pickling import PICKLES, TASK
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
        "fused": fused,
    }


def fused(*_: Any) -> None:
    """Stands for a task of a data frame: columns taken, a function applied, a result put in."""


def task_of(function: Any) -> Any:
    if function is not fused:
        return spec(function, ARGUMENT)
    apply = as_on_scheduler(SCRIPT["short"])
    if TASK is None:
        calls = (max, (apply, (operator.getitem, {"x": 1}, "x")), 0)
        return (execute_task, (calls,), {})
    from dask._task_spec import TaskRef

    first = TASK("a", operator.getitem, {"x": 1}, "x")
    rest = [TASK("b", apply, TaskRef("a")), TASK("c", max, TaskRef("b"), 0)]
    return TASK.fuse(first, *rest)


def microseconds(dumps: Callable[..., Any], tasks: list[Any]) -> float:
    buffers: list[Any] = []
    start = time.thread_time()
    for task in tasks:
        dumps(task, buffer_callback=buffers.append)
    return (time.thread_time() - start) / len(tasks) * 1e6


def compared(name: str, make: Callable[[], list[Any]], stock: Any, repeat: int) -> Row:
    ours = distributed_pickle.dumps
    turns = [(microseconds(stock, make()), microseconds(ours, make())) for _ in range(repeat + 1)][
        1:
    ]  # the first one warms up
    return sides(f"pickling a task, {name}", "us", *zip(*turns, strict=True))


def measured(arguments: argparse.Namespace) -> Iterator[Row]:
    stock = distributed_pickle.dumps
    with hooked():
        for name, function in cases().items():
            n = arguments.tasks // (10 if name in ("script", "big-partial") else 1)
            again = [task_of(function)] * n

            def fresh(function: Any = function, n: int = n // 5) -> list[Any]:
                return [task_of(as_on_scheduler(function)) for _ in range(n)]

            for kind, make in (("again", lambda again=again: again), ("fresh", fresh)):
                if (name, kind) not in (("big-partial", "fresh"), ("named", "fresh")):
                    yield compared(f"{name} {kind}", make, stock, arguments.repeat)
                    PICKLES.cache.clear()


if __name__ == "__main__":
    given = options(__doc__, tasks=1000, repeat=9)
    show_sides(list(measured(given)), given)
