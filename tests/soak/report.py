"""What came of a soak, as a page: docs/contributing/soak.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from bench.pages import filled, table
from soak.books import Audit, Fault
from soak.journal import Journal
from soak.watch import Restart

_FAULTS = ("fault", "times", "recovered after, median", "longest")


def page(
    command: str, journal: Journal, audit: Audit, restarts: Sequence[Restart], *,
    versions: Mapping[str, str], minutes: float,
) -> str:  # fmt: skip
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    kinds = Counter(shape.kind for shape in journal.shapes.values())
    results = {
        "minutes": f"{minutes:g}",
        "faults": f"{sum(fault.is_done for fault in journal.faults)}",
        "graphs": ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())),
        "graphs whose futures were kept, and looked at again": f"{journal.kept}",
        "tasks": f"{audit.tasks:,}",
        "runs": f"{audit.runs:,}",
        "results compared": f"{journal.results:,}",
        "wrong": f"{journal.wrong}",
        "lost": f"{journal.lost}",
        "run again without an excuse": f"{len(audit.unexcused)}",
        "left behind after uninstalling, but for the CRD": "nothing",  # else nothing is written
    }
    return filled(
        __file__,
        command=command,
        versions=told,
        results=_table(("", ""), results.items()),
        redone=_table(("cause", "runs"), _counted(audit.redone)),
        faults=_table(_FAULTS, _by_kind(journal.faults)),
        restarts=_table(("why", "times"), _counted(Counter(one.why for one in restarts))),
    )


def _by_kind(faults: Iterable[Fault]) -> Iterator[Sequence[str]]:
    times: dict[str, list[float]] = {}
    for fault in faults:
        if fault.is_done:
            times.setdefault(fault.kind, []).append(fault.recovered - fault.over)
    for kind, those in sorted(times.items()):
        yield kind, f"{len(those)}", f"{median(those):.0f} s", f"{max(those):.0f} s"


def _counted(counts: Counter[str]) -> Iterator[Sequence[str]]:
    yield from ((what, f"{count:,}") for what, count in sorted(counts.items()))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return table(head, list(rows) or [("none", *["0"] * (len(head) - 1))])
