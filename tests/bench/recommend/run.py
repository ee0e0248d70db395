"""
Advice beside what then happens: record, predict, measure, follow the advice, measure again.

    make bench-recommend                         on this machine, in rehearsals: about 7 minutes
    make bench-recommend WORKLOADS="waves"
    make bench-recommend KUBECONFIG=FILE         on a node with both operators

Writes docs/benchmarks/recommend.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dask_adaptive.model.policy import parse_policy
from dask_adaptive_lab.local import Machine
from dask_adaptive_lab.rehearse.rehearsal import rehearse
from dask_adaptive_lab.simulate.advice import Result, advise, changed, result_of, search
from dask_adaptive_lab.simulate.replay import recorded
from dask_adaptive_lab.trace import Trace, read_trace

HERE = Path(__file__).parent
REPORT = HERE.parents[2] / "docs/benchmarks/recommend.md"
NAMES = ("burst-and-tail", "waves", "stages")

#: Before any advice: little room, and much patience.
TODAY = {"clusterRef": {"name": "c"}, "maxReplicas": 4, "idleTimeout": "30s"}

TRIES = 60

HEAD = """\
# Advice beside reality

Predicted is what `simulate` says of the first recording; measured is what a real scheduler with
real workers then did ({where}). "Before" is the first run itself, under `maxReplicas: 4` and
`idleTimeout: 30s`. "After" is a second run under the policy of the last column, which `recommend`
chose from the first recording. `make bench-recommend` measures it (on a node: `KUBECONFIG=FILE`).

"""

COLUMNS = (
    "workload", "", "makespan: predicted", "measured", "", "worker-seconds: predicted", "measured",
    "", "policy",
)  # fmt: skip

Measure = Callable[[str, dict[str, Any]], Trace]


def locally(name: str, spec: dict[str, Any]) -> Trace:
    """Run a workload in a rehearsal on this machine."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "trace.jsonl"
        code, _ = rehearse(
            parse_policy(spec), [str(HERE / "workloads.py"), name], Path(folder), Machine(16, 1),
            name="policy.yaml", trace=path,
        )  # fmt: skip
        if code:
            raise SystemExit(f"{name} ended with {code}")
        return read_trace(path.read_text().splitlines())


def on_a_node(name: str, spec: dict[str, Any]) -> Trace:
    """Run a workload in a cluster of its own on the node that KUBECONFIG names."""
    from support.e2e_objects import adaptive_policy, dask_cluster
    from support.kube_server import Kubectl

    namespace, others = f"bench-{uuid.uuid4().hex[:8]}", {**spec}
    del others["clusterRef"]
    admin = Kubectl(os.environ["KUBECONFIG"])
    admin("create", "namespace", namespace)
    kubectl = admin.within(namespace)
    try:
        kubectl.apply(dask_cluster("c", replicas=1))
        kubectl.apply(adaptive_policy("c", **others))
        _until(lambda: kubectl("get", "deployment", "c-scheduler", "-o",
                               "jsonpath={.status.availableReplicas}") == "1")  # fmt: skip
        address = kubectl("get", "service", "c-scheduler", "-o", "jsonpath={.spec.clusterIP}")
        with _recording(namespace) as path:
            subprocess.run(
                [sys.executable, str(HERE / "workloads.py"), name], check=True,
                env={**os.environ, "DASK_SCHEDULER_ADDRESS": f"tcp://{address}:8786"},
            )  # fmt: skip
            _until(
                lambda: not kubectl("get", "pods", "-l", "dask.org/component=worker", "-o", "name")
            )
        return read_trace(path.read_text().splitlines())
    finally:
        admin("delete", "namespace", namespace, "--wait=false")


@contextlib.contextmanager
def _recording(namespace: str) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp()) / "trace.jsonl"
    words = ["record", "c", "-n", namespace, "-o", str(path)]
    recording = subprocess.Popen([Path(sys.executable).with_name("dask-adaptive"), *words])
    try:
        _until(path.exists)
        yield path
    finally:
        recording.send_signal(signal.SIGINT)
        recording.wait(30)


def _until(holds: Callable[[], bool], patience_s: float = 300.0) -> None:
    end = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"gave up after {patience_s:.0f} s")
        time.sleep(0.5)


def rows_of(name: str, measure: Measure) -> Iterator[str]:
    """Measure twice, before and after the advice; one row of the table each."""
    first = measure(name, TODAY)
    tried = search(TODAY, [first], limit=TRIES)
    yield _row(name, "before", tried[0].total(), first, {})
    advice = advise(tried)
    # The first is the cheapest: what most would take.
    changes = next((dict(one.changes) for one in advice.values()), {})
    second = measure(name, changed(TODAY, changes))
    yield _row(
        "", "after", result_of(first, parse_policy(changed(TODAY, changes))), second, changes
    )


def _row(name: str, when: str, predicted: Result, real: Trace, changes: dict[str, Any]) -> str:
    measured = recorded(real).figures
    cells = [name, when]
    for said, was in (
        (predicted.makespan_s, measured.makespan_s), (predicted.worker_s, measured.worker_s),
    ):  # fmt: skip
        cells += [f"{said:.1f}", f"{was:.1f}", f"{said / was - 1:+.1%}"]
    policy = ", ".join(f"`{path}: {json.dumps(value)}`" for path, value in changes.items())
    return _line([*cells, policy.replace('"', "")])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=NAMES)
    chosen = parser.parse_args().workloads
    node = bool(os.environ.get("KUBECONFIG"))
    rows = []
    for name in chosen:
        for row in rows_of(name, on_a_node if node else locally):
            print(row, flush=True)
            rows.append(row)
    head = [_line(COLUMNS), _line(["---", "---", *["--:"] * 6, "---"])]
    where = "on a node" if node else "on one machine, in rehearsals"
    REPORT.write_text(HEAD.format(where=where) + "\n".join([*head, *rows]) + "\n")


if __name__ == "__main__":
    main()
