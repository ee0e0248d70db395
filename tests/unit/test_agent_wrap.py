"""Methods that are replaced for a while, by several who come and go in any order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from dask_adaptive_agent.wrap import Wrap


class Owner:
    def name(self) -> str:
        return "stock"


def adding(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda stock: lambda: f"{text} {stock()}"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_in_whatever_order_they_are_undone_nothing_is_left(order: tuple[int, ...]) -> None:
    owner = Owner()
    layers = [Wrap(owner, "name", adding(text)) for text in "abc"]
    assert "c b a stock" == owner.name()

    left = dict(enumerate("abc"))
    for number in order:
        layers[number].undo()
        del left[number]
        assert " ".join([*reversed(left.values()), "stock"]) == owner.name()

    assert {} == owner.__dict__


def test_what_somebody_else_has_put_over_it_stays() -> None:
    owner: Any = Owner()
    ours = Wrap(owner, "name", adding("ours"))
    stock, owner.name = owner.name, lambda: f"theirs {stock()}"
    ours.undo()

    assert "theirs stock" == owner.name()
