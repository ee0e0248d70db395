"""What the webhook does to a scheduler's pod: the patch is applied here, and nothing is lost."""

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
    MOUNT,
    PRELOAD,
    agent_zip,
    bundle,
)
from dask_adaptive.kube.inject import Injection, Skip, inject, preloads
from dask_adaptive.model.environment import INHERIT
from dask_adaptive.model.scheduler_spec import SchedulerSettings, scheduler_settings
from support.json_patch import apply

WORKER_TTL = "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"
SETTINGS = scheduler_settings(
    {"scheduler": {
        "relief": {"pickling": "Shared"},
        "config": {"distributed": {"scheduler": {"worker-ttl": "10m"}}},
    }}
)  # fmt: skip


def pod(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {
        "labels": {"dask.org/component": "scheduler", "dask.org/cluster-name": "etl"},
        **spec.pop("metadata", {}),
    }
    one = {"name": "scheduler", "args": ["dask", "scheduler"], **(container or {})}
    return {"metadata": metadata, "spec": {"containers": [one], **spec}}


def injected(
    body: dict[str, Any],
    settings: SchedulerSettings = SchedulerSettings(),  # noqa: B008
) -> dict[str, Any]:
    outcome = inject(body, "agent-cm", version="1.0", settings=settings)
    assert isinstance(outcome, Injection), outcome
    return apply(body, outcome.patch)


def env(body: dict[str, Any], at: int = 0) -> dict[str, Any]:
    return {e["name"]: e.get("value") for e in body["spec"]["containers"][at]["env"]}


def test_a_plain_pod_gets_volume_mount_preload_and_a_note() -> None:
    result = injected(pod())

    (volume,) = result["spec"]["volumes"]
    (mount,) = result["spec"]["containers"][0]["volumeMounts"]
    assert "agent-cm" == volume["configMap"]["name"]
    assert not volume["configMap"]["optional"]
    assert (MOUNT, True) == (mount["mountPath"], mount["readOnly"])
    assert {PRELOAD: BOOT_PATH} == env(result)
    assert {"dask-adaptive.dev/injected": "1.0"} == result["metadata"]["annotations"]


def test_what_the_user_has_stays() -> None:
    mine = {
        "env": [{"name": "PYTHONPATH", "value": "/app"}, {"name": "A", "value": "b"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    before = pod(mine, volumes=[{"name": "data"}], metadata={"annotations": {"x": "y"}})
    after = injected(before)

    assert {"PYTHONPATH": "/app", "A": "b", PRELOAD: BOOT_PATH} == env(after)
    assert ["data", "dask-adaptive-agent"] == [v["name"] for v in after["spec"]["volumes"]]
    assert "y" == after["metadata"]["annotations"]["x"]


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
    result = injected(pod({"env": [{"name": PRELOAD, "value": value}]}))

    assert expected == preloads(value)
    assert [*expected, BOOT_PATH] == ast.literal_eval(env(result)[PRELOAD])


@pytest.mark.parametrize("field", ["args", "command"])
@pytest.mark.parametrize("given", [["--preload", "x.py"], ["--preload=x.py"]])
def test_a_preload_on_the_command_line_is_joined_there(field: str, given: list[str]) -> None:
    words = ["dask", "scheduler", *given]
    result = injected(pod({"args": [], field: words}))

    assert [*words, "--preload", BOOT_PATH] == result["spec"]["containers"][0][field]
    assert "env" not in result["spec"]["containers"][0]


def test_the_scheduler_is_found_among_containers() -> None:
    body = pod()
    body["spec"]["containers"].insert(0, {"name": "proxy", "args": ["envoy"]})
    result = injected(body)

    assert {PRELOAD: BOOT_PATH} == env(result, 1)
    assert "volumeMounts" not in result["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (pod(metadata={"labels": {"dask.org/component": "worker"}}), "not a Dask scheduler"),
        (pod({"volumeMounts": [{"name": "x", "mountPath": MOUNT}]}), f"mounted at {MOUNT}"),
        (pod(metadata={"annotations": {"dask-adaptive.dev/inject": "false"}}), "inject=false"),
        (pod(os={"name": "windows"}), "windows"),
        (pod(nodeSelector={"kubernetes.io/os": "windows"}), "windows"),
        (pod({"env": [{"name": PRELOAD, "valueFrom": {}}]}), "valueFrom"),
        (pod({"command": ["sh", "-c"], "args": ["dask scheduler --preload x"]}), "shell"),
    ],
)
def test_what_is_left_as_it_is(body: dict[str, Any], words: str) -> None:
    outcome = inject(body, "agent-cm", version="1.0")

    assert isinstance(outcome, Skip)
    assert words in outcome.why


@pytest.mark.parametrize(
    ("container", "others"),
    [
        pytest.param({}, {PRELOAD}, id="plain"),
        pytest.param({"env": [{"name": "A", "value": "b"}]}, {PRELOAD, "A"}, id="with-variables"),
        pytest.param({"args": ["dask", "scheduler", "--preload", "x"]}, set(), id="no-list-at-all"),
    ],
)
def test_what_the_policy_says_goes_into_the_environment(
    container: dict[str, Any], others: set[str]
) -> None:
    found = env(injected(pod(container), SETTINGS))

    assert {"DASK_ADAPTIVE_RELIEF", WORKER_TTL} | others == found.keys()
    assert ("pickling=Shared", "10m") == (found["DASK_ADAPTIVE_RELIEF"], found[WORKER_TTL])


def test_what_the_pods_own_environment_says_counts() -> None:
    own = [
        {"name": "DASK_ADAPTIVE_RELIEF", "value": "host=Disabled"},
        {"name": WORKER_TTL, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    after = injected(pod({"env": own}), SETTINGS)["spec"]["containers"][0]["env"]

    assert own == after[:2]
    assert [PRELOAD] == [entry["name"] for entry in after[2:]]


def test_variables_out_of_a_config_map_are_not_overwritten() -> None:
    found = env(injected(pod({"envFrom": [{"configMapRef": {"name": "theirs"}}]}), SETTINGS))

    assert {PRELOAD, "DASK_ADAPTIVE_RELIEF", INHERIT} == found.keys()


def test_a_dollar_is_not_expanded() -> None:
    spec = {"scheduler": {"config": {"temporary-directory": "/tmp/$(HOME)"}}}

    assert "/tmp/$$(HOME)" == env(injected(pod(), scheduler_settings(spec)))[
        "DASK_TEMPORARY_DIRECTORY"
    ]  # fmt: skip


def test_what_finds_no_way_in_is_said() -> None:
    spec = {"scheduler": {"config": {"distributed": {"nanny": {"environ": {"A": "b"}}}}}}
    body = pod({"env": [{"name": INHERIT, "value": "e30="}]})
    outcome = inject(body, "agent-cm", version="1.0", settings=scheduler_settings(spec))

    assert isinstance(outcome, Injection)
    assert "left out: distributed.nanny.environ.A" in outcome.lacks
    assert "e30=" == env(apply(body, outcome.patch))[INHERIT]


def test_a_second_injection_does_nothing() -> None:
    assert isinstance(inject(injected(pod()), "agent-cm", version="1.0"), Skip)


def test_the_zip_is_the_same_each_time_and_not_compressed() -> None:
    content = agent_zip()

    assert content == agent_zip()
    with zipfile.ZipFile(BytesIO(content)) as archive:
        assert "dask_adaptive_agent/preload.py" in archive.namelist()
        assert {zipfile.ZIP_STORED} == {info.compress_type for info in archive.infolist()}
    assert len(bundle().zip) < 900_000, "a ConfigMap holds 1 MiB"


def mounted(folder: Path, *, content: bytes) -> None:
    """What the ConfigMap's volume holds."""
    (folder / "agent.zip").write_bytes(content)
    (folder / BOOT).write_text(BOOT_SOURCE.replace(MOUNT, str(folder)))


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


def scheduler_says(folder: Path, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCHEDULER],
        env={PRELOAD: str(folder / BOOT), "HOME": str(folder), **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout + done.stderr


def test_a_scheduler_loads_the_agent_out_of_the_zip(tmp_path: Path) -> None:
    mounted(tmp_path, content=agent_zip())
    said = scheduler_says(tmp_path)

    assert "agent\nimage's own: none" in said
    assert "Traceback" not in said


def test_a_broken_agent_does_not_end_the_scheduler(tmp_path: Path) -> None:
    mounted(tmp_path, content=b"not a zip")
    said = scheduler_says(tmp_path)

    assert "no agent" in said
    assert "this scheduler runs without it" in said


def test_preloads_of_the_images_own_configuration_are_loaded_as_well(tmp_path: Path) -> None:
    mounted(tmp_path, content=agent_zip())
    (tmp_path / "dask.yaml").write_text("distributed: {scheduler: {preload: [ownmod]}}")
    (tmp_path / "ownmod.py").write_text("def dask_setup(s): s.own = 'loaded'")
    said = scheduler_says(tmp_path, DASK_CONFIG=str(tmp_path), PYTHONPATH=str(tmp_path))

    assert "agent\nimage's own: loaded" in said
