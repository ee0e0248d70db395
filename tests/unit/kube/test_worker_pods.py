"""Threads and resources of workers that are not there yet, by how they will be started."""

from __future__ import annotations

from typing import Any

from dask_adaptive.kube.worker_pods import resources_of, threads_of
from support import kube_objects as ko
from support.tables import table


def spec(*args: str, cpu: Any = None, **container: Any) -> dict[str, Any]:
    resources = {} if cpu is None else {"limits": {"cpu": cpu}}
    worker = {"name": "worker", "args": list(args), "resources": resources, **container}
    return {"containers": [worker]}


def env(**values: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


@table(
    "pod, threads",
    said=(spec("dask", "worker", "--nthreads", "4"), 4),
    said_with_equals=(spec("dask", "worker", "--nthreads=2", cpu=8), 2),
    last=(spec("dask-worker", "--nthreads", "1", "--nthreads", "3"), 3),
    both=(spec("dask", "worker", "--nthreads", "2", "--nworkers", "3"), 6),
    zero_means_cpus=(spec("dask", "worker", "--nthreads", "0", cpu=2), 2),
    cpus_round_up=(spec("dask", "worker", cpu="1500m"), 2),
    shared_cpus=(spec("dask", "worker", "--nworkers", "2", cpu=4), 4),
    auto=(spec("dask", "worker", "--nworkers", "auto", cpu=4), 4),
    odd=(spec("dask", "worker", "--nworkers", "-1", "--nthreads", "2"), 0),
    no_limit=(spec("dask", "worker"), 0),
    nonsense=(spec("dask", "worker", cpu="lots"), 0),
    no_value=(spec("--nthreads"), 0),
    in_a_shell=(spec("-c", "exec dask worker --nthreads 5 --name $(hostname)", command=["sh"]), 5),
    by_a_variable=(spec("dask", "worker", "--nthreads", "$(N)", env=env(N="7")), 7),
    by_an_unknown_variable=(spec("dask", "worker", "--nthreads", "$(N)", cpu=3), 3),
    open_quote=(spec("-c", "dask worker --nthreads '5", command=["sh"]), 0),
    no_container=({"containers": []}, 0),
    no_spec=(None, 0),
)
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


@table(
    "pod, resources",
    said=(spec("dask", "worker", "--resources", "GPU=1,FOO=2"), (("FOO", 2.0), ("GPU", 1.0))),
    with_blanks=(spec("dask", "worker", "--resources=MEM=1e9 GPU=0.5"),
        (("GPU", 0.5), ("MEM", 1e9))),
    in_a_shell=(spec("-c", 'dask worker --resources "GPU=1, FOO=2"', command=["sh"]),
        (("FOO", 2.0), ("GPU", 1.0))),
    variable_in_lower_case=(
        spec("dask", "worker", env=env(DASK_DISTRIBUTED__WORKER__RESOURCES__GPU="2")),
        (("gpu", 2.0),)),
    variable_with_a_dict=(
        spec("dask", "worker", env=env(DASK_DISTRIBUTED__WORKER__RESOURCES="{'Foo': 1}")),
        (("Foo", 1.0),)),
    command_line_wins=(spec("dask", "worker", "--resources", "GPU=1",
        env=env(DASK_DISTRIBUTED__WORKER__RESOURCES__FOO="2")), (("GPU", 1.0),)),
    nonsense=(spec("dask", "worker", "--resources", "GPU"), ()),
    nonsense_in_a_variable=(
        spec("dask", "worker", env=env(DASK_DISTRIBUTED__WORKER__RESOURCES="[")), ()),
    none=(spec("dask", "worker"), ()),
    no_spec=(None, ()),
)  # fmt: skip
def test_resources(pod: Any, resources: tuple[tuple[str, float], ...]) -> None:
    assert resources == resources_of(pod)


def test_a_view_has_them_of_each_group_and_the_clusters_uid() -> None:
    command = ["dask", "worker", "--nthreads", "2", "--resources", "GPU=1"]
    seen = ko.look(ko.cluster(), ko.worker_group("etl-gpu", args=command))

    (group,) = seen.groups
    assert (2, (("GPU", 1.0),), "uid-etl") == (group.threads, group.resources, seen.uid)
