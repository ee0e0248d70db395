"""What is changed in pods of schedulers and workers: the patch is applied, and nothing is lost."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from dask_adaptive.kube.agent_config import (
    BOOT,
    BOOT_PATH,
    BOOT_SOURCE,
    MOUNT,
    PRELOAD,
    SOURCES,
    bundle,
)
from dask_adaptive.kube.inject import GRACE, HOOK, Injection, inject, inject_worker, preloads
from dask_adaptive.model.scheduler_settings import INHERIT, SchedulerSettings, scheduler_settings
from support.json_patch import apply
from support.kube_bodies import dask_pod
from support.tables import table

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
) -> Injection:
    if body["metadata"]["labels"]["dask.org/component"] == "scheduler":
        return inject(body, "agent-cm", version="1.0", settings=settings)
    return inject_worker(body, version="1.0", grace_s=grace_s, settings=settings)


def injected(body: dict[str, Any], **more: Any) -> dict[str, Any]:
    found = outcome(body, **more)
    assert found.patch, found
    return apply(body, found.patch)


def container(body: dict[str, Any], at: int = 0) -> dict[str, Any]:
    return dict(body["spec"]["containers"][at])


def env(body: dict[str, Any], at: int = 0) -> dict[str, Any]:
    return {e["name"]: e.get("value") for e in container(body, at)["env"]}


def hook(body: dict[str, Any], at: int = 0) -> list[str]:
    return list(container(body, at)["lifecycle"]["preStop"]["exec"]["command"])


@pytest.mark.parametrize("made", [scheduler, worker])
def test_what_the_user_has_stays(made: Any) -> None:
    post = {"postStart": {"exec": {"command": ["true"]}}}
    mine = {
        "env": [{"name": "PYTHONPATH", "value": "/app"}, {"name": GRACE, "value": "b"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "lifecycle": post,
    }
    after = injected(made(mine, volumes=[{"name": "data"}], metadata={"annotations": {"x": "y"}}))

    assert mine["env"] == container(after)["env"][:2]
    assert 3 == len(env(after))
    assert "data" == after["spec"]["volumes"][0]["name"]
    assert "/data" == container(after)["volumeMounts"][0]["mountPath"]
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
                ([], {"metadata": {"annotations": {"dask-adaptive.dev/inject": "false"}}},
                 "inject=false"),
                ([], {"os": {"name": "windows"}}, "windows"),
                ([], {"nodeSelector": {"kubernetes.io/os": "windows"}}, "windows"),
            ]
        ),
        (scheduler({"volumeMounts": [{"name": "x", "mountPath": f"{MOUNT}/"}]}), "mounted at"),
        (scheduler({"env": [{"name": PRELOAD, "valueFrom": {}}]}), "valueFrom"),
        (scheduler({"command": ["sh", "-c"], "args": ["dask scheduler --preload x"]}), "shell"),
        (injected(scheduler()), "injected already"),
        (injected(worker()), "injected already"),
    ],
)  # fmt: skip
def test_what_is_left_as_it_is(body: dict[str, Any], words: str) -> None:
    found = outcome(body)

    assert not found.patch
    assert words in found.lacks


def test_a_workers_pod_is_no_scheduler() -> None:
    found = inject(worker(), "agent-cm", version="1.0", settings=NOTHING)

    assert Injection(lacks="not a Dask scheduler") == found


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


@table(
    "own, expected",
    plain=({}, {**BOOTS, **SAID}),
    with_variables=({"env": [{"name": "A", "value": "b"}]}, {"A": "b", **BOOTS, **SAID}),
    no_list_at_all=({"args": ["dask", "scheduler", "--preload", "x"]}, SAID),
    the_pods_own_count=(
        {"env": OWN},
        {"DASK_ADAPTIVE_RELIEF": "host=Disabled", WORKER_TTL: None, **BOOTS},
    ),
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

    assert "left out: distributed.nanny.environ.A" in found.lacks
    assert "e30=" == env(apply(body, found.patch))[INHERIT]


# --- workers ----------------------------------------------------------------------------------


def test_a_grace_period_of_the_users_own_stays() -> None:
    result = injected(worker(terminationGracePeriodSeconds=45), grace_s=None)

    assert ("0", "45") == (hook(result)[-1], env(result)[GRACE])
    assert 45 == result["spec"]["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("own", [{"exec": {"command": ["true"]}}, {"sleep": {"seconds": 5}}])
def test_a_hook_of_the_users_own_is_the_only_one(own: dict[str, Any]) -> None:
    before = worker({"lifecycle": {"preStop": own}})
    found = outcome(before)
    after = apply(before, found.patch)

    assert "preStop hook of its own" in found.lacks
    assert {"preStop": own} == container(after)["lifecycle"]
    assert 300 == after["spec"]["terminationGracePeriodSeconds"]
    assert "no preStop hook" in after["metadata"]["annotations"]["dask-adaptive.dev/injected"]


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

    assert HOOK in hook(found, 1)
    assert {"name": "worker", "args": ["envoy"]} == container(found)


def test_the_scheduler_is_found_among_containers() -> None:
    body = scheduler()
    body["spec"]["containers"].insert(0, {"name": "scheduler", "args": ["envoy"]})

    assert BOOTS == env(injected(body), 1)


@pytest.mark.parametrize(("names", "expected"), [(["proxy", "worker"], 1), (["proxy", "other"], 0)])
def test_without_a_telling_command_names_decide(names: list[str], expected: int) -> None:
    body = worker()
    body["spec"]["containers"] = [{"name": name, "image": "x"} for name in names]

    assert HOOK in hook(injected(body), expected)


#: Stands in for a worker: catches SIGURG until it has handed over, SIGTERM always.
STAND_IN = """
import signal, sys, time
hands_over = sys.argv[2:] == ["hands-over"]
rung = []
signal.signal(signal.SIGTERM, lambda *_: None)
if hands_over:
    signal.signal(signal.SIGURG, lambda *_: rung.append(1))
print("up", flush=True)
while not rung:
    time.sleep(0.05)
time.sleep(0.5)
signal.signal(signal.SIGURG, signal.SIG_DFL)
print("done", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("shell", ["dash", "busybox sh", "bash --posix"])
def test_the_hook_waits_for_workers_and_kills_what_hangs(tmp_path: Path, shell: str) -> None:
    """Processes as Linux shows them; those of other containers are not seen to."""
    program, *words = shell.split()
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not here")

    def process(command: str, mount: str, how: str) -> subprocess.Popen[str]:
        made = subprocess.Popen(
            [sys.executable, "-c", STAND_IN, command, how], stdout=subprocess.PIPE, text=True
        )
        assert made.stdout
        assert "up\n" == made.stdout.readline()
        where = tmp_path / str(made.pid)
        (where / "ns").mkdir(parents=True)
        (where / "ns/mnt").symlink_to(mount)
        for name in ("status", "cmdline"):
            (where / name).symlink_to(f"/proc/{made.pid}/{name}")
        return made

    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/mnt").symlink_to("mnt:[1]")
    ours = process("dask worker", "mnt:[1]", "hands-over")
    hangs = process("dask worker", "mnt:[1]", "looks-for-its-scheduler")
    go = process("a sidecar", "mnt:[1]", "hands-over")
    other = process("dask worker", "mnt:[2]", "hands-over")
    every = (ours, hangs, go, other)
    try:
        for kill_after in ("0", "1"):
            done = subprocess.run(
                [shutil.which(program) or "", *words, "-c", HOOK.replace("/proc", str(tmp_path)),
                 "x", kill_after],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
            if kill_after == "0":
                assert ours.stdout
                assert "done\n" == ours.stdout.readline()
                assert [None] * 4 == [one.poll() for one in every]

        assert -9 == hangs.wait(timeout=30)
        assert -9 == go.wait(timeout=30)
        assert other.poll() is None
    finally:
        for one in every:
            one.kill()
            one.communicate()


# --- the agent's sources, and what loads them -------------------------------------------------


def test_the_bundle_is_small() -> None:
    assert len(bundle().sources) < 300_000


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
    (folder / SOURCES).write_bytes(content)
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
    said = scheduler_says(tmp_path, content=b"no agent")

    assert "no agent" in said
    assert "this scheduler runs without it" in said


def test_a_scheduler_loads_the_agent_and_preloads_of_the_images_own(tmp_path: Path) -> None:
    (tmp_path / "dask.yaml").write_text("distributed: {scheduler: {preload: [ownmod]}}")
    (tmp_path / "ownmod.py").write_text("def dask_setup(s): s.own = 'loaded'")
    path, content = str(tmp_path), b64decode(bundle().sources)
    said = scheduler_says(tmp_path, content=content, DASK_CONFIG=path, PYTHONPATH=path)

    assert "agent\nimage's own: loaded" in said
    assert "Traceback" not in said
