"""
What the agent costs a scheduler for each task: microseconds, with and without it.

    PYTHONPATH=operator:tests python tests/bench/bench_agent_hooks.py [--json]

Handlers are driven directly, with no sockets: released, waiting, processing, task-finished,
memory, forgotten. Variants take turns, so that a slow minute of the machine hits them all.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import inspect
import json
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import distributed
from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import ClientState

from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install, uninstall
from support.agent_fakes import clear_workers, fake_worker


class Silent:
    """Stands for a connection."""

    def send(self, *messages: Any) -> None:
        pass

    def closed(self) -> bool:
        return False

    def abort(self) -> None:
        pass


class Empty(SchedulerPlugin):
    name = "empty"


def spec() -> Any:
    """The body of a task, in whatever shape this release has for one."""
    try:
        from dask._task_spec import Task
    except ImportError:
        names = inspect.signature(Scheduler.send_task_to_worker).parameters
        is_old = distributed.__version__ < "2023.9" and bool(names)
        return {"function": b"", "args": b""} if is_old else (len, ((),), {})
    return Task("k", len, ())


def prepare(s: Any) -> None:
    for callback in s.periodic_callbacks.values():
        callback.stop()
    for i in range(10):
        ws = fake_worker(s, i)
        s.stream_comms[ws.address] = Silent()
        s.check_idle_saturated(ws)
        for plugin in list(s.plugins.values()):
            plugin.add_worker(s, ws.address)
    s.clients["c"] = ClientState("c")
    s.client_comms["c"] = Silent()


def tasks(s: Any, n: int, generation: int, body: Any) -> list[Any]:
    client = s.clients["c"]
    out = []
    for i in range(n):
        ts = s.new_task(f"inc-{generation}-{i}", body, "released")
        ts.priority = (0, generation, i)
        if getattr(ts, "who_wants", None) is not None:
            ts.who_wants.add(client)
        else:
            ts.who_wants = {client}
        client.wants_what.add(ts)
        out.append(ts)
    return out


def drive(s: Any, n: int, generation: int, body: Any) -> float:
    """Microseconds of CPU a task, from waiting to forgotten."""
    todo = tasks(s, n, generation, body)
    finished = s.stream_handlers["task-finished"]
    report = {"nbytes": 28, "type": b"", "typename": "int", "metadata": {}, "thread": 1}
    report["startstops"] = ({"action": "compute", "start": 1.0, "stop": 1.001},)
    gc.collect()
    gc.disable()
    start = time.process_time()
    for ts in todo:
        s.transitions({ts.key: "waiting"}, "go")
        run = {"run_id": ts.run_id} if hasattr(ts, "run_id") else {}
        finished(
            key=ts.key, worker=ts.processing_on.address, stimulus_id="done", status="OK",
            **report, **run,
        )  # fmt: skip
        s.client_releases_keys(keys=[ts.key], client="c", stimulus_id="release")
    seconds = time.process_time() - start
    gc.enable()
    assert not s.tasks
    return seconds / n * 1e6


def become(s: Any, variant: str) -> None:
    uninstall(s)
    s.plugins.pop("empty", None)
    if variant == "an empty plugin":
        s.add_plugin(Empty())
    elif variant != "stock":
        install(s)
        if variant == "agent and tally":
            s.handlers[wire.CONFIGURE](tally=True)


def alternated(
    s: Any, variants: Iterable[str], become: Callable[[Any, str], None], arguments: Any
) -> dict[str, list[float]]:
    """Microseconds a task, by variant: in turns, so that a slow moment is slow for all of them."""
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    body = spec()
    drive(s, arguments.tasks, -1, body)
    for generation in range(arguments.repeat):
        for i, variant in enumerate(times):
            become(s, variant)
            times[variant].append(drive(s, arguments.tasks, generation * 10 + i, body))
    become(s, "stock")
    return times


def clear(s: Any) -> None:
    """Forget the workers and clients that are none, so that the scheduler can close."""
    clear_workers(s)
    s.clients.clear()
    s.client_comms.clear()
    s.stream_comms.clear()


async def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    variants = ("stock", "an empty plugin", "agent", "agent and tally")
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s:
        prepare(s)
        times = alternated(s, variants, become, arguments)
        clear(s)
    least, median = min(times["stock"]), statistics.median(times["stock"])
    return [
        {
            "variant": variant,
            "min_us": round(min(seen), 2),
            "median_us": round(statistics.median(seen), 2),
            "max_us": round(max(seen), 2),
            "over_min_us": round(min(seen) - least, 2),
            "over_median_us": round(statistics.median(seen) - median, 2),
        }
        for variant, seen in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(run(arguments))
    if arguments.json:
        print(json.dumps({"distributed": distributed.__version__, "rows": rows}))
        return
    print(f"distributed {distributed.__version__}, us a task")
    print("{:<18}".format("") + "".join(f"{key:>16}" for key in list(rows[0])[1:]))
    for row in rows:
        print(f"{row['variant']:<18}" + "".join(f"{v:>16.2f}" for v in list(row.values())[1:]))


if __name__ == "__main__":
    main()
