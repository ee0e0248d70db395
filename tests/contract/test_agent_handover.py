"""Processes of `dask worker` that are asked to end: nothing runs twice, and none hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, wait

from dask_adaptive_agent import wire
from dask_adaptive_agent.worker_side.handover import GRACE
from support.agent_work import ask, until

OPERATOR = Path(__file__).parents[2] / "operator"
BELL, TERM, INT = signal.SIGURG, signal.SIGTERM, signal.SIGINT
#: No single wait of a test may take longer; a machine under load is slow, a hang is a failure.
PATIENCE_S = 60.0
#: What ends at once does so within this time, also under load: `Nanny.close` gives a task 10 s.
AT_ONCE_S = 30.0


def _by_value() -> Callable[..., bytes]:
    # Functions of a module that workers do not have go by value only when they are nested.
    def work(i: Any, runs: str, until: str = "") -> bytes:
        """Run until a file is there."""
        import os
        import time

        with open(runs, "a") as file:
            file.write(f"{i}\n")
        while until and not os.path.exists(until):
            time.sleep(0.02)
        return b"x" * 100_000

    return work


work = _by_value()


class Processes:
    """All that a test starts; all is ended with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runs = str(directory / "runs")
        Path(self.runs).touch()
        self.address = ""
        self.options = ["--no-dashboard"]
        self._all: list[asyncio.subprocess.Process] = []

    def ran(self) -> list[str]:
        return sorted(Path(self.runs).read_text().split())

    def log(self, process: asyncio.subprocess.Process) -> str:
        return (self.directory / f"{self._all.index(process)}.log").read_text()

    async def start(self, *command: str, **env: str) -> asyncio.subprocess.Process:
        """A process of its own group, in a clean environment, its output in a file."""
        base = {k: v for k, v in os.environ.items() if not k.startswith(("DASK", "PYTHONPATH"))}
        with (self.directory / f"{len(self._all)}.log").open("w") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, stdout=log, stderr=log, start_new_session=True,
                env={**base, "PYTHONUNBUFFERED": "1", **env}, cwd=self.directory,
            )  # fmt: skip
        self._all.append(process)
        return process

    async def scheduler(self, *, agent: bool = True) -> asyncio.subprocess.Process:
        file = self.directory / "scheduler.json"
        process = await self.start(
            "-m", "dask", "scheduler", "--port", "0", "--host", "127.0.0.1",
            "--scheduler-file", str(file), *self.options,
            *(["--preload", "dask_adaptive_agent.preload"] if agent else []),
            PYTHONPATH=str(OPERATOR),
        )  # fmt: skip
        await until(lambda: file.exists() and file.read_text().strip().endswith("}"), PATIENCE_S)
        self.address = json.loads(file.read_text())["address"]
        return process

    async def worker(self, name: str, *options: str, **env: str) -> asyncio.subprocess.Process:
        """Nothing of ours is where it could be imported."""
        return await self.start(
            "-m", "dask", "worker", self.address, "--name", name, "--nthreads", "1",
            "--host", "127.0.0.1", "--local-directory", str(self.directory), *self.options,
            *options, **env,
        )  # fmt: skip

    async def close(self) -> None:
        for process in self._all:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its nanny's children too
        await asyncio.gather(*(process.wait() for process in self._all))


async def ended(process: asyncio.subprocess.Process, within_s: float = PATIENCE_S) -> None:
    await asyncio.wait_for(process.wait(), within_s)


@contextlib.asynccontextmanager
async def cluster(
    directory: Path, *, agent: bool = True, options: Any = (), **security: Any
) -> AsyncIterator[tuple[Processes, Client]]:
    """A scheduler, a worker that stays, and a client."""
    p = Processes(directory)
    p.options += options
    try:
        await p.scheduler(agent=agent)
        async with Client(p.address, asynchronous=True, **security) as client:
            await p.worker("other", "--no-nanny")
            await client.wait_for_workers(1)
            yield p, client
    finally:
        await p.close()


class Doomed:
    """A worker, or several of one process, with results that nobody else has, and running tasks."""

    def __init__(self, p: Processes, client: Client) -> None:
        self._p, self._client = p, client
        self._may_end = p.directory / "may-end"
        self.futures: list[Any] = []

    async def start(self, *options: str, workers: int = 1, **env: str) -> None:
        self.process = await self._p.worker("w", *options, **env)
        await self._client.wait_for_workers(1 + workers)
        info = (await self._client.scheduler.identity())["workers"]
        self.addresses = [a for a, row in info.items() if str(row["name"]) != "other"]
        for i in range(6):
            self._submit(i, self.addresses)
        await wait(self.futures)
        for n, address in enumerate(self.addresses):
            self._submit(f"task-{n}", [address], str(self._may_end))
        await until(lambda: 6 + workers == len(self._p.ran()))

    def _submit(self, i: Any, workers: list[str], until: str = "") -> None:
        where: dict[str, Any] = {"workers": workers, "allow_other_workers": True}
        self.futures.append(
            self._client.submit(work, i, self._p.runs, until, key=f"k-{i}", **where)
        )

    async def until_departing(self) -> None:
        async def check() -> None:
            while len((await ask(self._p.address, wire.OBSERVE))["departures"]) < len(
                self.addresses
            ):
                await asyncio.sleep(0.05)

        await asyncio.wait_for(check(), PATIENCE_S)

    async def hands_over(self) -> None:
        """It waits for its tasks, ends, and nothing has run twice."""
        assert self.process.returncode is None
        self._may_end.touch()
        await ended(self.process)
        await self._client.gather(self.futures)
        assert len(self.futures) == len(self._p.ran()), self._p.log(self.process)


def send(process: asyncio.subprocess.Process, signum: int) -> None:
    process.send_signal(signum)


def to_group(process: asyncio.subprocess.Process, signum: int) -> None:
    """As `tini -g`, or a terminal."""
    os.killpg(process.pid, signum)


def ring_and_term(process: asyncio.subprocess.Process, signum: int) -> None:
    """As the hook and then the kubelet, which did not wait for it."""
    send(process, BELL)
    asyncio.get_running_loop().call_later(0.3, send, process, signum)


FORK = {"DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "fork"}


@pytest.mark.parametrize(
    ("options", "how", "signum", "env"),
    [
        pytest.param([], send, TERM, {}, id="nanny"),
        pytest.param([], to_group, TERM, {}, id="group"),
        pytest.param([], to_group, TERM, FORK, id="group-of-a-fork", marks=pytest.mark.long),
        pytest.param([], send, BELL, {}, id="bell"),
        pytest.param([], ring_and_term, TERM, {}, id="bell-then-term", marks=pytest.mark.long),
        pytest.param(["--no-nanny"], send, TERM, {}, id="no-nanny"),
        pytest.param(["--no-nanny"], send, BELL, {}, id="no-nanny-bell", marks=pytest.mark.long),
        pytest.param(["--nworkers", "2"], to_group, TERM, {}, id="two", marks=pytest.mark.long),
        pytest.param(["--lifetime", "1h"], send, TERM, {}, id="lifetime", marks=pytest.mark.long),
    ],
)
async def test_what_is_asked_to_end_hands_over(
    tmp_path: Path, options: list[str], how: Any, signum: int, env: dict[str, str]
) -> None:
    async with cluster(tmp_path) as (p, client):
        doomed = Doomed(p, client)
        await doomed.start(*options, workers=1 + ("--nworkers" in options), **env)

        how(doomed.process, signum)
        await doomed.until_departing()
        await doomed.hands_over()

        rows = (await ask(p.address, wire.OBSERVE))["redone"]
        assert {0} == set(rows.values())


@pytest.mark.long
async def test_over_tls(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    ca = trustme.CA()
    pem, authority = tmp_path / "cert.pem", tmp_path / "ca.pem"
    ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    ca.cert_pem.write_to_path(str(authority))
    from distributed import Security

    make: Any = Security
    mine = dict.fromkeys(("tls_client_cert", "tls_client_key"), str(pem))
    security = make(tls_ca_file=str(authority), require_encryption=True, **mine)
    files = ["--tls-ca-file", str(authority), "--tls-cert", str(pem), "--tls-key", str(pem)]
    async with cluster(
        tmp_path, options=["--protocol", "tls", *files], security=security
    ) as (p, client):  # fmt: skip
        doomed = Doomed(p, client)
        await doomed.start()
        to_group(doomed.process, TERM)
        await asyncio.sleep(2)
        await doomed.hands_over()


@pytest.mark.parametrize("option", ["--nanny", "--no-nanny"])
async def test_an_agent_that_comes_and_goes(tmp_path: Path, option: str) -> None:
    """Attached to a scheduler whose workers run already."""
    text = (
        f"import sys; sys.path.insert(0, {str(OPERATOR)!r})\n"
        "from dask_adaptive_agent.agent import install, uninstall\n"
    )

    async def do(client: Client, what: str) -> None:
        def run(dask_scheduler: Any, text: str = text, what: str = what) -> None:
            space: dict[str, Any] = {}
            exec(text, space)
            space[what](dask_scheduler)

        run.__module__ = "__main__"
        await client.run_on_scheduler(run)

    async def until_caught(process: asyncio.subprocess.Process, expected: bool) -> None:
        def caught() -> bool:
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            (found,) = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
            return bool(int(found, 16) >> (BELL - 1) & 1)

        await until(lambda: expected == caught(), PATIENCE_S)

    async with cluster(tmp_path, agent=False) as (p, client):
        doomed = Doomed(p, client)
        await doomed.start(option)
        await do(client, "install")
        await until_caught(doomed.process, True)
        await do(client, "uninstall")
        await until_caught(doomed.process, False)
        await do(client, "install")
        await until_caught(doomed.process, True)
        await asyncio.sleep(0.5)  # until the nanny's child has it, too
        to_group(doomed.process, TERM)
        await doomed.until_departing()
        await doomed.hands_over()


async def _again(p: Processes, doomed: Doomed) -> None:
    send(doomed.process, TERM)
    await doomed.until_departing()
    send(doomed.process, TERM)


async def _interrupted(p: Processes, doomed: Doomed) -> None:
    to_group(doomed.process, INT)


async def _interrupted_later(p: Processes, doomed: Doomed) -> None:
    send(doomed.process, TERM)
    await doomed.until_departing()
    to_group(doomed.process, INT)


async def _all_at_once(p: Processes, doomed: Doomed) -> None:
    """As when a cluster is deleted."""
    send(p._all[0], TERM)
    send(doomed.process, TERM)


async def _with_its_scheduler_killed(p: Processes, doomed: Doomed) -> None:
    send(doomed.process, TERM)
    await doomed.until_departing()
    send(p._all[0], signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize(
    "end",
    [_again, _interrupted, _interrupted_later, _all_at_once, _with_its_scheduler_killed],
    ids=lambda end: end.__name__.strip("_"),
)  # fmt: skip
async def test_what_ends_at_once(tmp_path: Path, end: Callable[..., Awaitable[None]]) -> None:
    """Though it runs a task that never ends, and has a grace of an hour."""
    async with cluster(tmp_path) as (p, client):
        doomed = Doomed(p, client)
        await doomed.start(**{GRACE: "3600"})

        await end(p, doomed)
        await ended(doomed.process, AT_ONCE_S)


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "stock"])
async def test_a_task_that_is_longer_than_the_grace_is_given_back(
    tmp_path: Path, agent: bool
) -> None:
    """Stock runs again all that was there."""
    async with cluster(tmp_path, agent=agent) as (p, client):
        doomed = Doomed(p, client)
        await doomed.start(**{GRACE: "5"})
        (address,) = doomed.addresses
        there = await client.has_what([address])
        results = len(there[address])  # six, or fewer if the other worker has stolen some
        send(doomed.process, TERM)
        await ended(doomed.process)
        doomed._may_end.touch()
        await client.gather(doomed.futures)

        assert (1 if agent else 1 + results) == len(p.ran()) - len(doomed.futures)


@pytest.mark.long
async def test_a_process_that_ends_while_its_worker_starts(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(1)\n")  # imported more than once
    async with cluster(tmp_path) as (p, client):
        tasks = [client.submit(work, i, p.runs, key=f"q-{i}") for i in range(20)]
        late = await p.worker("late", "--preload", str(tmp_path / "slow.py"))
        await until(lambda: "Nanny plugin dask-adaptive" in p.log(late), PATIENCE_S)
        more = [client.submit(work, i, p.runs, key=f"q-{i}") for i in range(20, 40)]
        send(late, TERM)
        await ended(late)
        await client.gather([*tasks, *more])

        assert 40 == len(p.ran())


@pytest.mark.long
async def test_what_a_task_forks_ends_at_once(tmp_path: Path) -> None:
    def fork() -> int:
        import os
        import signal
        import time

        if not (child := os.fork()):
            time.sleep(60)
            os._exit(0)
        time.sleep(0.5)
        os.kill(child, signal.SIGTERM)
        return os.waitpid(child, 0)[1]

    fork.__module__ = "__main__"
    async with cluster(tmp_path) as (p, client):
        await p.worker("w")
        await client.wait_for_workers(2)
        info = (await client.scheduler.identity())["workers"]
        (nannys,) = [a for a, row in info.items() if row["name"] == "w"]
        assert TERM == await asyncio.wait_for(client.submit(fork, workers=[nannys]), PATIENCE_S)


SCRIPT = """
import sys, time
from distributed import Client, LocalCluster

def main():
    cluster = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None)
    client = Client(cluster)
    def attach(dask_scheduler):
        from dask_adaptive_agent.agent import install
        install(dask_scheduler)
    client.run_on_scheduler(attach)
    client.wait_for_workers(1)
    time.sleep(1)
    client.submit(time.sleep, 600)
    time.sleep(0.5)
    print("ends", flush=True)
    cluster._finalizer = None
    import os, atexit, multiprocessing
    multiprocessing.util._exit_function()
    os._exit(0)

if __name__ == "__main__":
    main()
"""


async def test_a_program_with_a_cluster_of_its_own_ends_at_once(tmp_path: Path) -> None:
    """Python sends its workers SIGTERM, and waits for them."""
    (tmp_path / "script.py").write_text(SCRIPT)
    p = Processes(tmp_path)
    try:
        program = await p.start(str(tmp_path / "script.py"), PYTHONPATH=str(OPERATOR))
        await until(lambda: "ends" in p.log(program) or program.returncode is not None, PATIENCE_S)
        await ended(program, AT_ONCE_S)
        assert 0 == program.returncode, p.log(program)
    finally:
        await p.close()
