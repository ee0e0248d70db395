"""What holds for every relief: it comes where it is needed, leaves, and respects other packages."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import distributed
import pytest
from distributed import Scheduler
from distributed.utils_test import gen_cluster
from packaging.version import Version

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.loading.attach import install, uninstall
from dask_adaptive_agent.patching import Mismatch, Target, _owner, _Place
from support.patched import clear_shared

RELEASE = Version(distributed.__version__)
#: Whether this release of distributed needs it.
NEEDED = {
    "prefixes": RELEASE < Version("2024.6.0"),
    "idle": RELEASE >= Version("2023.5.1"),
    "pickling": RELEASE >= Version("2023.8.1"),
    "host": RELEASE < Version("2025.4.0"),
    "identity": True,
    "clientInfo": RELEASE >= Version("2025.4.0"),
}
TARGETS = {
    one: name for name in NEEDED for one in patching.TARGETS if one.way_out == patching.relief(name)
}


@pytest.fixture(autouse=True)
def _nobody_holds() -> Iterator[None]:
    """What other tests have left, and this one."""
    clear_shared()
    yield
    clear_shared()


def place_of(target: Target, s: Any) -> Any:
    try:
        place = _Place(_owner(target, s), target.name)
    except Mismatch:
        pytest.skip("there is no such place")
    if place.call() is None or (isinstance(place.owner, type) and target.name == "__len__"):
        pytest.skip("nothing is there, or not what an instance calls")
    return place


def another(place: Any) -> Any:
    """What another package would put there, over what is there now."""
    below = place.read()
    if isinstance(below, property):
        return property(lambda self: below.fget(self))
    return lambda *args, **kwargs: below(*args, **kwargs)


def states(agent: Any) -> dict[str, str]:
    return {row["name"]: row["state"] for row in agent.reliefs.rows()}


@gen_cluster(nthreads=[("127.0.0.1", 1)])
async def test_it_is_applied_where_it_is_needed(s: Any, a: Any) -> None:
    agent = install(s)
    in_force = agent.reliefs.in_force()

    expected = {n: wire.R_ACTIVE if is_ else wire.R_NOT_NEEDED for n, is_ in NEEDED.items()}
    assert expected == states(agent)
    assert [""] * sum(NEEDED.values()) == [
        row["message"] for row in agent.reliefs.rows() if row["state"] == wire.R_ACTIVE
    ]
    assert {name for name, is_ in NEEDED.items() if is_} == {
        name for target, name in TARGETS.items() if str(target) in in_force
    }
    assert all(in_force.values())
    uninstall(s)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@gen_cluster(nthreads=[])
async def test_what_another_package_has_put_over_it_stays(s: Any, target: Target) -> None:
    place = place_of(target, s)
    stock = place.read()
    agent = install(s)
    is_ours = place.read() is not stock
    theirs = another(place)
    place.write(theirs)
    try:
        assert is_ours != agent.reliefs.in_force().get(str(target), True)
        uninstall(s)

        assert theirs is place.read()
    finally:
        place.write(stock)


@pytest.mark.parametrize("target", [one for one in TARGETS if one.guard is not None], ids=str)
@gen_cluster(nthreads=[])
async def test_another_packages_code_is_not_replaced(s: Any, target: Target) -> None:
    place = place_of(target, s)
    stock, theirs = place.read(), another(place)
    place.write(theirs)
    try:
        agent = install(s)

        assert theirs is place.read()
        name = TARGETS[target]
        assert NEEDED[name] == (states(agent)[name] == wire.R_FAILED)
        uninstall(s)
    finally:
        place.write(stock)


@pytest.mark.parametrize(
    "target",
    [one for one in TARGETS if not one.owner.startswith("Scheduler.")],
    ids=str,
)
@gen_cluster(nthreads=[])
async def test_what_a_process_shares_goes_with_the_last_scheduler(s: Any, target: Target) -> None:
    place = place_of(target, s)
    stock = place.read()
    assert isinstance(place.owner, (type, ModuleType))
    install(s)
    async with Scheduler(port=0, dashboard=False) as other:
        install(other)
        replaced = place.read()
        uninstall(s)
        assert replaced is place.read()
        uninstall(other)

    assert stock is place.read()
