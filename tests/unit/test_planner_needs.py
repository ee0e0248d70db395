"""Tasks that only some workers may run: which group is asked for them, and what is said of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from dask_adaptive.model.demand import Demand, Need
from dask_adaptive.model.observed import ObservedGroup
from dask_adaptive.planner.needs import Bound, bound_workers, described, is_strict
from dask_adaptive.planner.supply import Supply
from support.worlds import cluster, pending, worker

GPU = "etl-gpu"
ONE = Supply(
    name=GPU, maximum=1000, priority=0, threads=4.0, connected=0, busy=0, pending=(),
    arrival_s=10.0,
)  # fmt: skip
G = worker("g", group=GPU, dask_names=("g-0", "g-1"))
H = worker("h", group=GPU)
NEED = Need(tasks=1, stuck=1, seconds=1000.0, resources={"GPU": 1.0})


def need(tasks: int = 1, **changes: Any) -> Need:
    return dataclasses.replace(NEED, tasks=tasks, **{"seconds": 1000.0 * tasks, **changes})


def bound(
    needs: Sequence[Need],
    *,
    resources: tuple[tuple[str, float], ...] = (("GPU", 1.0), ("FPGA", 4.0)),
    duration_s: float = 5.0,
    **changes: Any,
) -> Bound:
    """Of a group that is scaled, beside the default one that is not."""
    group = ObservedGroup(GPU, 0, (G, H, pending("p", group=GPU)), resources=resources)
    seen = cluster([worker("a")], others=[group])
    every = [dataclasses.replace(ONE, **changes)]
    return bound_workers(seen, every, Demand(needs=tuple(needs)), duration_s)


NAMED: dict[str, Any] = {"resources": {}, "workers": ("g",)}
BOTH = {**NAMED, "workers": ("g", "h-0", "h")}


@pytest.mark.parametrize(
    ("needs", "changes", "expected"),
    [
        pytest.param([], {}, 0, id="none"),
        pytest.param([need(0)], {}, 0, id="all-wait-for-others"),
        pytest.param([need(1)], {}, 1, id="one"),
        pytest.param([need(6)], {}, 6, id="one-at-once"),
        pytest.param([need(6, resources={"FPGA": 1.0})], {}, 2, id="four-at-once"),
        pytest.param([need(6, resources={"FPGA": 2.0})], {}, 3, id="two-at-once"),
        pytest.param([need(6, resources={"FPGA": 1.0})], {"threads": 2.5}, 3, id="two-threads"),
        pytest.param([need(6, resources={"FPGA": 1.0, "X": 0.0})], {}, 2, id="a-claim-of-none"),
        pytest.param([need(6, resources={"FPGA": 1.0, "GPU": 1.0})], {}, 6, id="the-scarcer"),
        pytest.param([need(3), need(3)], {}, 6, id="both"),
        pytest.param([need(3), need(3)], {"maximum": 4}, 4, id="both-up-to-the-maximum"),
        pytest.param([need(4), need(3)], {"maximum": 4}, 4, id="the-first-takes-all"),
        pytest.param([need(3, seconds=0.0)], {"duration_s": 0.5}, 1, id="takes-no-time"),
        pytest.param([need(5, able=("a", "x", "g-0"))], {}, 3, id="others-may-run-two"),
        pytest.param([need(6, resources={}, workers=(GPU,))], {}, 2, id="the-group-is-named"),
        pytest.param([need(6, **NAMED, loose=True)], {}, 0, id="a-wish"),
        pytest.param([need(3, **NAMED)], {"connected": 2}, 1, id="a-worker-is-named"),
        pytest.param([need(3, **NAMED)], {"connected": 0}, 0, id="which-has-yet-to-come"),
        pytest.param([need(9, **{**NAMED, "workers": ("g-1", "g-0")})], {"connected": 2}, 1,
                     id="both-its-processes-are"),
        pytest.param([need(9, **BOTH)], {"connected": 1, "pending": (5.0, 6.0)}, 1,
                     id="no-other-comes-for-it"),
        pytest.param([need(2, **{**BOTH, "resources": {"GPU": 1.0}})], {"connected": 2}, 2,
                     id="one-at-once-on-each-that-is-named"),
        pytest.param([need(2, **{**BOTH, "resources": {"GPU": 1.0}}, loose=True)], {}, 2,
                     id="one-at-once-on-others"),
        pytest.param([need(3, resources={}, hosts=("h",))], {"connected": 2}, 1, id="a-host"),
    ],
)  # fmt: skip
def test_workers_for_tasks_that_only_they_may_run(
    needs: list[Need], changes: dict[str, Any], expected: int
) -> None:
    found = bound(needs, **changes)

    assert ({GPU: expected}, "") == (found.workers, found.nobody)


def test_each_group_is_told_for_what_it_is_needed() -> None:
    needs = [need(n, resources={"FPGA": float(n)}) for n in (1, 2, 3, 4)]
    said = "1 tasks need FPGA=1, 2 tasks need FPGA=2, 3 tasks need FPGA=3"

    assert Bound({GPU: 9}, {GPU: said}) == bound(needs)


def test_a_group_that_is_not_needed_is_told_nothing() -> None:
    assert Bound({GPU: 0}) == bound([need(1)], maximum=0)


def test_what_nobody_has_is_told() -> None:
    needs = [need(int(n >= 0), resources={f"X{n}": 1.0}) for n in range(-1, 4)]
    said = "; ".join(
        f"1 tasks need X{n}=1, which no worker of a group that is scaled has" for n in range(3)
    )

    assert Bound({GPU: 0}, {}, said) == bound(needs)


def test_what_others_may_run_is_nobodys_loss() -> None:
    assert Bound({GPU: 0}) == bound([need(1, resources={"X": 1.0}, able=("a",))])


def test_resources_are_known_from_those_that_run_such_tasks() -> None:
    claims = need(3, resources={"X": 1.0}, able=("g-1",))

    assert {GPU: 3} == bound([claims], connected=2).workers


def test_a_group_that_is_gone_serves_nobody() -> None:
    every = [ONE, dataclasses.replace(ONE, name="gone")]
    group = ObservedGroup(GPU, 0, resources=(("GPU", 1.0),))
    found = bound_workers(cluster([], others=[group]), every, Demand(needs=(need(2),)), 5.0)

    assert {GPU: 2, "gone": 0} == found.workers


@pytest.mark.parametrize(
    ("changes", "words", "strict"),
    [
        pytest.param({"resources": {"GPU": 1.0}}, "GPU=1", True, id="a-resource"),
        pytest.param({"resources": {"b": 2.5, "a": 1.0}}, "a=1 and b=2.5", True, id="two"),
        pytest.param({"workers": ("w",)}, "one of w", True, id="a-worker"),
        pytest.param({"workers": ("w",), "hosts": ("h",)}, "one of w, h", True, id="and-a-host"),
        pytest.param({"hosts": ("h",)}, "one of h", True, id="a-host"),
        pytest.param({"workers": tuple("wxy")}, "one of w, x, y", True, id="three"),
        pytest.param({"workers": tuple("wxyz")}, "one of w, x, y, …", True, id="more"),
        pytest.param({"workers": ("w",), "loose": True}, "", False, id="a-wish"),
        pytest.param({"resources": {"GPU": 1.0}, "workers": ("w",)}, "GPU=1 and one of w", True,
                     id="both"),
        pytest.param({"resources": {"GPU": 1.0}, "workers": ("w",), "loose": True}, "GPU=1", True,
                     id="a-resource-and-a-wish"),
        pytest.param({}, "", False, id="nothing"),
    ],
)  # fmt: skip
def test_a_need_in_words(changes: dict[str, Any], words: str, strict: bool) -> None:
    one = dataclasses.replace(NEED, **{"resources": {}, **changes})

    assert (words, strict) == (described(one), is_strict(one))
