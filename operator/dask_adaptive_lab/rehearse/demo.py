"""
The demo's own script, in four acts: run by `dask-adaptive rehearse` where no script is named.

It is an ordinary Dask program and runs as `__main__`, so that workers need none of our code. On
Kubernetes it is the same (`make demo-k8s`).
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import dask
from dask import distributed

import dask_adaptive_agent

#: distributed has no types for its client.
Client: TypeAlias = Any

#: Workers at the peak: the policy's maxReplicas.
PEAK = 6

#: Tasks that arrive at once.
BURST = 120

#: The event that lets the shuffle go on.
OTHERS_LEFT = "others left"

#: The longest that an act waits for the cluster; a demo that hangs is worse than one that fails.
PATIENCE_S = 180.0

#: Seconds between two looks at the workers.
LOOK_S = 0.6


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
        time.sleep(LOOK_S)
    return time.monotonic() - began


class Burst:
    """Tasks of half a second: as many as it takes, however slowly workers start."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._futures: list[Any] = []
        self.go_on()

    def go_on(self) -> None:
        """Submit more where most are done."""
        if sum(not future.done() for future in self._futures) < 10 * PEAK:
            self._futures += self._client.map(
                work, range(BURST), seconds=0.5, pure=False, key="burst"
            )

    def until(self, what: str, holds: Callable[[], bool]) -> float:
        """Wait for something while the load goes on."""

        def look() -> bool:
            self.go_on()
            return holds()

        return until(what, look)

    def end(self) -> int:
        """Wait for all of them, and let go of their results; returns how many there were."""
        futures, self._futures = self._futures, []
        assert sum(self._client.gather(futures)) == len(futures)
        return len(futures)


def burst(client: Client) -> Burst:
    say(f"Act 1: a burst of {BURST} tasks of 0.5 s arrives.")
    load = Burst(client)
    took = load.until("six workers", lambda: len(names(client)) >= PEAK)
    say(f"  {PEAK} workers, {took:.1f} s after the load.")
    return load


def shuffle(client: Client, frame: Any, load: Burst) -> tuple[list[str], Any]:
    say("Act 2: a P2P shuffle begins on three workers, and the burst ends.")
    chosen = names(client)[:3]
    # Submitted while everybody is busy: none of the three can be idle, and leave, before that.
    future = client.compute(frame, workers=chosen, allow_other_workers=False)
    load.until("the shuffle's tasks at their workers", lambda: has_other_tasks(client))
    say(f"  All {load.end()} tasks of the burst are done.")
    until("the shuffle to begin", lambda: all(pins_of(client, name) for name in chosen))
    until("others to leave", lambda: len(names(client)) <= 3)
    assert set(chosen) <= set(names(client)), "a worker of the running shuffle left"
    say(f"  Down to {len(names(client))} workers while it runs; its own three are pinned.")
    return chosen, future


def has_other_tasks(client: Client) -> bool:
    """Tells whether workers have tasks that are not of the burst."""
    return any(not str(key).startswith("burst") for w in client.processing().values() for key in w)


def shuffled() -> Any:
    """Build a shuffle that lasts until `OTHERS_LEFT` is set; its result has rows and sums."""
    import dask.dataframe as dd
    import pandas as pd

    def part(i: int) -> pd.DataFrame:
        if i:  # the first is soon there: the shuffle begins
            assert distributed.Event(OTHERS_LEFT).wait(PATIENCE_S)
        x = range(i * 12_000, (i + 1) * 12_000)
        return pd.DataFrame({"x": x, "k": [v % 97 for v in x]})

    def summary(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"rows": [len(frame)], "total": [int(frame["x"].sum())]})

    columns = {"x": pd.Series(dtype="int64"), "k": pd.Series(dtype="int64")}
    found = {"rows": pd.Series(dtype="int64"), "total": pd.Series(dtype="int64")}
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        frame = dd.from_map(part, range(3), meta=pd.DataFrame(columns)).shuffle("k", npartitions=3)
        return frame.map_partitions(summary, meta=pd.DataFrame(found))


def pinned(client: Client, keep: str, future: Any) -> None:
    say("Act 3: one of the three is pinned; then the shuffle ends.")
    with dask_adaptive_agent.pinned(keep, reason="the demo's third act", client=client):
        until("the pin", lambda: any(p["source"] != "shuffle" for p in pins_of(client, keep)))
        say(f"  pinned: {keep}")
        distributed.Event(OTHERS_LEFT, client=client).set()
        found = future.result()
        future.release()  # the last worker could not leave with a result that is wanted
        assert (36_000, sum(range(36_000))) == (found["rows"].sum(), found["total"].sum()), found
        say("  Its result is right: all 36,000 rows, once each.")
        took = until("all others gone", lambda: names(client) == [keep])
        held = [f"{pin['source']} ({pin['reason']})" for pin in pins_of(client, keep)]
        say(f"  After {took:.1f} s the others have left; {keep} stays.")
        say(f"  It is pinned by {', '.join(held)}.")
        say("Act 4: the pin is removed.")
    took = until("no workers", lambda: not names(client))
    say(f"  {took:.1f} s later the cluster is at its minimum.")


def pins_of(client: Client, worker: str) -> list[Any]:
    """Pins that hold a worker, as its scheduler's agent says."""
    answer = client.sync(client.scheduler.adaptive_observe, protocol=1)
    slots = dict(zip(answer["introduced"]["name"], answer["introduced"]["slot"], strict=True))
    return [pin for pin in answer["pins"] if slots.get(worker) in pin["slots"]]


def main() -> None:
    # Workers of a cluster may run another patch release of Python; that does not matter here.
    warnings.filterwarnings("ignore", category=distributed.versions.VersionMismatchWarning)
    make_client: Any = distributed.Client
    frame = shuffled()  # first: a cold import of pandas takes longer than idle workers stay
    with make_client() as client:  # the address comes from DASK_SCHEDULER_ADDRESS
        load = burst(client)
        chosen, future = shuffle(client, frame, load)
        pinned(client, chosen[-1], future)


if __name__ == "__main__":
    main()
