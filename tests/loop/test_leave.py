"""The end of a worker's pod, with real processes: its hook, then SIGTERM. Nothing is redone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from distributed import Client, wait

from dask_adaptive.kube.agent_zip import LEAVE_SOURCE, agent_zip
from dask_adaptive_agent import wire
from dask_adaptive_agent.worker_side import prestop
from dask_adaptive_lab import local as local_processes
from support.agent_work import ask, until

#: No single wait of a test may take longer; a machine under load is slow, a hang is a failure.
PATIENCE_S = 60.0


def _by_value() -> tuple[Callable[..., bytes], Callable[..., bytes]]:
    # Functions of a module that workers do not have go by value only when they are nested.
    def work(i: Any, runs: str, seconds: float = 0.0, until: str = "") -> bytes:
        """Run for so long, and until a file is there."""
        import os
        import time

        with open(runs, "a") as file:
            file.write(f"{i}\n")
        time.sleep(seconds)
        while until and not os.path.exists(until):
            time.sleep(0.02)
        return b"x" * 100_000

    def long_once(i: Any, runs: str, seconds: float) -> bytes:
        import time

        with open(runs, "a+") as file:
            file.seek(0)
            is_first = f"{i}\n" not in file.read()
            file.write(f"{i}\n")
        if is_first:
            time.sleep(seconds)
        return b"x"

    return work, long_once


work, long_once = _by_value()


class Processes:
    """All that a test starts; all is ended with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runs = str(directory / "runs")
        self.zip = directory / "agent.zip"
        self.zip.write_bytes(agent_zip())
        Path(self.runs).touch()
        self.address = ""
        self.env: dict[str, str] = {}
        self._all: list[asyncio.subprocess.Process] = []
        self._count = 0

    def ran(self) -> list[str]:
        return sorted(Path(self.runs).read_text().split())

    def logs(self) -> str:
        """What all of them have said, for messages of failures."""
        return "\n".join(f"{f}:\n{f.read_text()}" for f in sorted(self.directory.glob("*.log")))

    async def start(self, *command: str, **env: str) -> asyncio.subprocess.Process:
        """A process of its own group, in a clean environment, its output in a file."""
        self._count += 1
        base = {k: v for k, v in os.environ.items() if not k.startswith(("DASK", "KUBERNETES"))}
        with (self.directory / f"{self._count}.log").open("w") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *command, stdout=log, stderr=log, start_new_session=True,
                env={**base, "PYTHONPATH": "operator", **self.env, **env},
            )  # fmt: skip
        self._all.append(process)
        return process

    async def start_dask(self, part: str, *options: str) -> asyncio.subprocess.Process:
        """A scheduler or a worker without a nanny, as rehearsals start theirs: which is quicker."""
        self._count += 1
        log = self.directory / f"{self._count}.log"
        command = [sys.executable, "-m", f"distributed.cli.dask_{part}", *options]
        env = {"PYTHONPATH": "operator", **self.env}
        process = await local_processes.start_child(command, log, env)
        self._all.append(process)
        return process

    async def scheduler(
        self, *, agent: bool = True, host: str = "127.0.0.1"
    ) -> asyncio.subprocess.Process:
        file = self.directory / "scheduler.json"
        preload = ["--preload", "dask_adaptive_agent.preload"] if agent else []
        process = await self.start_dask(
            "scheduler", "--port", "0", "--no-dashboard", "--host", host,
            "--scheduler-file", str(file), *preload,
        )  # fmt: skip
        await until(lambda: file.exists() and file.read_text().strip().endswith("}"), PATIENCE_S)
        import json

        self.address = json.loads(file.read_text())["address"]
        return process

    async def worker(
        self, name: str, *options: str, host: str = "127.0.0.1"
    ) -> asyncio.subprocess.Process:
        return await self.start("dask", "worker", *self.worker_options(name, host), *options)

    def worker_options(self, name: str, host: str = "127.0.0.1") -> list[str]:
        options = [
            self.address, "--name", name, "--nthreads", "1", "--no-dashboard",
            "--local-directory", str(self.directory),
        ]  # fmt: skip
        return [*options, "--host", host] if host else options

    async def hook(
        self, name: str, grace_s: float = 50, *more: str, shared_host: bool = True, **env: str
    ) -> asyncio.subprocess.Process:
        """What the pod of worker `name` runs before it ends: the part in Python."""
        program = [sys.executable, str(self.zip), "leave", *more]
        return await self._hook(program, name, grace_s, shared_host, env)

    async def script(self, name: str, grace_s: float) -> asyncio.subprocess.Process:
        """All of it, as the pod's hook starts it."""
        script = self.directory / "leave.sh"
        script.write_text(LEAVE_SOURCE.format(zip=self.zip))
        # Which Python it finds is not the question here.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return await self._hook(["sh", str(script)], name, grace_s, True, {"PATH": path})

    async def _hook(
        self, program: list[str], name: str, grace_s: float, shared_host: bool, env: dict[str, str]
    ) -> asyncio.subprocess.Process:
        self._count += 1
        base = {k: v for k, v in os.environ.items() if not k.startswith(("DASK", "KUBERNETES"))}
        process = await asyncio.create_subprocess_exec(
            *program, "--grace", str(grace_s),
            *(["--shared-host"] if shared_host else []),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            start_new_session=True, cwd=self.directory,
            env={
                **base, "DASK_WORKER_NAME": name, "DASK_SCHEDULER_ADDRESS": self.address,
                **self.env, **env,
            },
        )  # fmt: skip
        self._all.append(process)
        return process

    async def note_kinds(self) -> list[str]:
        answer = await ask(self.address, "adaptive_observe")
        return [note["kind"] for note in answer["notes"]]

    async def close(self) -> None:
        for process in self._all:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its nanny's children too
        await asyncio.gather(*(process.wait() for process in self._all))


async def heard(process: asyncio.subprocess.Process, words: str) -> str:
    """Wait until a process says this; what it has said by then."""
    assert process.stdout
    text = ""
    while words not in text:
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        assert line, text
        text += line.decode()
    return text


async def ended(process: asyncio.subprocess.Process) -> str:
    """Wait for a process; what it has said. It must have ended well."""
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    text = (out or b"").decode()
    assert 0 == process.returncode, text
    return text


async def terminated(process: asyncio.subprocess.Process) -> None:
    """As the kubelet ends a container after its hook."""
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.wait(), PATIENCE_S)


@contextlib.asynccontextmanager
async def processes(directory: Path) -> AsyncIterator[Processes]:
    started = Processes(directory)
    try:
        yield started
    finally:
        await started.close()


@contextlib.asynccontextmanager
async def cluster(directory: Path, *names: str) -> AsyncIterator[tuple[Processes, Client]]:
    """A scheduler with its agent, workers so called, and a client."""
    async with processes(directory) as p:
        await p.scheduler()
        for name in names:
            await p.start_dask("worker", *p.worker_options(name), "--no-nanny")
        async with Client(p.address, asynchronous=True) as client:
            if names:
                await client.wait_for_workers(len(names))
            yield p, client


def own_ip() -> str:
    """An address of this machine that is more than its own, as a pod's is."""
    return next((ip for ip in prestop._own_ips() if ":" not in ip), "") or pytest.skip("no network")


async def addresses(client: Client, *names: str) -> list[str]:
    info: Any = await client.scheduler.identity()
    return [a for a, row in info["workers"].items() if str(row["name"]) in names]


async def running_on(client: Client, *worker_addresses: str) -> None:
    async def check() -> None:
        processing: dict[str, Any] = {}
        while not all(processing.get(address) for address in worker_addresses):
            await asyncio.sleep(0.05)
            processing = dict(await client.processing())

    await asyncio.wait_for(check(), 30)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        pytest.param([], ["w"], id="nanny"),
        pytest.param(["--no-nanny"], ["w"], id="no-nanny"),
        pytest.param(["--nworkers", "2"], ["w-0", "w-1"], id="two-processes"),
    ],
)
async def test_a_pod_ends_and_nothing_is_redone(
    tmp_path: Path, options: list[str], names: list[str]
) -> None:
    """It holds the only copies of results, and runs tasks."""
    async with cluster(tmp_path, "other") as (p, client):
        process = await p.worker("w", *options)
        await client.wait_for_workers(1 + len(names))
        mine = await addresses(client, *names)
        where: dict[str, Any] = {"workers": mine, "pure": False}
        results = [client.submit(work, i, p.runs, **where) for i in range(6)]
        await wait(results)
        may_end = tmp_path / "may-end"
        tasks = [
            client.submit(work, f"task-{n}", p.runs, until=str(may_end), workers=[a], pure=False)
            for n, a in enumerate(mine)
        ]
        await running_on(client, *mine)

        hook = await p.hook("w")
        await heard(hook, "waits for 1 task to finish")
        may_end.touch()
        said = await ended(hook)
        await terminated(process)
        await client.gather([*results, *tasks])

        assert sorted([*map(str, range(6)), *(f"task-{n}" for n in range(len(mine)))]) == p.ran()
        assert "drained: " in said
        assert {wire.N_WORKER_LEFT} == set(await p.note_kinds())
        assert not await addresses(client, *names)


async def test_a_pod_is_known_by_its_ip(tmp_path: Path) -> None:
    """All of its workers, whatever they are called; so the next pod of that name is never meant."""
    ip = own_ip()
    async with processes(tmp_path) as p:
        await p.scheduler(host=ip)
        async with Client(p.address, asynchronous=True) as client:
            for name in ("known-by-ip", "sidecar"):
                await p.worker(name, "--no-nanny", host="")
            await client.wait_for_workers(2)

            said = await ended(await p.hook("known-by-ip", shared_host=False))

            rows = (await ask(p.address, wire.OBSERVE))["departures"]
            assert {"known-by-ip", "sidecar"} == {row["name"] for row in rows}
            assert "drained" in said


@pytest.mark.parametrize("listens", [False, True])
async def test_without_a_scheduler_the_pod_does_not_wait(tmp_path: Path, listens: bool) -> None:
    """Nobody listens; or somebody does, and never answers."""
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", 0))
        if listens:
            somebody.listen()
        async with processes(tmp_path) as p:
            p.address = f"tcp://127.0.0.1:{somebody.getsockname()[1]}"

            said = await asyncio.wait_for(ended(await p.hook("w", grace_s=40)), 25)

    assert "no scheduler at" in said


async def test_a_scheduler_that_is_killed_meanwhile_is_not_waited_for(tmp_path: Path) -> None:
    async with processes(tmp_path) as p:
        scheduler = await p.scheduler()
        await p.worker("w", "--no-nanny")
        async with Client(p.address, asynchronous=True) as client:
            await client.wait_for_workers(1)
            task = client.submit(work, "task", p.runs, 60.0)
            await running_on(client, *(await addresses(client, "w")))
            hook = await p.hook("w", grace_s=300)
            await _until_departing(p.address)
            scheduler.send_signal(signal.SIGKILL)

            said = await asyncio.wait_for(ended(hook), 30)

            task.release()
        assert "no scheduler at" in said


async def test_a_worker_that_is_killed_meanwhile_is_not_waited_for(tmp_path: Path) -> None:
    async with cluster(tmp_path, "other") as (p, client):
        process = await p.worker("w", "--no-nanny")
        await client.wait_for_workers(2)
        mine = await addresses(client, "w")
        task = client.submit(
            long_once, "task", p.runs, 120.0, workers=mine, allow_other_workers=True
        )
        await running_on(client, *mine)
        hook = await p.hook("w", grace_s=300)
        await _until_departing(p.address)
        process.send_signal(signal.SIGKILL)

        said = await ended(hook)

        await task
        assert "has let this worker go" in said
        assert not (await ask(p.address, wire.OBSERVE))["departures"]


@pytest.mark.parametrize("options", [[], ["--no-nanny"]], ids=["nanny", "no-nanny"])
async def test_a_pod_that_ends_while_its_worker_starts_runs_no_task(
    tmp_path: Path, options: list[str]
) -> None:
    """Its process comes after the hook has begun: the hook waits, and the worker gets no task."""
    ip = own_ip()
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(1)\n")  # imported more than once
    name = f"starts-{uuid.uuid4().hex}"  # it is looked for among all processes of this machine
    async with processes(tmp_path) as p:
        await p.scheduler(host=ip)
        async with Client(p.address, asynchronous=True) as client:
            waiting = [client.submit(work, i, p.runs, 0.1, key=f"w-{i}") for i in range(20)]
            process = await p.worker(name, *options, "--preload", str(slow), host="")
            hook = await p.hook(name, shared_host=False)

            said = await ended(hook)
            await terminated(process)

            assert "still starting" in said
            assert "drained" in said, p.logs()
            assert not p.ran()
            await p.worker("stays", "--no-nanny")
            await client.gather(waiting)
            tally = (await ask(p.address, wire.OBSERVE))["redone"]
            assert {0} == set(tally.values())


async def test_without_an_agent_the_pod_ends_as_it_would_without_us(tmp_path: Path) -> None:
    async with processes(tmp_path) as p:
        await p.scheduler(agent=False)
        await p.worker("w", "--no-nanny")
        async with Client(p.address, asynchronous=True) as client:
            await client.wait_for_workers(1)

            said = await asyncio.wait_for(ended(await p.hook("w", grace_s=300)), 30)

            assert await addresses(client, "w"), "nobody has retired it"
    assert "has no agent" in said


async def test_a_worker_whose_scheduler_never_came_up_ends_at_once(tmp_path: Path) -> None:
    """Its process gives up soon, and a hook that ends with its container is one that failed."""
    async with processes(tmp_path) as p:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            p.address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
            await p.worker("w", "--no-nanny")
            hook = await p.script("w", grace_s=300)
            await until(psutil.Process(hook.pid).children, PATIENCE_S)
            hook.send_signal(signal.SIGTERM)  # nothing makes it fail

            said = await asyncio.wait_for(ended(hook), 15)

        assert "nothing to hand over" in said


async def test_a_hook_that_hangs_ends_before_the_pod_is_killed(tmp_path: Path) -> None:
    async with cluster(tmp_path, "other") as (p, _):
        hook = await p.hook("w", grace_s=4, DASK_SCHEDULER_ADDRESS="tcp://192.0.2.1:1")

        await asyncio.wait_for(ended(hook), 4 + 2)


async def test_what_the_start_of_the_hook_took_counts(tmp_path: Path) -> None:
    """On a busy machine Python may take seconds to start, and the kubelet counts them."""
    began_s = float(Path("/proc/uptime").read_text().split()[0]) - 30
    async with cluster(tmp_path, "w") as (p, client):
        long = client.submit(work, 0, str(tmp_path / "runs"), seconds=60, pure=False)
        await running_on(client, *(await addresses(client, "w")))
        hook = await p.hook("w", 34, "--since", str(began_s))

        assert "the time is up" in await asyncio.wait_for(ended(hook), 10)
        long.release()


async def test_a_pod_without_a_worker_ends_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (p, _):
        assert "knows no worker" in await ended(await p.hook("nobody"))


def test_where_the_scheduler_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    file = tmp_path / "scheduler.json"
    file.write_text('{"address": "tls://from-file:1"}')

    assert "" == prestop._scheduler([], {})
    assert "tls://from-file:1" == prestop._scheduler([], {"--scheduler-file": str(file)})
    assert "tcp://s:8786" == prestop._scheduler(["dask", "worker", "tcp://s:8786"], {})
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://from-environment:1")
    assert "tcp://from-environment:1" == prestop._scheduler(["dask", "worker", "tcp://s:8786"], {})


async def test_a_scheduler_with_tls_is_reached(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    ca = trustme.CA()
    certificate = ca.issue_cert("127.0.0.1", "localhost")
    pem, authority = tmp_path / "cert.pem", tmp_path / "ca.pem"
    certificate.private_key_and_cert_chain_pem.write_to_path(str(pem))
    ca.cert_pem.write_to_path(str(authority))
    prefix = "DASK_DISTRIBUTED__COMM__"
    async with processes(tmp_path) as p:
        p.env = {
            f"{prefix}TLS__CA_FILE": str(authority),
            f"{prefix}REQUIRE_ENCRYPTION": "true",
            f"{prefix}DEFAULT_SCHEME": "tls",
            **{
                f"{prefix}TLS__{role}__{what}": str(pem)
                for role in ("SCHEDULER", "WORKER", "CLIENT")
                for what in ("CERT", "KEY")
            },
        }
        await p.scheduler()
        assert p.address.startswith("tls://")

        assert "knows no worker" in await ended(await p.hook("nobody"))


async def _until_departing(address: str) -> None:
    async def check() -> None:
        while not (await ask(address, wire.OBSERVE))["departures"]:
            await asyncio.sleep(0.1)

    await asyncio.wait_for(check(), 30)
