"""Upstream's code that is replaced for a while, by several who come and go in any order."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dask_adaptive_agent.patching import Mismatch, Patches, Releases, Target
from support.agent_cluster import in_force

METHOD = Target("Scheduler", "name")
STREAM = Target("Scheduler.stream_handlers", "report")
MODULE = Target("stand_in_for_upstream", "function")
CLASS = Target("stand_in_for_upstream:Class", "prop")


@pytest.mark.parametrize(
    ("releases", "within", "outside", "words"),
    [
        (Releases(), ["2023.5.0", "2026.8.0"], [], "all"),
        (Releases(since="2024.2.0"), ["2024.2.0", "2024.10.0"], ["2024.1.9"], "2024.2.0 and later"),
        (Releases(before="2024.10.0"), ["2024.9.1"], ["2024.10.0+3.gabc123"], "before 2024.10.0"),
        (
            Releases("2025.4.0", "2026.7.0"), ["2026.6.0"], ["2025.3.0", "2026.7.0"],
            "2025.4.0 and later, before 2026.7.0",
        ),
    ],
)  # fmt: skip
def test_releases(releases: Releases, within: list[str], outside: list[str], words: str) -> None:
    assert all(one in releases for one in within)
    assert not any(one in releases for one in outside)
    assert words == str(releases)


class Owner:
    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.stream_handlers: dict[str, Any] = {"report": self.report}

    def name(self) -> str:
        return "stock"

    def report(self, **message: Any) -> None:
        self.heard.append(("stock", message["n"]))


@pytest.fixture
def owner() -> Any:
    return Owner()


@pytest.fixture
def patches(owner: Any) -> Patches:
    return Patches(owner)


def adding(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda stock: lambda: f"{text} {stock()}"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_in_whatever_order_they_are_removed_nothing_is_left(
    owner: Any, patches: Patches, order: tuple[int, ...]
) -> None:
    before = dict(vars(owner))
    hooks = [patches.put(METHOD, adding(text)) for text in "abc"]
    assert "c b a stock" == owner.name()

    left = dict(enumerate("abc"))
    for number in order:
        hooks[number].remove()
        del left[number]
        assert " ".join([*reversed(left.values()), "stock"]) == owner.name()

    assert before == vars(owner)
    assert {} == in_force(patches)


def test_what_somebody_else_has_put_over_it_stays(owner: Any, patches: Patches) -> None:
    patch = patches.put(METHOD, adding("ours"))
    stock, owner.name = owner.name, lambda: f"theirs {stock()}"
    patch.remove()

    assert "theirs stock" == owner.name()


def test_a_layer_goes_once_whoever_lay_over_it_has_gone(owner: Any, patches: Patches) -> None:
    patch = patches.put(METHOD, adding("ours"))
    stock = owner.name
    owner.name = lambda: f"theirs {stock()}"
    patch.remove()
    owner.name = stock

    assert "stock" == owner.name()
    assert "name" not in vars(owner)


def test_hooks_below_somebodys_wrapper_come_and_go_in_the_same_layer(
    owner: Any, patches: Patches
) -> None:
    patches.put(METHOD, adding("a"))
    stock = owner.name

    def theirs() -> str:
        return f"theirs {stock()}"

    theirs.__wrapped__ = stock  # type: ignore[attr-defined]
    owner.name = theirs
    for _ in range(3):
        patches.close()
        assert "theirs stock" == owner.name()
        again = patches.put(METHOD, adding("b"))
        assert again.is_called
        assert "theirs b stock" == owner.name()


def test_calls_that_somebody_keeps_from_us_are_found(owner: Any, patches: Patches) -> None:
    patch = patches.put(METHOD, adding("ours"))
    owner.name = lambda: "theirs alone"

    assert not patch.is_called
    assert {"Scheduler.name": False} == in_force(patches)


def test_listeners_hear_a_message_before_the_stock_handler_and_may_change_it(
    owner: Any, patches: Patches
) -> None:
    before = owner.stream_handlers["report"]
    patches.listen(STREAM, lambda message: owner.heard.append(("second", message["n"])))
    patches.listen(STREAM, lambda message: message.update(n=message["n"] + 1))
    owner.stream_handlers["report"](n=1)
    assert [("second", 2), ("stock", 2)] == owner.heard

    patches.close()
    assert before == owner.stream_handlers["report"]


def test_a_listener_that_raises_does_not_keep_a_message_from_the_scheduler(
    owner: Any, patches: Patches
) -> None:
    patches.listen(STREAM, lambda message: 1 // 0)
    owner.stream_handlers["report"](n=1)

    assert [("stock", 1)] == owner.heard


def test_where_there_is_nothing_to_replace_nothing_is_put(owner: Any, patches: Patches) -> None:
    for owner_name in ("Scheduler", "Scheduler.handlers", "extensions.x", "no_such_module"):
        with pytest.raises(Mismatch):
            patches.put(Target(owner_name, "absent"), adding("ours"))

    assert {} == in_force(patches)


def test_a_guard_that_fails_keeps_us_out(owner: Any, patches: Patches) -> None:
    def guard(scheduler: Any, stock: Any) -> None:
        assert (owner, "stock") == (scheduler, stock())
        raise Mismatch("not as known")

    with pytest.raises(Mismatch, match="not as known"):
        patches.put(Target("Scheduler", "name", guard=guard), adding("ours"))

    assert "name" not in vars(owner)


def test_a_wrap_that_raises_leaves_nothing_behind(owner: Any, patches: Patches) -> None:
    with pytest.raises(ZeroDivisionError):
        patches.put(METHOD, lambda stock: 1 // 0)

    assert "name" not in vars(owner)
    assert {} == in_force(patches)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Class:
        prop = property(lambda self: "stock")

    module: Any = types.ModuleType("stand_in_for_upstream")
    module.function, module.Class = lambda: "stock", Class
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_what_a_process_shares_is_put_back_by_the_last_who_holds_it(module: Any) -> None:
    before = dict(vars(module))
    one, other = Patches(SimpleNamespace()), Patches(SimpleNamespace())  # type: ignore[arg-type]
    for patches in (one, other):
        patches.put(MODULE, adding("ours"))
    assert "ours stock" == module.function()

    one.close()
    assert "ours stock" == module.function()
    other.close()
    assert before == vars(module)


def test_a_property_of_a_class_is_replaced_and_put_back(module: Any, patches: Patches) -> None:
    before = vars(module.Class)["prop"]
    patches.put(CLASS, lambda stock: property(lambda self: "ours " + stock.fget(self)))
    assert "ours stock" == module.Class().prop

    patches.close()
    assert before is vars(module.Class)["prop"]
