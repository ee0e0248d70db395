"""
Runs distributed's tests without our agent and with it, and tells what fails only with it.

Called by upstream-tests.sh, which has laid out the tests. A module at a time, first without, then
with the agent, in the same order and with the same options. What differs is run three more times
each way: a test that then never fails with the agent, or also fails without, is flaky.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIDES = ("without", "with")
GOOD = {"passed", "skipped", "xfailed"}
AGAIN = 3

Outcomes = dict[str, str]


@dataclass(frozen=True)
class Suite:
    """The tests of one release, and how they are run."""

    folder: Path
    logs: Path
    options: tuple[str, ...]

    def run(self, what: Iterable[str], side: str, label: str) -> tuple[Outcomes, Counter[str]]:
        """Outcome by test, and how many schedulers got the agent by which way."""
        report = self.logs / f"{label}.{side}.jsonl"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-p", "upstream_agent_plugin", *self.options]
        with open(self.logs / f"{label}.{side}.log", "w") as log:
            subprocess.run(
                [*command, *what], cwd=self.folder, env=self.environment(side, report),
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        return read(report)

    def environment(self, side: str, report: Path) -> dict[str, str]:
        own = (self.folder, HERE.parent / "operator", HERE)
        env = {k: v for k, v in os.environ.items() if not k.startswith("DASK_")}
        env |= {"PYTHONPATH": os.pathsep.join(map(str, own)), "UPSTREAM_OUTCOMES": str(report)}
        if side == "with":
            env["UPSTREAM_AGENT"] = "1"
            env["DASK_DISTRIBUTED__SCHEDULER__PRELOAD"] = "dask_adaptive_agent.preload"
        return env


def read(report: Path) -> tuple[Outcomes, Counter[str]]:
    outcomes: Outcomes = {}
    schedulers: Counter[str] = Counter()
    for line in report.read_text().splitlines() if report.exists() else ():
        row = json.loads(line)
        if "schedulers" in row:
            schedulers.update(row["schedulers"])
        else:
            outcomes[row["id"]] = worse(outcomes.get(row["id"]), row)
    return outcomes, schedulers


def worse(before: str | None, row: Mapping[str, str]) -> str:
    """A test is as its run was, unless something before or after it failed."""
    now, when = row["outcome"], row["when"]
    if row["xfail"]:
        now = "xfailed" if now == "skipped" else now
    if now == "failed" and when != "call":
        return "error"
    if now == "rerun" or (when == "setup" and now == "passed"):
        return before if when == "teardown" and before else "lost"  # until its run reports
    return before or now if when == "teardown" else now


def only_with(first: Mapping[str, Outcomes]) -> list[str]:
    return sorted(
        test
        for test, outcome in first["with"].items()
        if outcome not in GOOD and first["without"].get(test, "passed") in GOOD
    ) + sorted(
        test
        for test, outcome in first["without"].items()
        if outcome in GOOD and test not in first["with"]
    )


def run_again(suite: Suite, tests: list[str], label: str) -> dict[str, Counter[str]]:
    """How often each test fails in three more runs, by side."""
    failed = {side: Counter[str]() for side in SIDES}
    for i in range(AGAIN if tests else 0):
        for side in SIDES:
            outcomes, _ = suite.run(tests, side, f"{label}.again{i}")
            failed[side].update(t for t in tests if outcomes.get(t, "lost") not in GOOD)
    return failed


def known_reasons(file: Path) -> dict[str, str]:
    lines = (line.strip() for line in file.read_text().splitlines())
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


def reason_of(test: str, known: Mapping[str, str]) -> str:
    for listed, reason in known.items():
        if test == listed or (listed.endswith("*") and test.startswith(listed[:-1])):
            return reason
    return ""


def counted(outcomes: Outcomes) -> str:
    of = Counter(outcomes.values())
    return ", ".join(f"{of[word]} {word}" for word in sorted(of)) or "nothing ran"


def compare(suite: Suite, module: str, known: Mapping[str, str]) -> list[str]:
    """Run one module both ways; returns the tests that fail only with the agent."""
    label = module.strip("/").replace("/", ".").removesuffix(".py")
    first: dict[str, Outcomes] = {}
    for side in SIDES:
        start = time.monotonic()
        first[side], schedulers = suite.run([f"distributed/{module}"], side, label)
        took = f"{time.monotonic() - start:.0f} s"
        print(f"  {side:<8}{counted(first[side])}  ({took})", flush=True)
    print(f"  schedulers with the agent: {dict(schedulers) or 'none here'}")
    suspects = only_with(first)
    failed = run_again(suite, suspects, label)
    blamed = []
    for test in suspects:
        times = f"{failed['with'][test]} of {AGAIN} with, {failed['without'][test]} without"
        verdict = "flaky"
        if failed["with"][test] and not failed["without"][test]:
            verdict = f"known ({why})" if (why := reason_of(test, known)) else "ONLY WITH THE AGENT"
            blamed += [] if why else [test]
        print(f"    {first['with'].get(test, 'missing'):<8}{test}: again {times}: {verdict}")
    for test in sorted(t for t, o in first["with"].items() if o in GOOD and reason_of(t, known)):
        print(f"    {test} is listed as known, and passes")
    if "passed" not in first["with"].values():
        blamed.append(f"{module}: nothing passed; see {suite.logs}")
    return blamed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path)
    parser.add_argument("modules", nargs="+")
    parser.add_argument("--release", required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=60)
    parser.add_argument("--known", type=Path, required=True)
    parser.add_argument("--args", default="")
    given = parser.parse_args()
    options = ["-p", "no:cacheprovider", "--timeout", str(given.timeout)]
    options += ["--timeout-method", "signal", *shlex.split(given.args)]
    if given.processes > 1:
        options += ["-n", str(given.processes), "--dist", "loadfile"]
    logs = given.suite.resolve().parent / "logs"
    logs.mkdir(exist_ok=True)
    suite = Suite(given.suite.resolve(), logs, tuple(options))
    blamed: list[str] = []
    for module in given.modules:
        print(f"{given.release} {module}", flush=True)
        blamed += compare(suite, module, known_reasons(given.known))
    print(f"{len(blamed)} only with the agent" + "".join(f"\n  {test}" for test in blamed))
    return 1 if blamed else 0


if __name__ == "__main__":
    sys.exit(main())
