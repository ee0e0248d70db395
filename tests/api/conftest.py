"""Fixtures on a real API server. No kubelet, no controllers: nothing runs, but all rules hold."""

from __future__ import annotations

import fcntl
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from bench.scale.runner import CountingApi
from dask_adaptive.cli.main import cli
from dask_adaptive.kube.api import KubeApi
from support import kube_server
from support.kube_operator import Team, connected
from support.kube_server import CRDS, ROOT, Kubectl


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/api/" in str(item.path):
            item.add_marker(pytest.mark.k8s)


@pytest.fixture(scope="session")
def kubeconfig() -> str:
    try:
        return kube_server.boot()
    except (kube_server.Unavailable, OSError) as exc:
        kube_server.lacking(f"no API server: {exc}")


@pytest.fixture(scope="session")
def admin(kubeconfig: str) -> Kubectl:
    """kubectl, with the CRDs in place."""
    kubectl = Kubectl(kubeconfig)
    kube_server.add_crds(kubectl, CRDS)
    return kubectl


@pytest.fixture
def kubectl(admin: Kubectl) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own."""
    with kube_server.namespace(admin) as mine:
        yield mine
        # Where no controller empties a namespace, its content would be left to later tests.
        dask = "daskclusters,daskworkergroups,daskautoscalers,daskjobs"
        mine("delete", f"dap,{dask}", "--all", "--wait=false")
        kinds = "deployments,pods,services,configmaps,leases.coordination.k8s.io"
        mine("delete", kinds, "--all", "--wait=false", "--grace-period=0", "--force")


@pytest.fixture
async def api(kubeconfig: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeApi]:
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    async with connected() as connection:
        yield connection


@pytest.fixture
def team(api: KubeApi, kubectl: Kubectl) -> Team:
    return Team(api, kubectl)


@pytest.fixture
async def counting(api: KubeApi) -> AsyncIterator[CountingApi]:
    """A connection that counts what it is asked."""
    connection = await CountingApi.connect()
    yield connection
    await connection.close()


@pytest.fixture
def run(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The CLI, in the test's namespace."""
    monkeypatch.setenv("KUBECONFIG", kubectl.kubeconfig)
    return lambda *words: CliRunner().invoke(cli, [*words, "-n", kubectl.namespace])


@pytest.fixture
def demo(kubectl: Kubectl) -> None:
    """The cluster and the policy of the examples."""
    for name in ("cluster", "policy"):
        kubectl("apply", "-f", str(ROOT / f"manifests/examples/{name}.yaml"))


@pytest.fixture
def one_divides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No other test's operator divides AdaptiveBudgets, which are in no namespace, meanwhile."""
    with open(tmp_path_factory.getbasetemp().parent / "one-divides", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
