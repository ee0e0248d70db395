"""From an earlier release to this one, amid work: tests/e2e/upgrade.sh installs the first."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from dask_adaptive.kube.api import CONFIG_MAPS
from dask_adaptive.kube.status_json import history_name, history_of
from support.e2e_cluster import LiveCluster, Start
from support.e2e_objects import adaptive_policy
from support.e2e_release import Release
from support.kube_server import Kubectl
from support.tasks import result

pytestmark = pytest.mark.skipif("NEW_IMAGE" not in os.environ, reason="tests/e2e/upgrade.sh")


async def test_policies_histories_and_pins_survive_and_nothing_is_redone(
    start: Start, admin: Kubectl
) -> None:
    release = Release(admin)
    bounds = {"minReplicas": 2, "maxReplicas": 4}
    c = await start(policy=bounds)
    noted = await start(
        "noted", policy=None, annotations={"dask-adaptive.dev/max-replicas": "2"}, tally=False
    )
    await c.until_settled(2)
    await c.client.gather(await c.grow_to(4, tasks=24))
    await c.until_settled(2)
    keep = max(await c.connected())
    await c.kubectl("annotate", "pod", await c.pod_of(keep), "dask-adaptive.dev/pin=1h")
    await c.until(lambda: c.is_pinned(keep), "the agent holds the pin")
    await c.until(lambda: _history(c), "decisions are written, within a minute")
    before, history = await c.policy(), await _history(c)
    made = (await noted.policy())["metadata"]["uid"]
    workers = await c.deployments()
    running = c.client.map(result, range(40), seconds=0.5, pure=False)

    repository, _, tag = os.environ["NEW_IMAGE"].rpartition(":")
    image = f"image.repository={repository},image.tag={tag},image.digest="
    await asyncio.to_thread(release.install, "--reset-values", "--set-string", image)
    assert 40 == len(await c.client.gather(running))
    assert workers.items() <= (await c.deployments()).items()
    after = await c.policy()
    assert before["metadata"]["uid"] == after["metadata"]["uid"]
    assert _holds(after["spec"], adaptive_policy(c.name, **bounds)["spec"]), "what people wrote"
    assert made == (await noted.policy())["metadata"]["uid"], "made from annotations, and kept"

    await c.until(release.leader, "the new operator leads")
    assert history <= await _history(c)
    await c.edit(minReplicas=0)
    await c.until_settled(1)
    assert {keep} == await c.connected(), "the pin outlived the upgrade"
    new = await start("new", policy=None, tally=False)
    assert "dask-adaptive.dev/injected" in (await new.scheduler_pod())["metadata"]["annotations"]
    tasks, runs, redone = await c.counts()
    assert (tasks, 0) == (runs, redone)


def _holds(whole: Any, part: Any) -> bool:
    """Whether all of a part is there; defaults beside it may be those of another release."""
    if not isinstance(part, dict):
        return bool(whole == part)
    return all(name in whole and _holds(whole[name], value) for name, value in part.items())


async def _history(c: LiveCluster) -> set[float]:
    """When each decision was made that this release can read."""
    name = f"metadata.name={history_name(c.name)}"
    found = await c.api.list(CONFIG_MAPS.path(c.namespace), field=name)
    return {decision.at for body in found for decision in history_of(body)}
