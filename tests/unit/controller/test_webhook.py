"""What the webhook knows of a pod, and what it asks for; and the hook that it adds."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.controller.webhook import Injector
from dask_adaptive.kube.agent_config import FRESH_S, AgentConfig, Consent
from dask_adaptive.kube.agent_zip import LEAVE, MOUNT, agent_zip, bundle
from dask_adaptive.kube.api import ApiUnreachable
from dask_adaptive.kube.inject import HINTS, Skip
from support import kube_objects as ko
from support.json_patch import apply
from support.kube_bodies import dask_pod
from support.stored_api import StoredApi

POLLING = "DASK_DISTRIBUTED__CLIENT__SCHEDULER_INFO_INTERVAL"


def pod(**spec: Any) -> dict[str, Any]:
    return dask_pod("worker", **{"terminationGracePeriodSeconds": 30, **spec})


def api_of(*bodies: dict[str, Any]) -> StoredApi:
    return StoredApi(ko.namespace(), *bodies)


class Scene:
    def __init__(self, api: StoredApi, *watched: dict[str, Any]) -> None:
        self.now = 0.0
        config = AgentConfig(api, bundle(), clock=lambda: self.now)
        consent = Consent(api, lambda: self.now, ttl_s=1e9)
        world = ko.world_of(*watched)
        self.injector = Injector(api, world, config, consent, Metrics(), grace_s=300)

    async def spec(self, body: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Of the pod, once it is injected."""
        outcome = await self.injector._decide({"object": body, "namespace": "ns", **more})
        if isinstance(outcome, Skip):
            raise AssertionError(outcome.why)
        return dict(apply(body, outcome.patch)["spec"])

    async def grace(self, body: dict[str, Any], **more: Any) -> int | None:
        """The grace period that the pod is given; None: its own."""
        after = (await self.spec(body, **more))["terminationGracePeriodSeconds"]
        return None if after == body["spec"]["terminationGracePeriodSeconds"] else int(after)

    async def variables(self, body: dict[str, Any]) -> dict[str, str]:
        entries = (await self.spec(body))["containers"][0].get("env", [])
        return {e["name"]: e["value"] for e in entries if "PRELOAD" not in e["name"]}


def group(grace_s: int | None) -> dict[str, Any]:
    body = ko.group()
    grace = {} if grace_s is None else {"terminationGracePeriodSeconds": grace_s}
    body["spec"]["worker"]["spec"] = grace
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
    objects = [ko.cluster(), group(of_group)]
    scene = Scene(api_of(*objects), *(objects if watched else []))

    assert given == await scene.grace(pod(terminationGracePeriodSeconds=of_pod))


EVICT, DISRUPT = HINTS


@pytest.mark.parametrize(
    ("disruption", "own", "expected"),
    [
        pytest.param({}, {}, HINTS, id="by-default"),
        pytest.param({"hints": False}, {}, {}, id="not-wanted"),
        pytest.param({"hints": "?"}, {}, {}, id="not-understood"),
        pytest.param(None, {}, {}, id="no-policy"),
        pytest.param({}, {EVICT: "true"}, {EVICT: "true", DISRUPT: "true"}, id="one-is-the-users"),
        pytest.param({}, dict.fromkeys(HINTS, "mine"), dict.fromkeys(HINTS, "mine"), id="both-are"),
    ],
)
async def test_pods_of_new_workers_bear_the_hints(
    disruption: dict[str, Any] | None, own: dict[str, str], expected: dict[str, str]
) -> None:
    policy = ko.policy()
    policy["spec"]["disruption"] = disruption
    scene = Scene(api_of(), *([ko.cluster()] if disruption is None else [ko.cluster(), policy]))
    body = pod()
    body["metadata"] |= {"annotations": own} if own else {}
    outcome = await scene.injector._decide({"object": body, "namespace": "ns"})
    assert not isinstance(outcome, Skip)
    after = apply(body, outcome.patch)["metadata"]["annotations"]

    assert expected == {name: after[name] for name in HINTS if name in after}


async def test_the_pods_own_grace_stays_where_its_group_cannot_be_read() -> None:
    scene = Scene(api_of(ko.cluster()))

    assert await scene.grace(pod()) is None


async def test_a_burst_of_workers_is_one_write() -> None:
    api = api_of()
    scene = Scene(api, ko.cluster(), group(None))
    for expected in (1, 1, 2):
        await asyncio.gather(*(scene.grace(pod()) for _ in range(300)))
        assert expected == api.count("patch")
        scene.now += FRESH_S / 2
    assert 1 == api.count("get"), "the namespace's consent, once"


async def test_a_write_that_failed_is_tried_again_by_the_next_pod() -> None:
    api = api_of()
    scene = Scene(api, ko.cluster(), group(None))
    await scene.grace(pod(), dryRun=True)
    assert 0 == api.count("patch")
    api.errors[""] = ApiUnreachable("no answer")
    with pytest.raises(AssertionError, match="can't be created or checked"):
        await scene.grace(pod())
    api.errors.clear()

    assert 300 == await scene.grace(pod())
    assert {} == scene.injector._config._locks._locks


def policy_with(name: str = "p", *, relief: str = "Disabled", **metadata: Any) -> dict[str, Any]:
    made = ko.policy(name, **metadata)
    made["spec"]["scheduler"] = {"relief": {"clientInfo": relief}}
    return made


OFF = {"DASK_ADAPTIVE_RELIEF": "clientInfo=Disabled"}
MANAGED = {"dask-adaptive.dev/managed-by": "annotations"}


@pytest.fixture
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dask_adaptive.controller.webhook.SECOND_LOOK_S", 0.0)


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
    api = api_of(ko.cluster(), *listed)
    scene = Scene(api, ko.cluster(), *watched)

    assert expected == await scene.variables(dask_pod("scheduler"))
    assert bool(watched) == (0 == api.count("list adaptivepolicies"))


async def test_a_worker_starts_with_what_the_watch_has_said() -> None:
    api = api_of()

    assert {POLLING: "600s"} == await Scene(api, ko.cluster()).variables(pod())
    assert {} == await Scene(api, ko.cluster(), policy_with()).variables(pod())
    assert 0 == api.count("list")


async def test_policies_that_cannot_be_listed_keep_no_agent_out() -> None:
    api = api_of(ko.cluster())
    api.errors["list adaptivepolicies"] = ApiUnreachable("no answer")

    assert {} == await Scene(api, ko.cluster()).variables(dask_pod("scheduler"))


@pytest.mark.usefixtures("_no_wait")
async def test_a_scheduler_is_sure_of_its_config_map_each_time() -> None:
    api = api_of(ko.cluster())
    scene = Scene(api, ko.cluster())
    for _ in range(2):
        await scene.variables(dask_pod("scheduler"))

    assert (2, 2) == (api.count("patch"), api.count("get daskclusters etl"))


# --- the hook itself --------------------------------------------------------------------------

#: Stands in for the agent's own program, which has tests of its own: it says how it was started.
SAYS = """\
import sys
leave, since, began, *others = sys.argv[1:]
assert "--since" == since and 0 < float(began)
print("leave", sys.executable, [leave, *others])
sys.exit({code})
"""


@pytest.fixture(params=["dash", "busybox sh", "bash --posix"])
def shell(request: pytest.FixtureRequest) -> list[str]:
    program, *words = request.param.split()
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not here")
    return [shutil.which(program) or "", *words]


def run_hook(
    folder: Path, shell: list[str], *words: str, code: int = 0, path: str = "/usr/bin:/bin"
) -> subprocess.CompletedProcess[str]:
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
    return subprocess.run(
        [*shell, str(folder / LEAVE), *words],
        env={"PATH": path, "PROC": str(folder / "proc"), "PYTHONPATH": ":".join(sys.path)},
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


@pytest.mark.parametrize("is_renamed", [False, True])
def test_the_hook_uses_the_python_of_the_worker(
    tmp_path: Path, shell: list[str], is_renamed: bool
) -> None:
    """Also where setproctitle is installed: distributed.proctitle renames the process then."""
    process(tmp_path, 1, "/usr/bin/tini", "--", "dask", "worker", "tcp://s:8786")
    if is_renamed:
        process(tmp_path, 7, "dask worker [tcp://s:8786]", exe=sys.executable)
    else:
        process(tmp_path, 7, sys.executable, "/x/bin/dask", "worker", "tcp://s:8786")
    done = run_hook(tmp_path, shell, "--grace", "300")

    assert (0, "") == (done.returncode, done.stderr)
    assert f"leave {sys.executable} ['leave', '--grace', '300']\n" == done.stdout


def test_else_the_python_of_the_dask_on_path(tmp_path: Path, shell: list[str]) -> None:
    process(tmp_path, 1, "sh", "-c", "sleep 1")
    (tmp_path / "dask").write_text(f"#!{sys.executable}\n")
    (tmp_path / "dask").chmod(0o755)
    done = run_hook(tmp_path, shell, path=f"{tmp_path}:/usr/bin:/bin")

    assert f"leave {sys.executable} ['leave']\n" == done.stdout


def test_a_python_without_distributed_is_passed_over(tmp_path: Path, shell: list[str]) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    process(tmp_path, 1, str(bare), "/x/bin/dask", "worker")
    done = run_hook(tmp_path, shell, path=f"{tmp_path}:/usr/bin:/bin")

    assert f"leave {tmp_path / 'python'} ['leave']\n" == done.stdout


@pytest.mark.parametrize("code", [0, 3])
def test_the_hook_never_fails(tmp_path: Path, shell: list[str], code: int) -> None:
    done = run_hook(tmp_path, shell, code=code, path=f"{Path(sys.executable).parent}:/bin")
    assert 0 == done.returncode

    nowhere = run_hook(tmp_path, shell, path=str(tmp_path))
    assert 0 == nowhere.returncode
    assert "no Python with distributed was found" in (tmp_path / "log").read_text()


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
        run_hook(tmp_path, shell, "--grace", "300")
        assert ours.poll() is None
        done = run_hook(tmp_path, shell, "--kill-after", "0.1", "--grace", "300")

        assert 0 == done.returncode
        assert -9 == ours.wait(timeout=20)
        assert sidecar.poll() is None
    finally:
        for one in (ours, sidecar):
            one.kill()
            one.wait()


def test_a_log_that_cannot_be_written_is_no_obstacle(tmp_path: Path, shell: list[str]) -> None:
    (tmp_path / "log").mkdir()
    done = run_hook(tmp_path, shell, path=str(tmp_path))

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
