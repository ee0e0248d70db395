"""The file that `record` writes: whole at each instant, gone on with, and of one cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from dask_adaptive.model import observed
from dask_adaptive.model.observed import ObservedCluster, ObservedWorker, Pin
from dask_adaptive.model.reason import Reason
from dask_adaptive_lab.trace import TraceFile, TraceGroup, hashed, read_trace
from support.worlds import KEY, cluster, pending, worker

HELD = (Pin("shuffle", "ab", "", 60.0), Pin("client", "me", "", 60.0))
W1 = worker("w1", age_s=10.0, pins=HELD, nthreads=2)
STARTS = pending("w2", age_s=10.0)


def seen(*workers: ObservedWorker) -> ObservedCluster:
    demand = observed.Demand((observed.PrefixWork("inc", 1.0, 1, 2, 3),))
    return cluster(workers, demand=demand, wants=(observed.Want(3, 60.0, "me"),))


def record(path: Path, *clusters: ObservedCluster, at: float, redact: bool = False) -> None:
    now = iter(range(int(at), int(at) + 99))
    with TraceFile(path, every_s=1.0, redact=redact, clock=lambda: float(next(now))) as file:
        for each in clusters:
            file.write(each)


def test_a_sample_counts_and_names_nobody(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    record(path, seen(W1, STARTS), at=100)
    (sample,) = read_trace(path.read_text().splitlines()).samples

    assert (("client", 1), ("shuffle", 1)) == sample.pins
    assert (TraceGroup("etl-default", 2, 2, 1, 1, 2),) == sample.groups
    assert () == sample.arrived, "those that are there at first have not just come"
    assert "w1" not in path.read_text()


def test_arrivals_are_measured_from_the_deployment_on() -> None:
    tracer = TraceFile(Path(), every_s=1.0)
    tracer.sample(seen(W1, STARTS), t=0.0)
    sample = tracer.sample(seen(W1, worker("w2", age_s=21.5)), t=1.0)

    assert sample is not None
    assert (("etl-default", 21.5),) == sample.arrived


def test_redacted_names_are_the_same_each_time_and_say_nothing(tmp_path: Path) -> None:
    for n in (1, 2):
        record(tmp_path / f"{n}.jsonl", seen(W1), at=100, redact=True)
    text = (tmp_path / "1.jsonl").read_text()

    assert text == (tmp_path / "2.jsonl").read_text()
    assert hashed("inc") in text
    assert not any(f'"{name}' in text for name in ("etl", "inc", "me"))
    assert f"{hashed('etl')}-default" == read_trace(text.splitlines()).origin.default_group


def test_what_a_scheduler_does_not_say_is_no_sample() -> None:
    silent = observed.ObservedScheduler(problem=Reason.SCHEDULER_UNREACHABLE)
    tracer = TraceFile(Path(), every_s=1.0)

    assert tracer.sample(ObservedCluster(key=KEY, scheduler=silent), t=0.0) is None
    assert tracer.sample(ObservedCluster(key=KEY), t=0.0) is None


def test_a_file_that_is_there_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("# my notes")
    with pytest.raises(FileExistsError), TraceFile(path, every_s=1.0):
        pass

    assert "# my notes" == path.read_text()
