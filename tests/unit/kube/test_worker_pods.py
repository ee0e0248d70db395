"""Threads and resources of workers that are not there yet, by how they will be started."""

from __future__ import annotations

from typing import Any

from dask_adaptive.model.observed import ObservedGroup
from support import kube_objects as ko
from support.tables import table


def spec(*args: str, cpu: Any = None, **container: Any) -> dict[str, Any]:
    resources = {} if cpu is None else {"limits": {"cpu": cpu}}
    worker = {"name": "worker", "args": list(args), "resources": resources, **container}
    return {"containers": [worker]}


def env(**values: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def several(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"containers": list(containers)}


PROXY = {"name": "proxy", "args": ["--nthreads", "9"]}
NAMED = {"name": "worker", "args": ["--nthreads", "3"]}
LOGS = {"name": "logs", "args": ["--nthreads", "9", "--source=dask-worker-logs"]}
CUDA = {"name": "main", "command": ["/opt/bin/dask", "cuda", "worker"], "args": ["--nthreads", "2"]}


def seen(pod: Any) -> ObservedGroup:
    """A group whose workers' pods are so."""
    made = ko.group()
    made["spec"]["worker"]["spec"] = pod
    (group,) = ko.look(ko.cluster(), made).groups
    return group


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
    no_spec=(None, 0),
    of_the_container_that_starts_the_worker=(several(PROXY, NAMED, CUDA), 2),
    of_the_one_that_is_called_so=(several(PROXY, NAMED), 3),
    of_the_only_one=(several(PROXY), 9),
    logs_of_a_worker_are_none=(several(LOGS, CUDA), 2),
)
def test_threads(pod: Any, threads: int) -> None:
    assert threads == seen(pod).threads


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
    assert resources == seen(pod).resources
