"""
A job goes on while everything under it is killed and comes back: see docs/contributing/soak.md.

    make soak MINUTES=30 SEED=7

Needs the node of localnode/, whose processes it kills, with both operators: tests/soak/run.sh boots
it. At the end our operator is uninstalled. The exit code is 1 if anything was lost, wrong, run
again without an excuse, or left behind; the timeline says what led to it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import sys
import tempfile
import time
import uuid
import warnings
from contextlib import AsyncExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from distributed.versions import VersionMismatchWarning

from dask_adaptive.kube.api import SERVICES, KubeApi
from dask_adaptive_agent import __version__
from soak import books, report
from soak.books import Audit
from soak.faults import POLICY, Faults
from soak.graphs import FOLDER
from soak.journal import Journal, Spoiled
from soak.users import Lives, Users
from soak.watch import Watch
from support.e2e_cluster import LiveCluster
from support.e2e_objects import adaptive_policy, dask_cluster
from support.e2e_release import STAYS, Release
from support.kube_server import DASK_KUBERNETES, Kubectl

#: So long after the last fault everything must be as the policy wants it.
CALM_S = 240.0


def cluster(notes: Path) -> dict[str, Any]:
    """A DaskCluster whose workers have the folder for their tasks' notes."""
    made = dask_cluster("c", replicas=1)
    pod = made["spec"]["worker"]["spec"]
    pod["volumes"] = [{"name": "notes", "hostPath": {"path": str(notes), "type": "Directory"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "notes", "mountPath": FOLDER}]
    # A task that three killed workers have had in turn is not to blame for it.
    [scheduler] = made["spec"]["scheduler"]["spec"]["containers"]
    scheduler["env"] = [{"name": "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "value": "99"}]
    return made


async def soak(journal: Journal, admin: Kubectl, release: Release, options: Any) -> Watch:
    """Everything until the DaskCluster is gone; problems are in the journal."""
    dice = random.Random(options.seed)
    api = await KubeApi.connect(kubeconfig=admin.kubeconfig)
    namespace = f"soak-{uuid.uuid4().hex[:6]}"
    admin("create", "namespace", namespace)
    c = LiveCluster(api, admin.within(namespace), "c")
    watch = Watch(journal, c, api, admin, release)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(api.close)
        stack.push_async_callback(_save_logs, journal, c, release)
        await c.create(cluster(journal.notes), adaptive_policy("c", **POLICY))
        await c.until_ready()
        service = await api.get(SERVICES.path(namespace, "c-scheduler"))
        address = f"tcp://{service['spec']['clusterIP']}:8786"
        await c.count(address, tally=False)
        stack.push_async_callback(c.close)
        lives = Lives(address)
        await asyncio.wait_for(lives.begin(), 120)
        stack.push_async_callback(lives.end)
        looking = asyncio.ensure_future(watch.run())
        stack.callback(looking.cancel)
        await _burn(journal, watch, lives, c, dice, options)
    return watch


async def _burn(
    journal: Journal, watch: Watch, lives: Lives, c: LiveCluster, dice: random.Random, options: Any
) -> None:
    end = time.time() + options.minutes * 60
    fire = Faults(watch, lives, random.Random(dice.random()))
    users = Users(journal, lives, random.Random(dice.random()), end=end)
    computing = asyncio.ensure_future(users.run(seats=2))
    try:
        await fire.run(until=end)
        await fire.end()
        journal.say("the faults are over")
        await computing
        await _calm(journal, watch, c)
    except Spoiled:
        pass
    except Exception as exc:
        journal.problem(f"{exc!r}")
    finally:
        computing.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await computing


async def _calm(journal: Journal, watch: Watch, c: LiveCluster) -> None:
    """Without work or faults there are as many workers as the policy says, everywhere."""
    try:
        await c.until(lambda: not watch.trouble, "the cluster has recovered", patience_s=CALM_S)
        await c.until_settled(POLICY["minReplicas"])
    except AssertionError as exc:
        journal.problem(f"in the end, {watch.trouble}: {exc}")
    journal.say("all is calm")
    for restart in watch.restarts:
        if not restart.has_reason:
            journal.problem(f"the operator has ended without a reason: {restart}")


async def _save_logs(journal: Journal, c: LiveCluster, release: Release) -> None:
    """Before they go with their pods."""
    for kubectl, words in (
        (release.kubectl, ("--selector", "app.kubernetes.io/name=dask-adaptive-operator")),
        (c._kubectl, ("deployment/c-scheduler",)),
    ):
        said = await asyncio.to_thread(kubectl.run, "logs", *words, "--tail=-1")
        name = words[-1].rpartition("/")[2]
        (journal.folder / f"{name}.log").write_text(said.stdout)
    if journal.problems:
        (journal.folder / "cluster.txt").write_text(await c.told())
    await c.kubectl_run("delete", "daskcluster", "c", "--timeout=90s")
    await c.kubectl_run("delete", "namespace", c.namespace, "--timeout=180s")


async def _leftovers(release: Release) -> list[str]:
    """Objects that are still there some time after our operator was uninstalled."""
    end = time.monotonic() + 90
    while True:
        left = await asyncio.to_thread(release.leftovers) - STAYS
        if not left or time.monotonic() > end:
            return sorted(left)
        await asyncio.sleep(2)


def _settle(journal: Journal, audit: Audit, left: list[str]) -> None:
    """The last problems there may be."""
    if left:
        journal.problem(f"left behind: {', '.join(left)}")
    runs = books.read(journal.notes)
    for again in audit.unexcused[:10]:
        journal.problem(f"{again.task} was run again, and nothing excuses it")
        journal.tell([run for run in runs if run.task == again.task])


def _versions(admin: Kubectl) -> dict[str, str]:
    server = json.loads(admin("version", "-o", "json"))["serverVersion"]["gitVersion"]
    return {
        "dask-adaptive": __version__,
        "distributed": version("distributed"),
        "dask-kubernetes": DASK_KUBERNETES,
        "Kubernetes": str(server),
    }


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    parser.add_argument("--write", type=Path, help="where to write the report, if all went well")
    options = parser.parse_args()
    warnings.simplefilter("ignore", VersionMismatchWarning)
    for noisy in ("distributed", "asyncio"):  # clients of schedulers that are killed
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    journal = Journal(folder)
    journal.say(f"seed {options.seed}; timeline and notes: {folder}")
    admin = Kubectl(os.environ["KUBECONFIG"])
    release, versions = Release(admin), _versions(admin)
    watch = await soak(journal, admin, release, options)
    await asyncio.to_thread(release.uninstall)
    left = await _leftovers(release)
    audit = books.audit(books.read(journal.notes), journal.faults, journal.shapes, journal.again)
    _settle(journal, audit, left)
    command = f"make soak MINUTES={options.minutes:g} SEED={options.seed}"
    page = report.page(
        command, journal, audit, watch.restarts, versions=versions, minutes=options.minutes
    )
    print(page)
    for problem in journal.problems:
        print(f"PROBLEM: {problem}")
    if options.write and not journal.problems:
        options.write.write_text(page)
    return bool(journal.problems)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
