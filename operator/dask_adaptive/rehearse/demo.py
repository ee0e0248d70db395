"""
The demo's own script, in four acts: run by `dask-adaptive rehearse` where no script is named.

It is an ordinary Dask program and runs as `__main__`, so that workers need none of our code. It
pins its worker as the place allows: through the rehearsal's annotations on this machine, with
`kubectl annotate` where DASK_ADAPTIVE_DEMO_NAMESPACE names the namespace of a real cluster.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import dask
from dask import distributed

#: distributed has no types for its client.
Client: TypeAlias = Any

#: Workers at the peak: the policy's maxReplicas.
PEAK = 6

#: Where the cluster is; None: on this machine, in a rehearsal.
NAMESPACE = os.environ.get("DASK_ADAPTIVE_DEMO_NAMESPACE")

#: How long any act may wait for the cluster; a demo that hangs is worse than one that fails.
PATIENCE_S = 180.0


def say(text: str) -> None:
    print(text, flush=True)


def work(_: int, seconds: float) -> int:
    time.sleep(seconds)
    return 1


def names(client: Client) -> list[str]:
    """Names of the workers that are connected now."""
    return sorted(w["name"] for w in client.scheduler_info(n_workers=-1)["workers"].values())


def until(what: str, holds: Callable[[], bool]) -> float:
    """Wait until something holds; returns the seconds it took."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > PATIENCE_S:
            sys.exit(f"gave up after {PATIENCE_S:.0f} s: {what}")
        time.sleep(0.2)
    return time.monotonic() - began


def burst(client: Client) -> None:
    say("Act 1: a burst of 120 tasks of 0.5 s arrives.")
    futures = client.map(work, range(120), seconds=0.5, pure=False, key="burst")
    took = until("six workers", lambda: len(names(client)) >= PEAK)
    say(f"  {PEAK} workers, {took:.1f} s after the load.")
    assert sum(client.gather(futures)) == 120
    say("  All 120 are done.")


def shuffle(client: Client) -> None:
    say("Act 2: a P2P shuffle on three workers, while the other load falls away.")
    chosen = names(client)[:3]
    future = shuffled(client, chosen)
    until("others to leave", lambda: future.done() or len(names(client)) <= 3)
    assert not future.done(), "the shuffle was over before anybody left"
    assert set(chosen) <= set(names(client)), "a worker of the running shuffle left"
    say(f"  Down to {len(names(client))} workers while it runs; its own three are pinned.")
    found = future.result()
    assert (36_000, sum(range(36_000))) == (found["rows"].sum(), found["total"].sum()), found
    say("  Its result is right: 36,000 rows, each in its place, once.")


def shuffled(client: Client, workers: list[str]) -> Any:
    """Start a shuffle whose tasks run on these workers only; a future of rows and sums."""
    import dask.dataframe as dd
    import pandas as pd

    def part(i: int) -> pd.DataFrame:
        time.sleep(12.0 if i else 0.2)  # the first is soon there: the shuffle begins
        x = range(i * 12_000, (i + 1) * 12_000)
        return pd.DataFrame({"x": x, "k": [v % 97 for v in x]})

    def summary(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"rows": [len(frame)], "total": [int(frame["x"].sum())]})

    columns = {"x": pd.Series(dtype="int64"), "k": pd.Series(dtype="int64")}
    found = {"rows": pd.Series(dtype="int64"), "total": pd.Series(dtype="int64")}
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        frame = dd.from_map(part, range(3), meta=pd.DataFrame(columns)).shuffle("k", npartitions=3)
        result = frame.map_partitions(summary, meta=pd.DataFrame(found))
        return client.compute(result, workers=workers, allow_other_workers=False)


def pinned(client: Client) -> None:
    say("Act 3: one idle worker is pinned; the others may leave.")
    keep = names(client)[-1]
    pin(keep, "10m")
    say(f"  pinned: {keep}")
    took = until("all others gone", lambda: names(client) == [keep])
    say(f"  After {took:.1f} s all others have left; {keep} stays:")
    for line in explained(client, keep).splitlines():
        say(f"  {line}")
    pin(keep, None)


def unpinned(client: Client) -> None:
    say("Act 4: the pin is gone.")
    took = until("no workers", lambda: not names(client))
    say(f"  {took:.1f} s later the cluster is at its minimum.")


def explained(client: Client, worker: str) -> str:
    """Why a worker stays: asked as a person would in this place."""
    if NAMESPACE is None:
        answer = client.sync(client.scheduler.adaptive_explain, protocol=1, names=[worker])
        return str(answer["workers"][0]["sentence"])
    return kubectl("get", "dap") + kubectl("dask-adaptive", "explain", pod_of(worker))


def pin(worker: str, duration: str | None) -> None:
    """Pin a worker, or with None take the pin away."""
    if NAMESPACE is None:
        from dask_adaptive.local.annotations import annotations_of_this_rehearsal

        annotations_of_this_rehearsal().set_pin(worker, duration, "the demo's third act")
        return
    annotation = f"dask-adaptive.dev/pin{'-' if duration is None else '=' + duration}"
    say(kubectl("annotate", "--overwrite", "pod", pod_of(worker), annotation).rstrip())


def pod_of(worker: str) -> str:
    """The pod in which a worker runs; the worker has the name of its Deployment."""
    pods = kubectl("get", "pods", "-o", "name", "-l", "dask.org/component=worker", show=False)
    return next(p for p in pods.split() if p.startswith(f"pod/{worker}-")).removeprefix("pod/")


def kubectl(*words: str, show: bool = True) -> str:
    """Run kubectl in the demo's namespace; its output below the command as one would type it."""
    command = ["kubectl", *words, "--namespace", str(NAMESPACE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return f"  $ {' '.join(command)}\n{done.stdout}" if show else done.stdout


def main() -> None:
    # Workers of a cluster may run another patch release of Python; that does not matter here.
    warnings.filterwarnings("ignore", category=distributed.versions.VersionMismatchWarning)
    make_client: Any = distributed.Client
    with make_client() as client:  # the address comes from DASK_SCHEDULER_ADDRESS
        burst(client)
        shuffle(client)
        pinned(client)
        unpinned(client)


if __name__ == "__main__":
    main()
