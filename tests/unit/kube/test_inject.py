"""What is changed in pods of schedulers and workers: the patch is applied, and nothing is lost."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from dask_adaptive.kube.agent_zip import (
    BOOT,
    BOOT_PATH,
    BOOT_SOURCE,
    LEAVE_PATH,
    MOUNT,
    PRELOAD,
    agent_zip,
    bundle,
)
from dask_adaptive.kube.inject import Injection, Skip, inject, inject_worker, preloads
from dask_adaptive.model.scheduler_settings import INHERIT, SchedulerSettings, scheduler_settings
from support.json_patch import apply
from support.kube_bodies import dask_pod

POLLING = "DASK_DISTRIBUTED__CLIENT__SCHEDULER_INFO_INTERVAL"
WORKER_TTL = "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"
SETTINGS = scheduler_settings(
    {"scheduler": {
        "relief": {"pickling": "Shared"},
        "config": {"distributed": {"scheduler": {"worker-ttl": "10m"}}},
    }}
)  # fmt: skip
NOTHING = SchedulerSettings()


def scheduler(container: Any = None, **spec: Any) -> dict[str, Any]:
    return dask_pod("scheduler", container, **spec)


def worker(container: Any = None, **spec: Any) -> dict[str, Any]:
    return dask_pod("worker", container, **{"terminationGracePeriodSeconds": 30, **spec})


def outcome(
    body: dict[str, Any], *, settings: SchedulerSettings = NOTHING, grace_s: int | None = 300
) -> Injection | Skip:
    if body["metadata"]["labels"]["dask.org/component"] == "scheduler":
        return inject(body, "agent-cm", version="1.0", settings=settings)
    return inject_worker(body, "agent-cm", version="1.0", grace_s=grace_s, settings=settings)


def injected(body: dict[str, Any], **more: Any) -> dict[str, Any]:
    found = outcome(body, **more)
    assert isinstance(found, Injection), found
    return apply(body, found.patch)


def container(body: dict[str, Any], at: int = 0) -> dict[str, Any]:
    return dict(body["spec"]["containers"][at])


def env(body: dict[str, Any], at: int = 0) -> dict[str, Any]:
    return {e["name"]: e.get("value") for e in container(body, at)["env"]}


def hook(body: dict[str, Any], at: int = 0) -> list[str]:
    return list(container(body, at)["lifecycle"]["preStop"]["exec"]["command"])


#: A scheduler ends without its agent, and so it waits for the ConfigMap; a worker does not.
@pytest.mark.parametrize(("body", "optional"), [(scheduler(), False), (worker(), True)])
def test_a_plain_pod_gets_volume_mount_and_a_note(body: dict[str, Any], optional: bool) -> None:
    result = injected(body)

    (volume,) = result["spec"]["volumes"]
    (mount,) = container(result)["volumeMounts"]
    assert ("agent-cm", optional) == (volume["configMap"]["name"], volume["configMap"]["optional"])
    assert (MOUNT, True) == (mount["mountPath"], mount["readOnly"])
    assert {"dask-adaptive.dev/injected": "1.0"} == result["metadata"]["annotations"]


def test_a_scheduler_preloads_the_agent_and_a_worker_has_a_hook() -> None:
    result = injected(worker())

    assert {PRELOAD: BOOT_PATH} == env(injected(scheduler()))
    assert {POLLING: "600s"} == env(result)
    assert ["/bin/sh", LEAVE_PATH, "--kill-after", "30", "--grace", "300"] == hook(result)
    assert 300 == result["spec"]["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("made", [scheduler, worker])
def test_what_the_user_has_stays(made: Any) -> None:
    post = {"postStart": {"exec": {"command": ["true"]}}}
    mine = {
        "env": [{"name": "PYTHONPATH", "value": "/app"}, {"name": "A", "value": "b"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "lifecycle": post,
    }
    after = injected(made(mine, volumes=[{"name": "data"}], metadata={"annotations": {"x": "y"}}))

    assert mine["env"] == container(after)["env"][:2]
    assert 3 == len(env(after))
    assert ["data", "dask-adaptive-agent"] == [v["name"] for v in after["spec"]["volumes"]]
    assert ["/data", MOUNT] == [m["mountPath"] for m in container(after)["volumeMounts"]]
    assert "y" == after["metadata"]["annotations"]["x"]
    assert post.items() <= container(after)["lifecycle"].items()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (dask_pod("x"), "not a Dask worker"),
        *(
            (made(*how, **more), words)
            for made in (scheduler, worker)
            for how, more, words in [
                ([{"volumeMounts": [{"name": "x", "mountPath": MOUNT}]}], {}, "mounted at /"),
                ([], {"metadata": {"annotations": {"dask-adaptive.dev/inject": "false"}}},
                 "inject=false"),
                ([], {"os": {"name": "windows"}}, "windows"),
                ([], {"nodeSelector": {"kubernetes.io/os": "windows"}}, "windows"),
            ]
        ),
        (worker({"volumeMounts": [{"name": "x", "mountPath": f"{MOUNT}/"}]}), "mounted at"),
        (scheduler({"env": [{"name": PRELOAD, "valueFrom": {}}]}), "valueFrom"),
        (scheduler({"command": ["sh", "-c"], "args": ["dask scheduler --preload x"]}), "shell"),
        (injected(scheduler()), "injected already"),
        (injected(worker()), "injected already"),
    ],
)  # fmt: skip
def test_what_is_left_as_it_is(body: dict[str, Any], words: str) -> None:
    found = outcome(body)

    assert isinstance(found, Skip)
    assert words in found.why


def test_a_workers_pod_is_no_scheduler() -> None:
    assert Skip("not a Dask scheduler") == inject(worker(), "agent-cm", version="1.0")


# --- schedulers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("my.module", ["my.module"]),
        ("['a', '/b/c.py']", ["a", "/b/c.py"]),
        ('["a"]', ["a"]),
        ("('a', 'b')", ["a", "b"]),
        ("[]", []),
        ("", []),
        ("https://host/x.py", ["https://host/x.py"]),
        ("'quoted'", ["quoted"]),
    ],
)
def test_the_users_preloads_come_first(value: str, expected: list[str]) -> None:
    result = injected(scheduler({"env": [{"name": PRELOAD, "value": value}]}))

    assert expected == preloads(value)
    assert [*expected, BOOT_PATH] == ast.literal_eval(env(result)[PRELOAD])


@pytest.mark.parametrize("field", ["args", "command"])
@pytest.mark.parametrize("given", [["--preload", "x.py"], ["--preload=x.py"]])
def test_a_preload_on_the_command_line_is_joined_there(field: str, given: list[str]) -> None:
    words = ["dask", "scheduler", *given]
    result = container(injected(scheduler({"args": [], field: words})))

    assert [*words, "--preload", BOOT_PATH] == result[field]
    assert "env" not in result


OWN = [
    {"name": "DASK_ADAPTIVE_RELIEF", "value": "host=Disabled"},
    {"name": WORKER_TTL, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
]
SAID = {"DASK_ADAPTIVE_RELIEF": "pickling=Shared", WORKER_TTL: "10m"}
BOOTS = {PRELOAD: BOOT_PATH}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        pytest.param({}, {**BOOTS, **SAID}, id="plain"),
        pytest.param(
            {"env": [{"name": "A", "value": "b"}]}, {"A": "b", **BOOTS, **SAID}, id="with-variables"
        ),
        pytest.param({"args": ["dask", "scheduler", "--preload", "x"]}, SAID, id="no-list-at-all"),
        pytest.param(
            {"env": OWN},
            {"DASK_ADAPTIVE_RELIEF": "host=Disabled", WORKER_TTL: None, **BOOTS},
            id="the-pods-own-count",
        ),
    ],
)
def test_what_the_policy_says_goes_into_the_environment(own: Any, expected: Any) -> None:
    assert expected == env(injected(scheduler(own), settings=SETTINGS))


def test_variables_out_of_a_config_map_are_not_overwritten() -> None:
    body = scheduler({"envFrom": [{"configMapRef": {"name": "theirs"}}]})

    assert {PRELOAD, "DASK_ADAPTIVE_RELIEF", INHERIT} == env(
        injected(body, settings=SETTINGS)
    ).keys()


def test_a_dollar_is_not_expanded() -> None:
    spec = {"scheduler": {"config": {"temporary-directory": "/tmp/$(HOME)"}}}
    found = env(injected(scheduler(), settings=scheduler_settings(spec)))

    assert "/tmp/$$(HOME)" == found["DASK_TEMPORARY_DIRECTORY"]


def test_what_finds_no_way_in_is_said() -> None:
    spec = {"scheduler": {"config": {"distributed": {"nanny": {"environ": {"A": "b"}}}}}}
    body = scheduler({"env": [{"name": INHERIT, "value": "e30="}]})
    found = outcome(body, settings=scheduler_settings(spec))

    assert isinstance(found, Injection)
    assert "left out: distributed.nanny.environ.A" in found.lacks
    assert "e30=" == env(apply(body, found.patch))[INHERIT]


# --- workers ----------------------------------------------------------------------------------


def test_a_grace_period_of_the_users_own_stays() -> None:
    result = injected(worker(terminationGracePeriodSeconds=45), grace_s=None)

    assert ["--grace", "45"] == hook(result)[2:]
    assert 45 == result["spec"]["terminationGracePeriodSeconds"]


def test_workers_in_the_hosts_network_share_its_address() -> None:
    assert "--shared-host" == hook(injected(worker(hostNetwork=True)))[-1]


@pytest.mark.parametrize("own", [{"exec": {"command": ["true"]}}, {"sleep": {"seconds": 5}}])
def test_a_hook_of_the_users_own_is_the_only_one(own: dict[str, Any]) -> None:
    before = worker({"lifecycle": {"preStop": own}})
    found = outcome(before)
    assert isinstance(found, Injection)
    after = apply(before, found.patch)

    assert "preStop hook of its own" in found.lacks
    assert {"preStop": own} == container(after)["lifecycle"]
    assert 30 == after["spec"]["terminationGracePeriodSeconds"]
    assert "no preStop hook" in after["metadata"]["annotations"]["dask-adaptive.dev/injected"]
    assert after["spec"]["volumes"], "their hook may call ours"


@pytest.mark.parametrize(
    "words",
    [
        ["dask-worker", "tcp://s:8786"],
        ["dask", "worker"],
        ["tini", "--", "dask-cuda-worker"],
        ["dask", "cuda", "worker"],
        ["sh", "-c", "exec dask worker $ARGS"],
        ["python", "-m", "distributed.cli.dask_worker"],
    ],
)
def test_the_program_is_found_among_containers(words: list[str]) -> None:
    body = worker({"name": "main", "args": words})
    body["spec"]["containers"].insert(0, {"name": "worker", "args": ["envoy"]})
    found = injected(body)

    assert LEAVE_PATH in hook(found, 1)
    assert {"name": "worker", "args": ["envoy"]} == container(found)


def test_the_scheduler_is_found_among_containers() -> None:
    body = scheduler()
    body["spec"]["containers"].insert(0, {"name": "scheduler", "args": ["envoy"]})

    assert BOOTS == env(injected(body), 1)


@pytest.mark.parametrize(("names", "expected"), [(["proxy", "worker"], 1), (["proxy", "other"], 0)])
def test_without_a_telling_command_names_decide(names: list[str], expected: int) -> None:
    body = worker()
    body["spec"]["containers"] = [{"name": name, "image": "x"} for name in names]

    assert LEAVE_PATH in hook(injected(body), expected)


# --- the zip, and what loads it ---------------------------------------------------------------


def test_the_zip_is_the_same_each_time_and_not_compressed() -> None:
    content = agent_zip()

    assert content == agent_zip()
    with zipfile.ZipFile(BytesIO(content)) as archive:
        assert "dask_adaptive_agent/preload.py" in archive.namelist()
        assert {zipfile.ZIP_STORED} == {info.compress_type for info in archive.infolist()}
    assert len(bundle().zip) < 900_000, "a ConfigMap holds 1 MiB"


SCHEDULER = """
import asyncio, sys
sys.path[:] = [p for p in sys.path if not p.endswith("/operator")]  # as in an image
from distributed import Scheduler
from distributed.core import rpc

async def main():
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as s:
        print("agent" if "adaptive_observe" in s.handlers else "no agent")
        print("image's own:", getattr(s, "own", "none"))

asyncio.run(main())
"""


def scheduler_says(folder: Path, *, content: bytes, **env: str) -> str:
    """What a scheduler prints whose ConfigMap's volume is a folder with this agent."""
    (folder / "agent.zip").write_bytes(content)
    (folder / BOOT).write_text(BOOT_SOURCE.replace(MOUNT, str(folder)))
    done = subprocess.run(
        [sys.executable, "-c", SCHEDULER],
        env={PRELOAD: str(folder / BOOT), "HOME": str(folder), **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout + done.stderr


def test_a_broken_agent_does_not_end_the_scheduler(tmp_path: Path) -> None:
    said = scheduler_says(tmp_path, content=b"not a zip")

    assert "no agent" in said
    assert "this scheduler runs without it" in said


def test_a_scheduler_loads_the_agent_and_preloads_of_the_images_own(tmp_path: Path) -> None:
    (tmp_path / "dask.yaml").write_text("distributed: {scheduler: {preload: [ownmod]}}")
    (tmp_path / "ownmod.py").write_text("def dask_setup(s): s.own = 'loaded'")
    path = str(tmp_path)
    said = scheduler_says(tmp_path, content=agent_zip(), DASK_CONFIG=path, PYTHONPATH=path)

    assert "agent\nimage's own: loaded" in said
    assert "Traceback" not in said
