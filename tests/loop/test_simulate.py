"""What the model says of a recorded rehearsal, next to what really happened."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.model.policy import parse_policy
from dask_adaptive_lab.rehearse import rehearsal
from dask_adaptive_lab.simulate import replay as simulation
from dask_adaptive_lab.simulate.replay import replay
from dask_adaptive_lab.trace import Trace, TraceFile, read_trace
from support.stage import Stage, Start
from support.tasks import slow


async def recorded(s: Stage, path: Path) -> Trace:
    """Two lots of work with a pause between them, the second hanging on the first's kind."""
    file = TraceFile(path, every_s=rehearsal.PASS_S)

    def saw(result: PassResult) -> None:
        Stage.saw(s, result)
        file.write(result.observed)

    with file:
        s.saw = saw
        first = s.client.map(slow, range(40), seconds=0.4, pure=False)
        await s.client.gather(first)
        del first
        await asyncio.sleep(7)  # longer than workers take: nobody waits for a third lot
        second = s.client.map(slow, range(24), seconds=0.5, pure=False)
        last = s.client.submit(len, second)
        assert 24 == await last
        del second, last
        await s.until(lambda: not s.names(), "scaled to zero")
        del s.saw  # passes go on
    return read_trace(path.read_text().splitlines())


async def test_the_model_tells_roughly_what_happens(stage: Start, tmp_path: Path) -> None:
    """
    Roughly: a machine under load starts processes slowly, and not always as slowly. What is
    compared are worker-seconds and the peak, which is what people decide by.
    """
    s = await stage(spec={"maxReplicas": 4, "idleTimeout": "2s"})
    trace = await recorded(s, tmp_path / "trace.jsonl")
    run = replay(trace, parse_policy(s.spec))
    real, model = simulation.recorded(trace).figures, run.figures

    assert (65, 0, 0) == (run.finished, model.redone, model.unfinished)
    assert abs(real.peak - model.peak) <= 1
    assert real.worker_s / 2 <= model.worker_s <= real.worker_s * 2
    assert model.makespan_s == pytest.approx(real.makespan_s, rel=0.5, abs=5)
    assert 0 == run.points[-1].present

    # And a smaller maximum is foretold: 28 thread-seconds on one thread, but for what the second
    # lot overlaps with the first.
    less = replay(trace, dataclasses.replace(parse_policy(s.spec), max_replicas=1)).figures
    assert 1 == less.peak < model.peak
    assert less.makespan_s >= 27 > model.makespan_s - 20
