"""
Tasks have the same results, or fail alike, however they are pickled.

Whole clusters with the agent compute the same: dask's own tests, `make upstream-tests SUITE=dask`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import distributed
import pytest
from packaging.version import Version

from support.same_graph import Senders, differences

pytestmark = pytest.mark.skipif(
    Version(distributed.__version__) < Version("2023.8.1"), reason="functions' bytes are kept"
)

#: GRAPHS=20000 for a thorough look; FIRST_GRAPH for others.
GRAPHS = int(os.environ.get("GRAPHS", "2000"))
FIRST = int(os.environ.get("FIRST_GRAPH", "1000"))


@pytest.fixture
def senders() -> Iterator[Senders]:
    made = Senders()
    logging.disable(logging.CRITICAL)  # stock code logs what can't be pickled, with its traceback
    try:
        yield made
    finally:
        logging.disable(logging.NOTSET)
        made.close()


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (125, 250, 375))]
)
def test_graphs_give_the_same(senders: Senders, first: int) -> None:
    wrong = [text for seed in range(first, first + 125) for text in differences(seed, senders)]

    assert [] == wrong
    assert 100 < senders.n_reused()


@pytest.mark.thorough
@pytest.mark.timeout(7200)
def test_many_graphs_give_the_same(senders: Senders) -> None:
    wrong = [text for seed in range(FIRST, FIRST + GRAPHS) for text in differences(seed, senders)]

    assert [] == wrong
