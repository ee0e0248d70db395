"""
Fixtures on a real node, with both operators running: see scripts/test-k8s.sh.

The machine that runs these tests must reach Service IPs, as the local node's own machine does.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from dask_adaptive.kube.api import KubeApi
from dask_adaptive.loop.ports import Tls
from support.e2e_cluster import LiveCluster, Start
from support.e2e_objects import adaptive_policy, dask_cluster
from support.kube_operator import connected
from support.kube_server import Kubectl, lacking

#: Tests that take a minute and more: they begin first, so that none runs alone at the end.
LONGEST = ("pods_that_find_no_room", "outlives", "gone_takes", "outlive", "quota", "rolls_out")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(words in item.name for words in LONGEST))
    for item in items:
        if "/e2e/" in str(item.path):
            item.add_marker(pytest.mark.k8s)
            # Workers run the image's Python, clients that of this machine.
            quiet = "ignore::distributed.versions.VersionMismatchWarning"
            item.add_marker(pytest.mark.filterwarnings(quiet))
            item.add_marker(pytest.mark.timeout(600))


#: Whether the body of a test has failed: its clusters then tell what a person would look at.
_HAS_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_HAS_FAILED] = report.failed
    return report


@pytest.fixture(scope="session")
def admin() -> Kubectl:
    """kubectl on a cluster where both operators are installed."""
    path = os.environ.get("KUBECONFIG")
    if not path:
        lacking("KUBECONFIG is not set; scripts/test-k8s.sh boots a node and runs these tests")
    kubectl = Kubectl(path)
    selector = "app.kubernetes.io/name=dask-adaptive-operator"
    found = kubectl("get", "deployments", "--all-namespaces", "--selector", selector, "-o", "name")
    assert found, "dask-adaptive is not installed on this cluster; run scripts/install.sh"
    return kubectl


@pytest.fixture
def kubectl(admin: Kubectl) -> Iterator[Kubectl]:
    """
    kubectl in a namespace of the test's own; it goes in the background, and its clusters before it.

    A namespace that goes away answers dask-kubernetes' writes with 403. At each of those kr8s
    closes the one session of the whole operator (`Api.call_api`): handlers of other tests' clusters
    fail (ReadError), and are tried again after a minute, together with the one that was refused.
    """
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    admin("create", "namespace", name)
    within = admin.within(name)
    yield within
    if os.environ.get("KEEP_NAMESPACES") != "1":
        within.run("delete", "daskautoscalers,daskclusters", "--all", "--timeout=30s")
        within.run("wait", "--for=delete", "daskworkergroups", "--all", "--timeout=30s")
        admin("delete", "namespace", name, "--wait=false")


@pytest.fixture
async def api(admin: Kubectl) -> AsyncIterator[KubeApi]:
    async with connected() as connection:
        yield connection


@pytest.fixture
async def start(
    request: pytest.FixtureRequest, api: KubeApi, kubectl: Kubectl
) -> AsyncIterator[Start]:
    """
    Start clusters. `policy=None`: without one; other arguments are those of `dask_cluster`.

    Returns once the scheduler and, where there is one, the policy are ready.
    """
    started: list[LiveCluster] = []
    async with AsyncExitStack() as stack:

        async def start(
            name: str = "c",
            *,
            policy: dict[str, Any] | None = {},  # noqa: B006  # read only
            annotations: dict[str, str] | None = None,
            tally: bool = True,
            tls: Tls | None = None,
            **cluster: Any,
        ) -> LiveCluster:
            made = dask_cluster(name, tls=tls is not None, **cluster)
            if annotations:
                made["metadata"]["annotations"] = annotations
            objects = [made] if policy is None else [made, adaptive_policy(name, **policy)]
            live = LiveCluster(api, kubectl, name, tls=tls)
            await live.create(*objects)
            stack.push_async_callback(live.close)
            started.append(live)
            await live.open(tally=tally)
            if policy is not None:
                await live.until_ready()
            return live

        yield start
        if request.node.stash.get(_HAS_FAILED, False):
            for live in started:
                print(await live.told())
