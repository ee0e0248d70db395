"""What the webhook knows of a pod, and what it asks for; and the hook that it adds."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.controller.webhook import Injector
from dask_adaptive.kube.agent_config import FRESH_S, AgentConfig, Consent
from dask_adaptive.kube.agent_zip import LEAVE, MOUNT, agent_zip, bundle
from dask_adaptive.kube.api import ApiUnreachable, NotFound
from dask_adaptive.kube.inject import Skip
from dask_adaptive.kube.notes import read_mark
from support import kube_objects as ko
from support.json_patch import apply
from support.kube_bodies import dask_pod
from support.tables import table

POLLING = "DASK_DISTRIBUTED__CLIENT__SCHEDULER_INFO_INTERVAL"


def pod(**spec):
    return dask_pod("worker", **{"terminationGracePeriodSeconds": 30, **spec})


class Api:
    """An API server that has some objects, and a namespace; the calls are counted."""

    def __init__(self, *objects):
        self.objects = {"ns": {"metadata": {}}, **{o["metadata"]["name"]: o for o in objects}}
        self.calls = list[tuple[str, str]]()
        self.broken = False

    def count(self, verb, name=None):
        return sum(v == verb and name in (None, n) for v, n in self.calls)

    async def get(self, path):
        return self._take("GET", path)

    async def patch(self, path, body, **_):
        return self._take("PATCH", path)

    async def list(self, path, **_):
        self._take("LIST", path)
        return [o for o in self.objects.values() if o.get("kind") == "AdaptivePolicy"]

    def _take(self, verb, path):
        self.calls.append((verb, path.rpartition("/")[2]))
        if self.broken:
            raise ApiUnreachable("no answer")
        name = path.rpartition("/")[2]
        if verb == "GET" and name not in self.objects:
            raise NotFound(path)
        return dict(self.objects.get(name, {}))


class Scene:
    def __init__(self, api, *watched):
        self.now = 0.0
        made = api
        config = AgentConfig(made, bundle(), clock=lambda: self.now)
        consent = Consent(made, lambda: self.now, ttl_s=1e9)
        world = ko.world_of(*watched)
        self.injector = Injector(made, world, config, consent, Metrics(), grace_s=300)

    async def spec(self, body, **more):
        """Of the pod, once it is injected."""
        outcome = await self.injector._decide({"object": body, "namespace": "ns", **more})
        if isinstance(outcome, Skip):
            raise AssertionError(outcome.why)
        return dict(apply(body, outcome.patch)["spec"])

    async def grace(self, body, **more):
        """The grace period that the pod is given; None: its own."""
        after = (await self.spec(body, **more))["terminationGracePeriodSeconds"]
        return None if after == body["spec"]["terminationGracePeriodSeconds"] else int(after)

    async def variables(self, body):
        entries = (await self.spec(body))["containers"][0].get("env", [])
        return {e["name"]: e["value"] for e in entries if "PRELOAD" not in e["name"]}


def group(grace_s):
    body = ko.group()
    grace = {} if grace_s is None else {"terminationGracePeriodSeconds": grace_s}
    body["spec"]["worker"]["spec"] = grace
    return body


@table(
    "of_pod, of_group, given",
    nobody_asked_for_30=(30, None, 300),
    somebody_did=(30, 30, None),
    their_own=(45, 45, None),
    set_by_somebody_else=(3600, None, None),
)
@pytest.mark.parametrize("watched", [True, False])
async def test_grace(of_pod, of_group, given, watched):
    objects = [ko.cluster(), group(of_group)]
    scene = Scene(Api(*objects), *(objects if watched else []))

    assert given == await scene.grace(pod(terminationGracePeriodSeconds=of_pod))


KEEP = {"cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"}


@table(
    "disruption, own, expected",
    it_will_soon_be_busy=({}, {}, KEEP),
    not_wanted=({"hints": False}, {}, set()),
    not_understood=({"hints": "?"}, {}, set()),
    no_policy=(None, {}, set()),
    somebody_says_otherwise=({}, dict.fromkeys(KEEP, "mine"), set()),
)
async def test_pods_of_new_workers_bear_the_hints(disruption, own, expected):
    policy = ko.policy()
    policy["spec"]["disruption"] = disruption
    scene = Scene(Api(), *([ko.cluster()] if disruption is None else [ko.cluster(), policy]))
    body = pod()
    body["metadata"] |= {"annotations": own} if own else {}
    outcome = await scene.injector._decide({"object": body, "namespace": "ns"})
    assert not isinstance(outcome, Skip)
    after = apply(body, outcome.patch)["metadata"]["annotations"]

    assert expected == {name for name in KEEP if after.get(name, "mine") != "mine"}
    assert (disruption == {}) == read_mark(after).keep


async def test_the_pods_own_grace_stays_where_its_group_cannot_be_read():
    scene = Scene(Api(ko.cluster()))

    assert await scene.grace(pod()) is None


async def test_a_burst_of_workers_is_one_write():
    api = Api()
    scene = Scene(api, ko.cluster(), group(None))
    for expected in (1, 1, 2):
        await asyncio.gather(*(scene.grace(pod()) for _ in range(300)))
        assert expected == api.count("PATCH")
        scene.now += FRESH_S / 2
    assert 1 == api.count("GET"), "the namespace's consent, once"


async def test_a_write_that_failed_is_tried_again_by_the_next_pod():
    api = Api()
    scene = Scene(api, ko.cluster(), group(None))
    await scene.grace(pod(), dryRun=True)
    assert 0 == api.count("PATCH")
    api.broken = True
    with pytest.raises(AssertionError, match="can't be created or checked"):
        await scene.grace(pod())
    api.broken = False

    assert 300 == await scene.grace(pod())
    assert {} == scene.injector._config._locks._locks


def policy_with(name="p", *, relief="Disabled", **metadata):
    made = ko.policy(name, **metadata)
    made["spec"]["scheduler"] = {"relief": {"clientInfo": relief}}
    return made


OFF = {"DASK_ADAPTIVE_RELIEF": "clientInfo=Disabled"}
MANAGED = {"dask-adaptive.dev/managed-by": "annotations"}


@pytest.fixture
def _no_wait(monkeypatch):
    monkeypatch.setattr("dask_adaptive.controller.webhook.SECOND_LOOK_S", 0.0)


@pytest.mark.usefixtures("_no_wait")
@table(
    "watched, listed, expected",
    watched=([policy_with()], [], OFF),
    younger_than_the_watch=([], [policy_with()], OFF),
    none=([], [], {}),
    another_clusters=([], [ko.policy("p", for_="other")], {}),
    going=([policy_with(deletionTimestamp="x")], [], {}),
    makes_no_sense=([policy_with(relief="Sometimes")], [], {}),
    two_contradict=([policy_with("a"), policy_with("b")], [], {}),
    one_of_annotations_goes=([policy_with(), ko.policy("m", labels=MANAGED)], [], OFF),
)
async def test_a_scheduler_starts_with_what_its_policy_says(watched, listed, expected):
    api = Api(ko.cluster(), *listed)
    scene = Scene(api, ko.cluster(), *watched)

    assert expected == await scene.variables(dask_pod("scheduler"))
    assert bool(watched) == (0 == api.count("LIST", "adaptivepolicies"))


async def test_a_worker_starts_with_what_the_watch_has_said():
    api = Api()

    assert {POLLING: "600s"} == await Scene(api, ko.cluster()).variables(pod())
    assert {} == await Scene(api, ko.cluster(), policy_with()).variables(pod())
    assert 0 == api.count("LIST")


async def test_policies_that_cannot_be_listed_keep_no_agent_out(monkeypatch):
    api = Api(ko.cluster())
    monkeypatch.setattr(api, "list", AsyncMock(side_effect=ApiUnreachable("no answer")))

    assert {} == await Scene(api, ko.cluster()).variables(dask_pod("scheduler"))


@pytest.mark.usefixtures("_no_wait")
async def test_a_scheduler_is_sure_of_its_config_map_each_time():
    api = Api(ko.cluster())
    scene = Scene(api, ko.cluster())
    for _ in range(2):
        await scene.variables(dask_pod("scheduler"))

    assert (2, 2) == (api.count("PATCH"), api.count("GET", "etl"))


# --- the hook itself --------------------------------------------------------------------------

#: Stands in for the agent's own program, which has tests of its own: it says how it was started.
SAYS = """\
import sys
print("leave", sys.executable, sys.argv[1:])
sys.exit({code})
"""


@pytest.fixture(params=["dash", "busybox sh", "bash --posix"])
def shell(request):
    program, *words = request.param.split()
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not here")
    return [shutil.which(program) or "", *words]


def run_hook(folder, shell, *words, code=0, path="/usr/bin:/bin"):
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


def process(folder, pid, *words, exe=""):
    """One process, as Linux shows it."""
    where = folder / "proc" / str(pid)
    where.mkdir(parents=True)
    (where / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
    if exe:
        (where / "exe").symlink_to(exe)


@pytest.mark.parametrize("is_renamed", [False, True])
def test_the_hook_uses_the_python_of_the_worker(tmp_path, shell, is_renamed):
    """Also where setproctitle is installed: distributed.proctitle renames the process then."""
    process(tmp_path, 1, "/usr/bin/tini", "--", "dask", "worker", "tcp://s:8786")
    if is_renamed:
        process(tmp_path, 7, "dask worker [tcp://s:8786]", exe=sys.executable)
    else:
        process(tmp_path, 7, sys.executable, "/x/bin/dask", "worker", "tcp://s:8786")
    done = run_hook(tmp_path, shell, "--grace", "300")

    assert (0, "") == (done.returncode, done.stderr)
    assert f"leave {sys.executable} ['leave', '--grace', '300']\n" == done.stdout


def test_else_the_python_of_the_dask_on_path(tmp_path, shell):
    process(tmp_path, 1, "sh", "-c", "sleep 1")
    (tmp_path / "dask").write_text(f"#!{sys.executable}\n")
    (tmp_path / "dask").chmod(0o755)
    done = run_hook(tmp_path, shell, path=f"{tmp_path}:/usr/bin:/bin")

    assert f"leave {sys.executable} ['leave']\n" == done.stdout


def test_a_python_without_distributed_is_passed_over(tmp_path, shell):
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    process(tmp_path, 1, str(bare), "/x/bin/dask", "worker")
    done = run_hook(tmp_path, shell, path=f"{tmp_path}:/usr/bin:/bin")

    assert f"leave {tmp_path / 'python'} ['leave']\n" == done.stdout


@pytest.mark.parametrize("code", [0, 3])
def test_the_hook_never_fails(tmp_path, shell, code):
    done = run_hook(tmp_path, shell, code=code, path=f"{Path(sys.executable).parent}:/bin")
    assert 0 == done.returncode

    nowhere = run_hook(tmp_path, shell, path=str(tmp_path))
    assert 0 == nowhere.returncode
    assert "no Python with distributed was found" in (tmp_path / "log").read_text()


def test_what_hangs_in_this_container_is_killed_and_nothing_else(tmp_path, shell):
    def lives_in(container):
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


def test_a_log_that_cannot_be_written_is_no_obstacle(tmp_path, shell):
    (tmp_path / "log").mkdir()
    done = run_hook(tmp_path, shell, path=str(tmp_path))

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


def test_the_zip_is_a_program(tmp_path):
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
