"""
What a worker's pod runs before it ends (`preStop`): say so to the scheduler, and wait.

`python agent.zip leave --grace 300`. It runs inside the container of the worker, beside it, with
the same environment and the same Python. It ends, with 0, when nothing would be lost any more,
when nobody answers, or a moment before the grace period is over: a pod never waits for us longer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import json
import math
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dask_adaptive_agent import wire

#: Of the grace period, kept for the end of the worker itself: at most this time and this part.
RESERVE_S, RESERVE_PART = 5.0, 0.1

#: Between two questions: at first, and after this time.
ASK_S, ASK_LATER_S, LATER_S = 0.5, 1.0, 10.0
CONNECT_S, ANSWER_S = 3.0, 6.0
#: For the answer to the last question, out of the reserve.
LAST_ANSWER_S = 0.5
#: Times that nobody listens at the scheduler's address until it counts as gone, and between two.
REFUSALS, REFUSED_S = 3, 2.0
#: A scheduler may be too busy to answer for a while: this part of the time, within these bounds.
SILENCE_PART, SHORTEST_SILENCE_S, LONGEST_SILENCE_S = 0.1, 8.0, 30.0

#: A worker's process that is younger is still on its way to the scheduler.
STARTING_S = 30.0

#: Interpreters wait for threads that look up names; this program does so only for this time.
EXIT_S = 2.0

POD_LOG = "/proc/1/fd/1"

#: Options of `dask worker` after which its address need not be an IP of this pod.
ADDRESS_OPTIONS = ("--contact-address", "--listen-address", "--host", "--interface")

TLS_OPTIONS = {
    "--tls-ca-file": "tls_ca_file",
    "--tls-cert": "tls_worker_cert",
    "--tls-key": "tls_worker_key",
}


class Unanswered(Exception):
    """The scheduler is not there, or there without an answer; says which."""


def main(argv: list[str]) -> int:
    """Never raises. The process ends soon after it has returned, whatever still hangs."""
    try:
        loop = asyncio.new_event_loop()
        options = _options(argv)
        grace_s, late_s = max(0.0, options.grace), _late_s(options.since)
        # A program that is killed at the end of the grace period counts as a hook that failed.
        # With next to no grace it still says so before it ends.
        _ends_after(max(1.0, grace_s - _reserve_s(grace_s) / 2 - late_s))
        leaver = Leaver(identify(shared_host=options.shared_host), grace_s, late_s)
        loop.run_until_complete(leaver.run())
        loop.run_until_complete(leaver.close())
    except (Exception, SystemExit) as error:
        # Fail open: the pod ends as it would without us.
        say(f"cannot hand over what this worker has: {error!r}")
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        _ends_after(EXIT_S)
    return 0


def _ends_after(seconds: float) -> None:
    """This process, with 0, whatever hangs."""
    watchdog = threading.Timer(seconds, os._exit, (0,))
    watchdog.daemon = True
    watchdog.start()


def _late_s(began_s: float) -> float:
    """How much of the grace period has passed; where nobody knows, nothing."""
    with contextlib.suppress(OSError, ValueError), open("/proc/uptime") as file:
        return max(0.0, float(file.read().split()[0]) - began_s)
    return 0.0


def _reserve_s(grace_s: float) -> float:
    """Kept for the end of the worker itself."""
    return min(RESERVE_S, RESERVE_PART * grace_s)


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("leave", description=__doc__, exit_on_error=False)
    parser.add_argument("command", choices=["leave"])
    parser.add_argument("--grace", type=float, default=30.0, help="seconds until the pod is killed")
    parser.add_argument("--since", type=float, default=math.inf, help="uptime when that began")
    parser.add_argument("--shared-host", action="store_true", help="others have this pod's IPs")
    return parser.parse_known_args(argv)[0]


def say(text: str) -> None:
    """To who ran this program, and to the log of the pod: what a hook prints is not kept."""
    line = f"dask-adaptive: {text}\n"
    with contextlib.suppress(OSError):
        sys.stdout.write(line)
        sys.stdout.flush()
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        return  # process 1 is somebody else's
    with contextlib.suppress(OSError):
        ours, log = os.fstat(1), os.stat(POD_LOG)
        if (ours.st_dev, ours.st_ino) != (log.st_dev, log.st_ino):
            with os.fdopen(os.open(POD_LOG, os.O_WRONLY | os.O_NONBLOCK), "w") as out:
                out.write(line)


class Leaver:
    """Asks until it is told that nothing would be lost, or that nobody can help."""

    def __init__(self, who: Identity, grace_s: float, late_s: float) -> None:
        self._who = who
        self._started_at = time.monotonic() - late_s
        self._ends_at = self._started_at + grace_s - _reserve_s(grace_s)
        silence_s = min(LONGEST_SILENCE_S, SILENCE_PART * grace_s)
        self._patience_s = max(SHORTEST_SILENCE_S, silence_s)
        # Ways to name this pod's workers, the surest first: an IP is its own, a name is passed on.
        ways = {"hosts": who.hosts, "names": who.names}
        self._ways: list[dict[str, Any]] = [{way: them} for way, them in ways.items() if them]
        self._questions = list(self._ways)
        self._said = ""
        self._is_known = False  # the scheduler has, or had, a worker of this pod
        self._link: Any = None

    async def run(self) -> None:
        if not self._who.scheduler:
            say("no scheduler's address is known here: nothing can be handed over")
            return
        refusals, heard_at = 0, time.monotonic()
        while self._left_s > 0:
            is_answered = False
            try:
                if await self._step():
                    return
                is_answered, refusals, heard_at = True, 0, time.monotonic()
            except ConnectionRefusedError:
                refusals += 1
            except Unanswered as error:
                self._say(str(error))
            if not is_answered and not self._who.is_connected():
                # Such a worker's own process soon ends, too, and this program with it: Kubernetes
                # would call that a hook that failed.
                say(f"no scheduler at {self._who.scheduler} has this worker: nothing to hand over")
                return
            if refusals >= REFUSALS or time.monotonic() - heard_at > self._patience_s:
                say(f"no scheduler at {self._who.scheduler}: there is nothing to hand over to")
                return
            is_early = time.monotonic() - self._started_at < LATER_S
            pause_s = REFUSED_S if refusals else ASK_S if is_early else ASK_LATER_S
            await asyncio.sleep(min(pause_s, max(0.0, self._left_s)))
        await self._ask_last()

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(link.close_rpc(), 1.0)

    @property
    def _left_s(self) -> float:
        return self._ends_at - time.monotonic()

    async def _step(self) -> bool:
        """Ask once; whether there is nothing more to wait for."""
        if not self._questions and self._may_come():
            self._say("the worker of this pod is still starting: waiting for it")
            self._questions = list(self._ways)
        if not self._questions:
            say("the scheduler knows no worker of this pod")
            return True
        answer = await self._ask(
            wire.LEAVE,
            protocol=wire.PROTOCOL,
            left_ms=max(1, int(self._left_s * 1000)),
            reason="its pod ends",
            **self._questions[0],
        )
        if not isinstance(answer, dict) or "outcomes" not in answer:
            say("this scheduler has no agent: nothing can be handed over")
            return True
        outcomes = answer["outcomes"]
        there = [one for one in outcomes if one["state"] != "gone"]
        if not there and not self._is_known:
            self._questions.pop(0)  # nobody by that description: there may be another one
            return False
        self._is_known = True
        self._say(_summary(there))
        if there and "hosts" not in self._questions[0]:
            # From now on by address: a new pod may come under the same name.
            self._questions = [{"names": [one["name"] for one in there]}]
        return all(one["state"] == wire.DRAINED for one in there)

    def _may_come(self) -> bool:
        """
        Whether a worker starts here that the scheduler does not know yet.

        It would get tasks, and lose them when the pod ends. SIGTERM does not keep it from coming:
        the first process of a container ignores it until it has a handler.
        """
        is_early = time.monotonic() - self._started_at < STARTING_S
        return is_early and bool(self._ways) and self._who.is_starting()

    async def _ask_last(self) -> None:
        """In the last second the scheduler lets the worker go, and gives its tasks to others."""
        with contextlib.suppress(ConnectionRefusedError, Unanswered, asyncio.TimeoutError):
            if self._is_known and await asyncio.wait_for(self._step(), LAST_ANSWER_S):
                return
        say("the time is up; what is still here is lost")

    async def _ask(self, message: str, **request: Any) -> Any:
        """One message; raises `Unanswered`, or `ConnectionRefusedError` when nobody listens."""
        from distributed.core import rpc

        if self._link is None:
            await self._knock()
            args = self._who.connection_args()
            connect: Any = rpc
            self._link = connect(self._who.scheduler, timeout=CONNECT_S, connection_args=args)
        try:
            return await asyncio.wait_for(getattr(self._link, message)(**request), ANSWER_S)
        except (OSError, asyncio.TimeoutError) as error:
            await self.close()
            await self._knock()
            raise Unanswered(f"the scheduler does not answer ({error!r:.200})") from error

    async def _knock(self) -> None:
        """Raise if nobody listens at all: `connect` of distributed retries and does not say."""
        from distributed.comm.addressing import parse_host_port

        host, port = parse_host_port(self._who.scheduler.split("://")[-1].rstrip("/"))
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_S)
        except asyncio.TimeoutError:
            return
        except OSError as error:
            if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
                return  # while a node is drained, the name server may just be moving as well
            raise ConnectionRefusedError(str(error)) from error
        writer.close()

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            say(text)


def _summary(outcomes: list[dict[str, Any]]) -> str:
    if not outcomes:
        return "the scheduler has let this worker go"
    return "; ".join(sorted({f"{one['state']}: {one['message']}" for one in outcomes}))


class Identity(NamedTuple):
    """Which worker this container runs, and how to reach its scheduler."""

    scheduler: str  # empty: not known
    names: list[str]
    hosts: list[str]  # IPs that are this pod's alone
    tls: Mapping[str, str]
    pid: int = 0  # of the worker, or of its nanny; 0: there is none

    def connection_args(self) -> dict[str, Any]:
        from distributed.security import Security

        make: Any = Security
        security = make(**self.tls, require_encryption=True) if self.tls else make()
        return dict(security.get_connection_args("worker"))

    def is_starting(self) -> bool:
        """Whether the worker's process, or the one that its nanny has begun last, is young."""
        import psutil  # type: ignore[import-untyped]  # distributed needs it as well

        if not self.pid:
            return False
        with contextlib.suppress(psutil.Error):  # it has ended
            process = psutil.Process(self.pid)
            for one in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    if time.time() - one.create_time() < STARTING_S:
                        return True
        return False

    def is_connected(self) -> bool:
        """
        Whether a process here, but this one, has a connection to the scheduler, or may have one.

        A worker keeps one as long as it is a worker of that scheduler.
        """
        import psutil

        port = self.scheduler.rsplit(":", 1)[-1].rstrip("/")
        try:
            return any(
                one.status == psutil.CONN_ESTABLISHED
                and str(one.raddr.port) == port
                and one.pid != os.getpid()
                for one in psutil.net_connections("tcp")
                if one.raddr
            )
        except Exception:
            # Fail closed: wait for a scheduler that may be busy.
            return True


def identify(*, shared_host: bool) -> Identity:
    """From the environment, which the worker has as well, and from its command line."""
    name = os.environ.get("DASK_WORKER_NAME", "")
    commands = dict(_worker_commands())
    # One container may run several of them.
    pid = next((p for p, c in commands.items() if name in c), next(iter(commands), 0))
    command = commands.get(pid, [])
    options = _worker_options(command)
    name = name or options.get("--name", "")
    tls = {TLS_OPTIONS[key]: value for key, value in options.items() if key in TLS_OPTIONS}
    moved = any(option in options for option in ADDRESS_OPTIONS)
    return Identity(
        scheduler=_scheduler(command, options),
        names=[name] if name else [],
        hosts=[] if shared_host or moved else _own_ips(),
        tls=tls,
        pid=pid,
    )


def _scheduler(command: list[str], options: Mapping[str, str]) -> str:
    configured = os.environ.get("DASK_SCHEDULER_ADDRESS")
    if not configured:
        configured = next((word for word in command if re.match(r"(tcp|tls|ucx)://", word)), "")
    if not configured and "--scheduler-file" in options:
        with contextlib.suppress(OSError, ValueError):
            content = json.loads(Path(options["--scheduler-file"]).read_text())
            configured = str(content.get("address", ""))
    if not configured:
        import dask

        configured = dask.config.get("scheduler-address", None)
    return configured or ""


def _worker_options(command: list[str]) -> dict[str, str]:
    """`--key value` and `--key=value` of a command line."""
    out = {}
    for word, following in zip(command, [*command[1:], ""]):
        if word.startswith("--"):
            key, given, value = word.partition("=")
            out[key] = value if given else following
    return out


def _worker_commands() -> Iterator[tuple[int, list[str]]]:
    """Dask workers in this container, and their command lines; the oldest process first."""
    pids = sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    here = os.readlink("/proc/self/ns/mnt")
    for pid in pids:
        with contextlib.suppress(OSError):
            # A pod may share its processes among its containers, or see those of the node.
            if os.readlink(f"/proc/{pid}/ns/mnt") != here:
                continue
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if _is_worker(words):
                yield pid, words


def _is_worker(words: list[str]) -> bool:
    bases = [word.rsplit("/", 1)[-1] for word in words]
    if any(base in ("dask-worker", "distributed.cli.dask_worker") for base in bases):
        return True
    return any(pair in (("dask", "worker"), ("dask", "cuda")) for pair in zip(bases, bases[1:]))


def _own_ips() -> list[str]:
    import psutil

    interfaces = psutil.net_if_addrs().values()
    return [ip for one in interfaces for row in one if _is_of_pod(ip := row.address.split("%")[0])]


def _is_of_pod(text: str) -> bool:
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:  # the hardware's address
        return False
    return not (ip.is_loopback or ip.is_link_local)
