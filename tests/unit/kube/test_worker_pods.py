"""Threads, resources and GPUs of workers that are not there yet, by how they will be started."""

from __future__ import annotations

from typing import Any

import pytest

from dask_adaptive.kube.view import gpus_needed
from dask_adaptive.kube.worker_pods import gpus_of, resources_of, threads_of
from support import kube_objects as ko


def spec(*args: str, cpu: Any = None, **container: Any) -> dict[str, Any]:
    resources = {} if cpu is None else {"limits": {"cpu": cpu}}
    worker = {"name": "worker", "args": list(args), "resources": resources, **container}
    return {"containers": [worker]}


def env(**values: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


@pytest.mark.parametrize(
    ("pod", "threads"),
    [
        pytest.param(spec("dask", "worker", "--nthreads", "4"), 4, id="said"),
        pytest.param(spec("dask", "worker", "--nthreads=2", cpu=8), 2, id="said-with-equals"),
        pytest.param(spec("dask-worker", "--nthreads", "1", "--nthreads", "3"), 3, id="last"),
        pytest.param(spec("dask", "worker", "--nthreads", "2", "--nworkers", "3"), 6, id="both"),
        pytest.param(spec("dask", "worker", "--nthreads", "0", cpu=2), 2, id="zero-means-cpus"),
        pytest.param(spec("dask", "worker", cpu="1500m"), 2, id="cpus-round-up"),
        pytest.param(spec("dask", "worker", "--nworkers", "2", cpu=4), 4, id="shared-cpus"),
        pytest.param(spec("dask", "worker", "--nworkers", "auto", cpu=4), 4, id="auto"),
        pytest.param(spec("dask", "worker", "--nworkers", "-1", "--nthreads", "2"), 0, id="odd"),
        pytest.param(spec("dask", "worker"), 0, id="no-limit"),
        pytest.param(spec("dask", "worker", cpu="lots"), 0, id="nonsense"),
        pytest.param(spec("--nthreads"), 0, id="no-value"),
        pytest.param(
            spec("-c", "exec dask worker --nthreads 5 --name $(hostname)", command=["sh"]), 5,
            id="in-a-shell",
        ),
        pytest.param(
            spec("dask", "worker", "--nthreads", "$(N)", env=env(N="7")), 7, id="by-a-variable"
        ),
        pytest.param(
            spec("dask", "worker", "--nthreads", "$(N)", cpu=3), 3, id="by-an-unknown-variable"
        ),
        pytest.param(spec("-c", "dask worker --nthreads '5", command=["sh"]), 0, id="open-quote"),
        pytest.param({"containers": []}, 0, id="no-container"),
        pytest.param(None, 0, id="no-spec"),
    ],
)  # fmt: skip
def test_threads(pod: Any, threads: int) -> None:
    assert threads == threads_of(pod)


def test_the_container_that_starts_the_worker_counts() -> None:
    proxy = {"name": "proxy", "args": ["--nthreads", "9"]}
    main = {
        "name": "main",
        "command": ["/opt/bin/dask", "cuda", "worker"],
        "args": ["--nthreads", "2"],
    }
    named = {"name": "worker", "args": ["--nthreads", "3"]}
    logs = {"name": "logs", "args": ["--nthreads", "9", "--source=dask-worker-logs"]}

    assert 2 == threads_of({"containers": [proxy, named, main]})
    assert 3 == threads_of({"containers": [proxy, named]})
    assert 9 == threads_of({"containers": [proxy]})
    assert 2 == threads_of({"containers": [logs, main]})


@pytest.mark.parametrize(
    ("pod", "resources"),
    [
        pytest.param(
            spec("dask", "worker", "--resources", "GPU=1,FOO=2"), (("FOO", 2.0), ("GPU", 1.0)),
            id="said",
        ),
        pytest.param(
            spec("dask", "worker", "--resources=MEM=1e9 GPU=0.5"), (("GPU", 0.5), ("MEM", 1e9)),
            id="with-blanks",
        ),
        pytest.param(
            spec("-c", 'dask worker --resources "GPU=1, FOO=2"', command=["sh"]),
            (("FOO", 2.0), ("GPU", 1.0)), id="in-a-shell",
        ),
        pytest.param(
            spec("dask", "worker", env=env(DASK_DISTRIBUTED__WORKER__RESOURCES__GPU="2")),
            (("gpu", 2.0),), id="variable-in-lower-case",
        ),
        pytest.param(
            spec("dask", "worker", env=env(DASK_DISTRIBUTED__WORKER__RESOURCES="{'Foo': 1}")),
            (("Foo", 1.0),), id="variable-with-a-dict",
        ),
        pytest.param(
            spec(
                "dask", "worker", "--resources", "GPU=1",
                env=env(DASK_DISTRIBUTED__WORKER__RESOURCES__FOO="2"),
            ),
            (("GPU", 1.0),), id="command-line-wins",
        ),
        pytest.param(spec("dask", "worker", "--resources", "GPU"), (), id="nonsense"),
        pytest.param(
            spec("dask", "worker", env=env(DASK_DISTRIBUTED__WORKER__RESOURCES="[")), (),
            id="nonsense-in-a-variable",
        ),
        pytest.param(spec("dask", "worker"), (), id="none"),
        pytest.param(None, (), id="no-spec"),
    ],
)  # fmt: skip
def test_resources(pod: Any, resources: tuple[tuple[str, float], ...]) -> None:
    assert resources == resources_of(pod)


def test_a_view_has_them_of_each_group_and_the_clusters_uid() -> None:
    command = ["dask", "worker", "--nthreads", "2", "--resources", "GPU=1"]
    seen = ko.look(ko.cluster(), ko.worker_group("etl-gpu", args=command))

    (group,) = seen.groups
    assert (2, (("GPU", 1.0),), "uid-etl") == (group.threads, group.resources, seen.uid)


def claiming(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    def made(limits: dict[str, Any]) -> dict[str, Any]:
        return {"resources": {"limits": limits}}

    return {"containers": [*map(made, containers)], "initContainers": [*map(made, init)]}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, (), id="nothing"),
        pytest.param(claiming({"cpu": "1", "memory": "1Gi"}), (), id="no-gpu"),
        pytest.param(claiming({"nvidia.com/gpu": "1"}), (("nvidia.com/gpu", 1),), id="one"),
        pytest.param(
            claiming({"nvidia.com/gpu": 1}, {"nvidia.com/gpu": "2"}, init=({"nvidia.com/gpu": 1},)),
            (("nvidia.com/gpu", 3),),
            id="containers-together-with-init-containers-before-them",
        ),
        pytest.param(claiming({"amd.com/gpu": "2"}), (("amd.com/gpu", 2),), id="amd"),
        pytest.param(
            claiming({"nvidia.com/mig-1g.5gb": "1"}), (("nvidia.com/mig-1g.5gb", 1),), id="a-slice"
        ),
        pytest.param(
            claiming({"gpu.intel.com/i915": 1, "gpu.intel.com/millicores": 500}),
            (("gpu.intel.com/i915", 1),),
            id="intel-without-its-thousandths",
        ),
        pytest.param(claiming({"nvidia.com/gpu": "0"}), (("nvidia.com/gpu", 0),), id="none-of-it"),
    ],
)
def test_gpus_that_a_pod_claims(spec: dict[str, Any], expected: Any) -> None:
    assert expected == gpus_of(spec)


def test_the_gpus_of_a_worker_and_of_the_greediest() -> None:
    def deployment(name: str, number: int) -> dict[str, Any]:
        return ko.deployment(name, spec={"template": {"spec": claiming({"amd.com/gpu": number})}})

    bodies = (ko.cluster(), deployment("a", 2), deployment("b", 1), ko.deployment("c"))

    assert [2, 1, 0] == [w.gpus for w in ko.look(*bodies).workers]
    assert {"amd.com/gpu": 2} == gpus_needed(ko.world_of(*bodies), ko.KEY)
    assert {} == gpus_needed(ko.world_of(ko.cluster(), ko.deployment()), ko.KEY)
