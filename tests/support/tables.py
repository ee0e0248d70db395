"""Tables of cases for a test: a case a line, with its name where the values do not say it."""

from __future__ import annotations

from typing import Any

import pytest


def table(names: str, /, *rows: Any, **cases: Any) -> pytest.MarkDecorator:
    """
    `parametrize` by rows, or by cases with their names: `no_work=([], 0)` is the case "no-work".

    Where there is but one name, a case is its value.
    """
    is_one = "," not in names
    named = (
        pytest.param(*((values,) if is_one else values), id=name.replace("_", "-"))
        for name, values in cases.items()
    )
    return pytest.mark.parametrize(names, [*rows, *named])
