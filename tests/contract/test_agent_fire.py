"""
Drains under fire: whoever leaves, and however, no result is lost or wrong, and nothing hangs.

For a longer run, which stops at the first failure, and in any case says what it has seen:
`FIRE_SECONDS=3600 FIRE_SEED=x pytest tests/contract/test_agent_fire.py -k hour`.
"""

from __future__ import annotations

import logging
import os
import random
import time
import traceback
from typing import Any

import pytest
from distributed.utils_test import gen_cluster

from dask_adaptive_agent.agent import install
from support.agent_work import count_runs, tally
from support.fire import EVERYTHING, HARMLESS, RESTARTS_SHUFFLES, Fire, Graph, nothing_breaks

#: A task is not given up however often its worker is killed, nor a connection on a busy machine.
CONFIG = {
    "distributed.scheduler.allowed-failures": 100_000,
    "distributed.comm.timeouts.connect": "30s",
}
#: Who connects or sends to a worker that has been killed gives up within a round. By default a
#: worker that closes tries for minutes to send its part of a shuffle to one that is gone.
AMONG_THE_DEAD = {
    **CONFIG,
    "distributed.comm.timeouts.connect": "10s",
    "distributed.p2p.comm.retry.count": 2,
    "distributed.p2p.comm.retry.delay.max": "1s",
}
#: Functions of distributed that fail by themselves, when a worker has just been removed.
UPSTREAMS_OWN = {
    "handle_request_refresh_who_has",  # answers a worker that `remove_worker(close=False)` forgot
    "plugin_remove",  # of a worker that has registered, and has not set up its plugins yet
    "add_to_long_running",  # a late word of a removed worker, whose task runs long elsewhere by now
    "_prepare_args_for_execution",  # of a task that was taken back as it was about to start
    "teardown",  # of the shuffles' plugin, of a worker that two close at once (2024.2.1)
    "broadcast",  # to the nanny of a worker that has just been removed
}


def known(record: logging.LogRecord) -> bool:
    """What a release of distributed gets wrong by itself."""
    error: Any = record.exc_info[1] if record.exc_info else None
    # A task is given to a worker that is about to fetch its result (before 2025, at least): the
    # worker cannot say so (`log_event`), and connects anew.
    said: Any = getattr(error, "__context__", None)
    if type(getattr(said, "__cause__", None)).__name__ == "RecommendationsConflict":
        return True
    frames = traceback.extract_tb(error.__traceback__) if error else []
    if not frames:
        return False
    # It is asked for a shuffle that has just lost a participant, and forgotten.
    is_late = isinstance(error, KeyError) and frames[-1].filename.endswith("_scheduler_plugin.py")
    names = [frame.name for frame in frames if not frame.name.startswith("<")]
    return is_late or names[-1] in UPSTREAMS_OWN


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(2, 6))]
)
def test_nothing_is_run_twice_whatever_we_do(seed: int) -> None:
    @gen_cluster(client=True, nthreads=[], timeout=150, config=CONFIG)
    async def run(c, s) -> None:
        dice = random.Random(f"harmless {seed}")
        agent = install(s)
        count_runs(s)
        graph = Graph(dice, 200, shuffles=3)
        async with Fire(c, s, agent, dice) as fire:
            for _ in range(4):
                await fire.joins()
            await graph.submit(c, list(s.workers))
            await fire.burn(HARMLESS, 20, graph.futures)
            await fire.put_out()
            await graph.check(fire.score)
            assert not fire.score.given_up

            tasks, runs = tally(s, "tasks", "runs")
            assert 200 < tasks == runs
            assert (0, 0) == tally(s, "repeated", "interrupted")
            assert (3, 1) == tally(s, "shuffles", "max_shuffle_run")
            assert 3 < len(fire.happened)

    with nothing_breaks(known):
        run()


def burn_everything(seed: str, seconds: float) -> str:
    """What happened, in a line."""
    said: list[str] = []

    @gen_cluster(client=True, nthreads=[], timeout=seconds + 240, config=AMONG_THE_DEAD)
    async def run(c, s) -> None:
        end = time.monotonic() + seconds
        dice = random.Random(seed)
        agent = install(s)
        count_runs(s)
        async with Fire(c, s, agent, dice) as fire:
            try:
                while time.monotonic() < end:
                    dice.seed(f"{seed}, round {fire.score.rounds}")
                    for _ in range(4 - len(fire.workers)):
                        await fire.joins()
                    shuffles = dice.choice([0, 1, 2]) if RESTARTS_SHUFFLES else 0
                    graph = Graph(dice, dice.choice([40, 120]), shuffles)
                    await graph.submit(c, list(s.workers))
                    await fire.burn(EVERYTHING, 4, graph.futures)
                    await fire.put_out()
                    await graph.check(fire.score)
            finally:
                said.append(f"seed {seed}: {fire.summary()}")

    try:
        with nothing_breaks(known):
            run()
    finally:
        print(*said)
    return said[0]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(2, 11))]
)
def test_no_result_is_lost_or_wrong_whatever_happens(seed: int) -> None:
    burn_everything(str(seed), 4)


@pytest.mark.skipif("FIRE_SECONDS" not in os.environ, reason="FIRE_SECONDS says for how long")
@pytest.mark.timeout(0)
def test_for_an_hour(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = float(os.environ["FIRE_SECONDS"])
    seed = os.environ.get("FIRE_SEED", str(time.time_ns()))
    with capsys.disabled():  # its summary is to be seen also if nothing fails
        burn_everything(seed, seconds)
