"""
Runs dask's or distributed's own tests with our agent, and tells what fails only with it.

Called by upstream-tests.sh, which has laid out the tests. All tests run with the agent. A test that
passes there needs no comparison; those that fail, or lose a worker, are run again, three times each
way. A test blames the agent if it fails again with it, or has lost a worker, and neither happens
without. What fails once and not again is listed as flaky.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIDES = ("without", "with")
GOOD = {"passed", "skipped", "xfailed"}
AGAIN = 3


@dataclass
class Report:
    """What one run of pytest wrote down."""

    outcomes: dict[str, str] = field(default_factory=dict)  # by test
    lost: Counter[str] = field(default_factory=Counter)  # workers, by test
    agents: Counter[str] = field(default_factory=Counter)  # how schedulers got the agent

    def is_bad(self, test: str) -> bool:
        return self.outcomes.get(test, "missing") not in GOOD or self.lost[test] > 0

    def counted(self) -> str:
        of = Counter(self.outcomes.values())
        counts = [f"{of[word]} {word}" for word in sorted(of)] or ["nothing ran"]
        return ", ".join([*counts, f"{self.lost.total()} workers lost"])


@dataclass(frozen=True)
class Suite:
    """The tests of one release, and how they are run."""

    folder: Path
    logs: Path
    agent: Path
    options: tuple[str, ...]

    def run(self, what: Iterable[str], side: str, label: str) -> Report:
        file = self.logs / f"{label}.{side}.jsonl"
        file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", *self.options]
        with open(self.logs / f"{label}.{side}.log", "w") as log:
            pytest = subprocess.Popen(
                [*command, *what], cwd=self.folder, env=self.environment(side, file),
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        try:
            pytest.wait()
        finally:  # also clusters that a pytest which died has left
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pytest.pid, signal.SIGKILL)
        return read(file)

    def environment(self, side: str, file: Path) -> dict[str, str]:
        own = os.pathsep.join(map(str, (self.folder, self.agent, HERE)))
        relief = os.environ.get("DASK_ADAPTIVE_RELIEF", "")
        env = {k: v for k, v in os.environ.items() if not k.startswith("DASK_")}
        env |= {"PYTHONPATH": own, "UPSTREAM_OUTCOMES": str(file)}
        env |= {"UPSTREAM_AGENT_PATH": str(self.agent)}
        if side == "with":
            env["UPSTREAM_AGENT"] = "1"
            env["DASK_DISTRIBUTED__SCHEDULER__PRELOAD"] = "dask_adaptive_agent.preload"
            env["DASK_ADAPTIVE_RELIEF"] = relief
        return env


def read(file: Path) -> Report:
    report = Report()
    for line in file.read_text().splitlines() if file.exists() else ():
        row = json.loads(line)
        if "schedulers" in row:
            report.agents.update(row["schedulers"])
        elif "lost" in row:
            report.lost[row["id"]] += row["lost"]
        else:
            before = report.outcomes.get(row["id"])
            report.outcomes[row["id"]] = worse(before, row)
    return report


def worse(before: str | None, row: Mapping[str, str]) -> str:
    """A test is as its run was, unless something before or after it failed."""
    now, when = row["outcome"], row["when"]
    if row["xfail"]:
        now = "xfailed" if now == "skipped" else now
    if now == "failed" and when != "call":
        return "error"
    if now == "rerun" or (when == "setup" and now == "passed"):
        return before if when == "teardown" and before else "unfinished"  # until its run reports
    return before or now if when == "teardown" else now


def run_again(suite: Suite, tests: list[str], label: str) -> dict[str, Counter[str]]:
    """How often each test fails, or loses a worker, in three more runs, by side."""
    bad = {side: Counter[str]() for side in SIDES}
    left = tests
    for i in range(AGAIN):
        for side in SIDES:
            if left:
                report = suite.run(left, side, f"{label}.again{i}")
                bad[side].update(t for t in left if report.is_bad(t))
            left = [t for t in left if not bad["without"][t]]  # upstream's own: no more to learn
    return bad


def known_reasons(file: Path) -> dict[str, str]:
    lines = (line.strip() for line in file.read_text().splitlines())
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


def reason_of(test: str, known: Mapping[str, str]) -> str:
    for listed, reason in known.items():
        if test == listed or (listed.endswith("*") and test.startswith(listed[:-1])):
            return reason
    return ""


def compare(suite: Suite, group: str, known: Mapping[str, str]) -> list[str]:
    """Run one group of tests; returns those that fail only with the agent."""
    what = shlex.split(group)
    label = what[0].strip("/").replace("/", ".").removesuffix(".py")
    start = time.monotonic()
    report = suite.run(what, "with", label)
    print(f"  with the agent: {report.counted()} ({time.monotonic() - start:.0f} s)")
    print(f"  schedulers: {dict(sorted(report.agents.items())) or 'none here'}", flush=True)
    suspects = sorted(t for t in {*report.outcomes, *report.lost} if report.is_bad(t))
    bad = run_again(suite, suspects, label)
    blamed = []
    for test in suspects:
        times = {side: bad[side][test] for side in SIDES}
        if times["without"]:
            continue
        is_real = bool(times["with"] or report.lost[test])  # no worker is lost by chance
        why = reason_of(test, known)
        verdict = "flaky"
        if is_real:
            verdict = f"known ({why})" if why else "ONLY WITH THE AGENT"
            blamed += [] if why else [test]
        outcome = f"{report.outcomes.get(test, 'missing')}, {report.lost[test]} workers lost"
        print(f"    {test}: {outcome}; again {times['with']} of {AGAIN}: {verdict}", flush=True)
    upstream = sum(bad["without"][test] > 0 for test in suspects)
    print(f"  fail without the agent, too: {upstream} ({time.monotonic() - start:.0f} s in all)")
    for test in sorted(t for t, o in report.outcomes.items() if o in GOOD and reason_of(t, known)):
        print(f"    {test} is listed as known, and passes")
    if "passed" not in report.outcomes.values():
        blamed.append(f"{group}: nothing passed; see {suite.logs}")
    return blamed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path, help="the folder that the tests' paths start at")
    parser.add_argument("groups", nargs="+", help="arguments of one run of pytest each")
    parser.add_argument("--release", required=True)
    parser.add_argument(
        "--agent", type=Path, required=True, help="the folder of the agent's package"
    )
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--plugin", action="append", required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=60)
    parser.add_argument("--known", type=Path, required=True)
    parser.add_argument("--args", default="")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left running
    options = [f"-p{plugin}" for plugin in ("no:cacheprovider", *given.plugin)]
    options += ["--timeout", str(given.timeout)]
    if given.processes > 1:
        options += ["-n", str(given.processes), "--dist", "loadfile"]
    options += ["--timeout-method", "signal", *shlex.split(given.args)]
    given.logs.mkdir(exist_ok=True)
    suite = Suite(
        given.suite.resolve(), given.logs.resolve(), given.agent.resolve(), tuple(options)
    )
    blamed: list[str] = []
    for group in given.groups:
        print(f"{given.release} {group}", flush=True)
        blamed += compare(suite, group, known_reasons(given.known))
    print(f"{len(blamed)} only with the agent" + "".join(f"\n  {test}" for test in blamed))
    return 1 if blamed else 0


if __name__ == "__main__":
    sys.exit(main())
