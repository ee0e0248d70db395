"""Tables of cases for a test: each line has a case's name and its values."""

from __future__ import annotations

from typing import Any

import pytest


def table(names: str, /, **cases: Any) -> pytest.MarkDecorator:
    """`parametrize` with a case a line; where there is but one name, a case is its value."""
    rows = cases.items() if "," in names else ((name, (value,)) for name, value in cases.items())
    return pytest.mark.parametrize(
        names, [pytest.param(*values, id=name.replace("_", "-")) for name, values in rows]
    )
