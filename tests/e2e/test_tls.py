"""A cluster whose scheduler takes TLS only: what works without does; certificates are judged."""

from __future__ import annotations

import json

import pytest

from dask_adaptive.loop.ports import Tls
from dask_adaptive_agent import pinned
from support.certificates import Authority, secret
from support.e2e_cluster import LiveCluster, Start
from support.kube_server import Kubectl
from support.tasks import result

NAME = "dask-tls"


@pytest.fixture
def authority(kubectl: Kubectl) -> Authority:
    authority = Authority()
    kubectl.apply(secret(NAME, authority.tls()))
    return authority


POLICY = {"maxReplicas": 2, "scheduler": {"tls": {"secretName": NAME}}}


async def test_workers_come_and_go_pins_hold_and_pods_hand_over(
    start: Start, authority: Authority
) -> None:
    c = await start(tls=authority.tls(), policy=POLICY)
    assert ("True", "Reconciled") == await c.condition("Injected")
    assert NAME == (await c.status())["scheduler"]["tlsSecretName"]
    await c.client.gather(await c.grow_to(2, tasks=12))

    kept = max(await c.connected())
    async with pinned(kept, client=c.client, reason="from code"):
        await c.until(lambda: _only(c, kept), "the other one leaves, the pinned one stays")
        assert "from code" in await c.dask_adaptive("explain", f"worker/{kept}")
        await c.edit(minReplicas=2)
        await c.until_connected(2)
    here = {"workers": [await c.address_of(kept)], "pure": False}
    data = c.client.map(result, range(6), seconds=0.1, allow_other_workers=True, **here)
    await c.client.gather(c.client.map(len, data, pure=False))
    address = await c.address_of(kept)
    await c.kubectl("delete", "pod", await c.pod_of(kept), "--wait=false")
    await c.until(lambda: _moved(c, address), "it has its data moved")
    assert [100_000] * 6 == await c.client.gather(c.client.map(len, data, pure=False))
    tasks, runs, redone = await c.counts()
    assert (tasks, 0) == (runs, redone)


async def test_certificates_are_renewed_at_run_time_and_told_of_when_wrong(
    start: Start, authority: Authority, kubectl: Kubectl
) -> None:
    c = await start(tls=authority.tls(), policy=POLICY)

    await _replace(c, authority.tls(expired=True))
    await c.until(lambda: _tls_failed(c, "expired at"), "an expired certificate is told")
    await _replace(c, Authority().tls(trusted=authority))
    await c.until(lambda: _tls_failed(c, "rejects the Secret's certificate"), "so is a stranger's")
    await c.kubectl("delete", "secret", NAME)
    await c.until(lambda: _tls_failed(c, f"there is no Secret {c.namespace}/{NAME}"), "none at all")
    await c.edit(scheduler={"tls": {"secretName": "unknown-to-the-chart"}})
    await c.until(lambda: _tls_failed(c, "scheduler.tls.secretNames"), "no right")

    await c.edit(scheduler={"tls": {"secretName": NAME}})
    kubectl.apply(secret(NAME, authority.tls()))
    await c.until(lambda: _connected(c), "a good one is used without a restart")
    await c.client.gather(await c.grow_to(2, tasks=12))


async def _only(c: LiveCluster, name: str) -> bool:
    return {name} == await c.connected()


async def _moved(c: LiveCluster, address: str) -> bool:
    return all(w.address != address for w in (await c.observe()).workers)


async def _replace(c: LiveCluster, tls: Tls) -> None:
    body = secret(NAME, tls)
    patch = json.dumps({"data": body["data"]})
    await c.kubectl("patch", "secret", NAME, "--type=merge", "--patch", patch)


async def _tls_failed(c: LiveCluster, words: str) -> bool:
    conditions = (await c.status())["conditions"]
    found = next(x for x in conditions if x["type"] == "SchedulerConnected")
    return found["reason"] == "SchedulerUnreachable" and words in found["message"]


async def _connected(c: LiveCluster) -> bool:
    return (await c.condition("SchedulerConnected"))[0] == "True"
