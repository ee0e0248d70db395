"""What the webhook does to a worker's pod, and the hook that it adds."""

from __future__ import annotations

import asyncio
import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dask_adaptive.controller.injector import Injector
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.agent_config import FRESH_S, AgentConfig, Consent
from dask_adaptive.kube.agent_zip import LEAVE, LEAVE_PATH, MOUNT, agent_zip, bundle
from dask_adaptive.kube.errors import ApiUnreachable, NotFound
from dask_adaptive.kube.inject import Injection, Skip, inject_worker
from support import kube_objects as ko
from support.json_patch import apply

POLLING = "DASK_DISTRIBUTED__CLIENT__SCHEDULER_INFO_INTERVAL"

LABELS = {
    "dask.org/component": "worker",
    "dask.org/cluster-name": "etl",
    "dask.org/workergroup-name": "etl-default",
}


def pod(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"labels": LABELS, **spec.pop("metadata", {})}
    one = {"name": "worker", "args": ["dask", "worker", "--name", "x"], **(container or {})}
    base = {"containers": [one], "terminationGracePeriodSeconds": 30}
    return {"metadata": metadata, "spec": {**base, **spec}}


def injected(body: dict[str, Any], grace_s: int | None = 300) -> dict[str, Any]:
    outcome = inject_worker(body, "agent-cm", version="1.0", grace_s=grace_s)
    assert isinstance(outcome, Injection), outcome
    return apply(body, outcome.patch)


def hook(body: dict[str, Any], at: int = 0) -> list[str]:
    return list(body["spec"]["containers"][at]["lifecycle"]["preStop"]["exec"]["command"])


def test_a_plain_pod_gets_volume_mount_hook_grace_and_a_note() -> None:
    result = injected(pod())

    (volume,) = result["spec"]["volumes"]
    (mount,) = result["spec"]["containers"][0]["volumeMounts"]
    assert ("agent-cm", True) == (volume["configMap"]["name"], volume["configMap"]["optional"])
    assert (MOUNT, True) == (mount["mountPath"], mount["readOnly"])
    assert ["/bin/sh", LEAVE_PATH, "--kill-after", "30", "--grace", "300"] == hook(result)
    assert 300 == result["spec"]["terminationGracePeriodSeconds"]
    assert {"dask-adaptive.dev/injected": "1.0"} == result["metadata"]["annotations"]
    variables = [{"name": POLLING, "value": "600s"}]
    assert variables == result["spec"]["containers"][0]["env"], "a worker preloads nothing"


def test_a_grace_period_of_the_users_own_stays() -> None:
    result = injected(pod(terminationGracePeriodSeconds=45), grace_s=None)

    assert ["--grace", "45"] == hook(result)[2:]
    assert 45 == result["spec"]["terminationGracePeriodSeconds"]


def test_workers_in_the_hosts_network_share_its_address() -> None:
    assert "--shared-host" == hook(injected(pod(hostNetwork=True)))[-1]


@pytest.mark.parametrize("own", [{"exec": {"command": ["true"]}}, {"sleep": {"seconds": 5}}])
def test_a_hook_of_the_users_own_is_the_only_one(own: dict[str, Any]) -> None:
    before = pod({"lifecycle": {"preStop": own}})
    outcome = inject_worker(before, "agent-cm", version="1.0", grace_s=300)
    assert isinstance(outcome, Injection)
    after = apply(before, outcome.patch)

    assert "preStop hook of its own" in outcome.lacks
    assert {"preStop": own} == after["spec"]["containers"][0]["lifecycle"]
    assert 30 == after["spec"]["terminationGracePeriodSeconds"]
    assert "no preStop hook" in after["metadata"]["annotations"]["dask-adaptive.dev/injected"]
    assert after["spec"]["volumes"], "their hook may call ours"


def test_what_else_the_user_has_stays() -> None:
    post = {"postStart": {"exec": {"command": ["true"]}}}
    before = pod({"lifecycle": post}, volumes=[{"name": "data"}])
    after = injected(before)

    lifecycle = after["spec"]["containers"][0]["lifecycle"]
    assert post["postStart"] == lifecycle["postStart"]
    assert LEAVE_PATH in lifecycle["preStop"]["exec"]["command"]
    assert ["data", "dask-adaptive-agent"] == [v["name"] for v in after["spec"]["volumes"]]


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
def test_the_worker_is_found_among_containers(words: list[str]) -> None:
    body = pod({"name": "main", "args": words})
    body["spec"]["containers"].insert(0, {"name": "worker", "args": ["envoy"]})

    assert LEAVE_PATH in hook(injected(body), 1)


@pytest.mark.parametrize(("names", "expected"), [(["proxy", "worker"], 1), (["proxy", "other"], 0)])
def test_without_a_telling_command_names_decide(names: list[str], expected: int) -> None:
    body = pod()
    body["spec"]["containers"] = [{"name": name, "image": "x"} for name in names]

    assert LEAVE_PATH in hook(injected(body), expected)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (pod(metadata={"labels": {**LABELS, "dask.org/component": "scheduler"}}), "not a Dask w"),
        (pod(metadata={"annotations": {"dask-adaptive.dev/inject": "false"}}), "inject=false"),
        (pod(os={"name": "windows"}), "windows"),
        (pod({"volumeMounts": [{"name": "x", "mountPath": f"{MOUNT}/"}]}), f"mounted at {MOUNT}"),
        (injected(pod()), "injected already"),
    ],
)
def test_what_is_left_as_it_is(body: dict[str, Any], words: str) -> None:
    outcome = inject_worker(body, "agent-cm", version="1.0", grace_s=300)

    assert isinstance(outcome, Skip)
    assert words in outcome.why


class Api:
    """An API server that has some objects; the calls are counted."""

    def __init__(self, objects: dict[str, Any] | None = None) -> None:
        self.objects, self.calls = objects or {}, list[tuple[str, str]]()
        self.broken = False

    async def get(self, path: str) -> dict[str, Any]:
        return self._take("GET", path)

    async def patch(self, path: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        return self._take("PATCH", path)

    async def list(self, path: str, **_: Any) -> list[dict[str, Any]]:
        self._take("LIST", path)
        return [o for o in self.objects.values() if o.get("kind") == "AdaptivePolicy"]

    def _take(self, verb: str, path: str) -> dict[str, Any]:
        self.calls.append((verb, path.rpartition("/")[2]))
        if self.broken:
            raise ApiUnreachable("no answer")
        name = path.rpartition("/")[2]
        if verb == "GET" and name not in self.objects:
            raise NotFound(path)
        return dict(self.objects.get(name, {}))


NAMESPACE = {"metadata": {"name": "ns"}}


class Scene:
    def __init__(self, api: Api, *watched: dict[str, Any]) -> None:
        self.now = 0.0
        made: Any = api
        config = AgentConfig(made, bundle(), clock=lambda: self.now)
        consent = Consent(made, lambda: self.now, ttl_s=1e9)
        world = ko.world_of(*watched)
        self.injector = Injector(made, world, config, consent, Metrics(), grace_s=300)

    async def grace(self, body: dict[str, Any], **more: Any) -> int | None:
        """The grace period that the pod is given; None: no hook, or its own."""
        outcome = await self.injector._decide({"object": body, "namespace": "ns", **more})
        if isinstance(outcome, Skip):
            raise AssertionError(outcome.why)
        after = apply(body, outcome.patch)["spec"]["terminationGracePeriodSeconds"]
        return None if after == body["spec"]["terminationGracePeriodSeconds"] else int(after)


def group(grace_s: int | None) -> dict[str, Any]:
    body = ko.group()
    body["spec"]["worker"]["spec"] = (
        {} if grace_s is None else {"terminationGracePeriodSeconds": grace_s}
    )
    return body


@pytest.mark.parametrize(
    ("of_pod", "of_group", "given"),
    [
        pytest.param(30, None, 300, id="nobody-asked-for-30"),
        pytest.param(30, 30, None, id="somebody-did"),
        pytest.param(45, 45, None, id="their-own"),
        pytest.param(3600, None, None, id="set-by-somebody-else"),
    ],
)
@pytest.mark.parametrize("watched", [True, False])
async def test_grace(of_pod: int, of_group: int | None, given: int | None, watched: bool) -> None:
    objects = {"ns": NAMESPACE, "etl": ko.cluster(), "etl-default": group(of_group)}
    scene = Scene(Api(objects), *([ko.cluster(), group(of_group)] if watched else []))

    assert given == await scene.grace(pod(terminationGracePeriodSeconds=of_pod))


async def test_the_pods_own_grace_stays_where_its_group_cannot_be_read() -> None:
    scene = Scene(Api({"ns": NAMESPACE, "etl": ko.cluster()}))

    assert await scene.grace(pod()) is None


async def test_a_burst_of_workers_is_one_write() -> None:
    api = Api({"ns": NAMESPACE})
    scene = Scene(api, ko.cluster(), group(None))
    for expected in (1, 1, 2):
        await asyncio.gather(*(scene.grace(pod()) for _ in range(300)))
        assert expected == sum(verb == "PATCH" for verb, _ in api.calls)
        scene.now += FRESH_S / 2
    assert 1 == sum(verb == "GET" for verb, _ in api.calls), "the namespace's consent, once"


async def test_a_write_that_failed_is_tried_again_by_the_next_pod() -> None:
    api = Api({"ns": NAMESPACE})
    scene = Scene(api, ko.cluster(), group(None))
    await scene.grace(pod(), dryRun=True)
    assert not [verb for verb, _ in api.calls if verb == "PATCH"]
    api.broken = True
    with pytest.raises(AssertionError, match="can't be made sure of"):
        await scene.grace(pod())
    api.broken = False

    assert 300 == await scene.grace(pod())
    assert {} == scene.injector._config._turns._locks


def scheduler_pod() -> dict[str, Any]:
    labels = {**LABELS, "dask.org/component": "scheduler"}
    return copy.deepcopy(pod({"args": ["dask", "scheduler"]}, metadata={"labels": labels}))


def policy_with(name: str = "p", *, relief: str = "Disabled", **metadata: Any) -> dict[str, Any]:
    made = ko.policy(name, **metadata)
    made["spec"]["scheduler"] = {"relief": {"clientInfo": relief}}
    return made


async def variables(scene: Scene, body: dict[str, Any]) -> dict[str, str]:
    outcome = await scene.injector._decide({"object": body, "namespace": "ns"})
    assert isinstance(outcome, Injection), outcome
    entries = apply(body, outcome.patch)["spec"]["containers"][0].get("env", [])
    return {entry["name"]: entry["value"] for entry in entries if "PRELOAD" not in entry["name"]}


OFF = {"DASK_ADAPTIVE_RELIEF": "clientInfo=Disabled"}
MANAGED = {"dask-adaptive.dev/managed-by": "annotations"}


@pytest.fixture
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dask_adaptive.kube.policies.SECOND_LOOK_S", 0.0)


@pytest.mark.usefixtures("_no_wait")
@pytest.mark.parametrize(
    ("watched", "listed", "expected"),
    [
        pytest.param([policy_with()], [], OFF, id="watched"),
        pytest.param([], [policy_with()], OFF, id="younger-than-the-watch"),
        pytest.param([], [], {}, id="none"),
        pytest.param([], [ko.policy("p", for_="other")], {}, id="another-clusters"),
        pytest.param([policy_with(deletionTimestamp="x")], [], {}, id="going"),
        pytest.param([policy_with(relief="Sometimes")], [], {}, id="makes-no-sense"),
        pytest.param([policy_with("a"), policy_with("b")], [], {}, id="two-contradict"),
        pytest.param(
            [policy_with(), ko.policy("m", labels=MANAGED)], [], OFF, id="one-of-annotations-goes"
        ),
    ],
)
async def test_a_scheduler_starts_with_what_its_policy_says(
    watched: list[dict[str, Any]], listed: list[dict[str, Any]], expected: dict[str, str]
) -> None:
    objects = {p["metadata"]["name"]: p for p in listed}
    api = Api({"ns": NAMESPACE, "etl": ko.cluster(), **objects})
    scene = Scene(api, ko.cluster(), *watched)

    assert expected == await variables(scene, scheduler_pod())
    assert bool(watched) == (("LIST", "adaptivepolicies") not in api.calls)


async def test_a_worker_starts_with_what_the_watch_has_said() -> None:
    api = Api({"ns": NAMESPACE})

    assert {POLLING: "600s"} == await variables(Scene(api, ko.cluster()), pod())
    assert {} == await variables(Scene(api, ko.cluster(), policy_with()), pod())
    assert not [verb for verb, _ in api.calls if verb == "LIST"]


async def test_policies_that_cannot_be_listed_keep_no_agent_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Api({"ns": NAMESPACE, "etl": ko.cluster()})

    async def refuse(path: str, **_: Any) -> list[dict[str, Any]]:
        raise ApiUnreachable("no answer")

    monkeypatch.setattr(api, "list", refuse)

    assert {} == await variables(Scene(api, ko.cluster()), scheduler_pod())


@pytest.mark.usefixtures("_no_wait")
async def test_a_scheduler_is_sure_of_its_config_map_each_time() -> None:
    api = Api({"ns": NAMESPACE, "etl": ko.cluster()})
    scene = Scene(api, ko.cluster())
    labels = {**LABELS, "dask.org/component": "scheduler"}
    for _ in range(2):
        body = copy.deepcopy(pod({"args": ["dask", "scheduler"]}, metadata={"labels": labels}))
        assert await scene.grace(body) is None

    assert 2 == sum(verb == "PATCH" for verb, _ in api.calls)
    assert 2 == sum(call == ("GET", "etl") for call in api.calls)


# The hook itself.

SHELLS = [
    pytest.param(["dash"], id="dash"),
    pytest.param(["busybox", "sh"], id="busybox"),
    pytest.param(["bash", "--posix"], id="bash"),
]

#: Stands in for the agent's own program, which has tests of its own: it says how it was started.
SAYS = """\
import sys
print("leave", sys.executable, sys.argv[1:])
sys.exit({code})
"""


def run_hook(
    folder: Path, shell: list[str], *words: str, code: int = 0, **env: str
) -> subprocess.CompletedProcess[str]:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not here")
    (folder / "agent.py").write_text(SAYS.format(code=code))
    log = folder / "log"
    if not log.exists():
        log.touch()
    text = dict(bundle().texts)[LEAVE]
    assert f"zip={MOUNT}/agent.zip" in text
    text = text.replace(f"{MOUNT}/agent.zip", str(folder / "agent.py"))
    text = text.replace("log=/proc/1/fd/1", f"log={log}").replace("/proc/[0-9]*", "$PROC/[0-9]*")
    text = text.replace("/proc/self", "$PROC/self")
    (folder / LEAVE).write_text(text)
    full = {"PATH": os.environ["PATH"], "PROC": str(folder / "proc"), **env}
    return subprocess.run(
        [shutil.which(shell[0]) or "", *shell[1:], str(folder / LEAVE), *words],
        env=full,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def process(folder: Path, pid: int, *words: str, exe: str = "") -> None:
    """One process, as Linux shows it."""
    where = folder / "proc" / str(pid)
    where.mkdir(parents=True)
    (where / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
    if exe:
        (where / "exe").symlink_to(exe)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_hook_uses_the_python_of_the_worker(tmp_path: Path, shell: list[str]) -> None:
    process(tmp_path, 1, "/usr/bin/tini", "--", "dask", "worker", "tcp://s:8786")
    process(tmp_path, 7, sys.executable, "/x/bin/dask", "worker", "tcp://s:8786")
    done = run_hook(tmp_path, shell, "--grace", "300", PATH="/usr/bin:/bin")

    assert (0, "") == (done.returncode, done.stderr)
    assert f"leave {sys.executable} ['leave', '--grace', '300']\n" == done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_a_worker_that_has_renamed_itself_is_found_by_its_program(
    tmp_path: Path, shell: list[str]
) -> None:
    """As distributed.proctitle does where setproctitle is installed."""
    process(tmp_path, 7, "dask worker [tcp://s:8786]", exe=sys.executable)
    done = run_hook(tmp_path, shell, PATH="/usr/bin:/bin")

    assert f"leave {sys.executable} ['leave']\n" == done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_else_the_python_of_the_dask_on_path(tmp_path: Path, shell: list[str]) -> None:
    process(tmp_path, 1, "sh", "-c", "sleep 1")
    (tmp_path / "dask").write_text(f"#!{sys.executable}\n")
    (tmp_path / "dask").chmod(0o755)
    done = run_hook(tmp_path, shell, PATH=f"{tmp_path}:/usr/bin:/bin")

    assert f"leave {sys.executable} ['leave']\n" == done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_a_python_without_distributed_is_passed_over(tmp_path: Path, shell: list[str]) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    process(tmp_path, 1, str(bare), "/x/bin/dask", "worker")
    path = f"{tmp_path}:/usr/bin:/bin"
    done = run_hook(tmp_path, shell, PATH=path, PYTHONPATH=":".join(sys.path))

    assert f"leave {tmp_path / 'python'} ['leave']\n" == done.stdout


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("code", [0, 3])
def test_the_hook_never_fails(tmp_path: Path, shell: list[str], code: int) -> None:
    done = run_hook(tmp_path, shell, code=code, PATH=f"{Path(sys.executable).parent}:/bin")
    assert 0 == done.returncode

    nowhere = run_hook(tmp_path, shell, PATH=str(tmp_path))
    assert 0 == nowhere.returncode
    assert "no Python with distributed was found" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("shell", SHELLS)
def test_what_hangs_in_this_container_is_killed_and_nothing_else(
    tmp_path: Path, shell: list[str]
) -> None:
    def lives_in(container: str) -> subprocess.Popen[bytes]:
        made = subprocess.Popen(["sleep", "60"])
        process(tmp_path, made.pid, "sleep", "60")
        mount = tmp_path / "proc" / str(made.pid) / "ns" / "mnt"
        mount.parent.mkdir()
        mount.symlink_to(container)
        return made

    ours, sidecar = lives_in("mnt:[1]"), lives_in("mnt:[2]")
    (tmp_path / "proc/self").symlink_to(tmp_path / "proc" / str(ours.pid))
    try:
        run_hook(tmp_path, shell, "--grace", "300", PATH="/usr/bin:/bin")
        assert ours.poll() is None
        done = run_hook(
            tmp_path, shell, "--kill-after", "0.1", "--grace", "300", PATH="/usr/bin:/bin"
        )

        assert 0 == done.returncode
        assert -9 == ours.wait(timeout=20)
        assert sidecar.poll() is None
    finally:
        for one in (ours, sidecar):
            one.kill()
            one.wait()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_log_that_cannot_be_written_is_no_obstacle(tmp_path: Path, shell: list[str]) -> None:
    (tmp_path / "log").mkdir()
    done = run_hook(tmp_path, shell, PATH=str(tmp_path))

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


def test_the_zip_is_a_program(tmp_path: Path) -> None:
    (tmp_path / "agent.zip").write_bytes(agent_zip())
    done = subprocess.run(
        [sys.executable, str(tmp_path / "agent.zip"), "leave", "--grace", "0"],
        env={"HOME": str(tmp_path), "DASK_SCHEDULER_ADDRESS": "tcp://127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert "the time is up" in done.stdout
