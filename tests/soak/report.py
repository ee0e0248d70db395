"""What came of a soak, as a page: docs/benchmarks/soak.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from bench.pages import table
from soak.books import Audit, Fault
from soak.journal import Journal
from soak.watch import Restart

_TOP = """# A soak on a node

`make soak` boots the node of [localnode](../../localnode/README.md) and installs both operators.
Two users compute graphs on one DaskCluster under an AdaptivePolicy with quotas, while the operator,
the scheduler, the API server, etcd, the kubelet and workers are killed, pods are deleted and
evicted, the node is cordoned and the policy edited, at random and in part at once.

All results are known beforehand. Each task notes each of its runs in a folder outside of Dask. A
task that ran twice fails the soak, unless a fault that nobody can survive took its first run or its
result: a worker or a scheduler that was killed at once. Deleted and evicted pods, the cordoned
node, quotas and the policy's edits excuse nothing. The run itself writes this page."""

_FAULTS = """## Faults

Recovered: an operator leads and has renewed its lease since, the policy is Ready and its last edit
is observed, the scheduler answers with its agent, and `minReplicas` workers are connected. Counted
from the end of the fault (the process is back, the pod gone, the node uncordoned), while other
faults go on."""


def page(
    command: str,
    journal: Journal,
    audit: Audit,
    restarts: Sequence[Restart],
    *,
    versions: Mapping[str, str],
    minutes: float,
) -> str:
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
    parts = [
        _TOP,
        f"    {command}",
        f"{told}.",
        _table(("", ""), results.items()),
        "## Run again, by cause",
        _table(("cause", "runs"), _counted(audit.redone)),
        _FAULTS,
        _table(("fault", "times", "recovered after, median", "longest"), _by_kind(journal.faults)),
        "## Restarts of the operator's container",
        _table(("why", "times"), _counted(Counter(restart.why for restart in restarts))),
    ]
    return "\n\n".join(parts) + "\n"


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
