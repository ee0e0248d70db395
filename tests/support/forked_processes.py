"""
Schedulers and workers that start in a tenth of a second: forks of one process that has imported
distributed already. What they run is the same, `distributed.cli`, with an environment of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dask_adaptive_lab import local as processes

MODULES = ("distributed.cli.dask_scheduler", "distributed.cli.dask_worker")


@contextmanager
def fork_server(path: Path, program: Sequence[str] = (__file__,)) -> Iterator[str]:
    """It listens at a path while the context is open; `program` calls `serve`."""
    server = subprocess.Popen([sys.executable, *program, str(path)], stdout=subprocess.PIPE)
    assert server.stdout is not None
    server.stdout.readline()  # it listens
    try:
        yield str(path)
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


@contextmanager
def forking(server: Path) -> Iterator[None]:
    """Rehearsals start their processes by that server; those with nannies as ever."""
    ForkedProcess.server = server
    real, processes.start_child = processes.start_child, ForkedProcess.start
    try:
        yield
    finally:
        processes.start_child = real


class ForkedProcess:
    """What of `asyncio.subprocess.Process` a rehearsal uses."""

    server: Path

    def __init__(
        self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.pid: int = pid
        self.returncode: int | None = None
        self._writer = writer  # closed when it is collected, and with it the connection
        self._ended = asyncio.ensure_future(self._end(reader))

    @classmethod
    async def start(cls, command: Sequence[str], log: Path, env: Mapping[str, str]) -> Any:
        is_ours = command[0] == sys.executable and command[2] in MODULES
        if not is_ours or "--nanny" in command:
            return await REAL(command, log, env)
        return await cls.fork(cls.server, command[2:], log, env)

    @classmethod
    async def fork(
        cls, server: Path, command: Sequence[str], log: Path, env: Mapping[str, str]
    ) -> ForkedProcess:
        """Run a module, `command[0]`, in a fork of that server."""
        reader, writer = await asyncio.open_unix_connection(str(server))
        request = {"command": list(command), "log": str(log), "env": {**os.environ, **env}}
        writer.write(json.dumps(request).encode() + b"\n")
        return cls(int(await reader.readline()), reader, writer)

    async def _end(self, reader: asyncio.StreamReader) -> None:
        self.returncode = int(await reader.readline() or -1)
        self._writer.close()

    async def wait(self) -> int:
        await asyncio.shield(self._ended)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)


REAL = processes.start_child


def serve(path: str, modules: Sequence[str]) -> None:
    """Fork for each request; whoever asked is told the pid, and in the end the exit code."""
    import importlib

    for module in modules:
        importlib.import_module(module)
    children: dict[int, socket.socket] = {}
    wakeup, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(wakeup, selectors.EVENT_READ)
    print("listening", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is wakeup:
                wakeup.recv(4096)
                reap(children)
                continue
            connection, _ = listener.accept()
            request = json.loads(connection.makefile().readline())
            pid = os.fork()
            if pid == 0:
                become(request)
            children[pid] = connection
            connection.sendall(b"%d\n" % pid)


def reap(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with children.pop(pid) as connection:
            code = os.waitstatus_to_exitcode(status)
            connection.sendall(b"%d\n" % code)


def become(request: Any) -> None:
    """In the child: what `python -m` would have made of it."""
    import runpy

    import dask

    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    with open(request["log"], "ab") as log, open(os.devnull, "rb") as nothing:
        for target, file in ((0, nothing), (1, log), (2, log)):
            os.dup2(file.fileno(), target)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[1:1] = [p for p in request["env"].get("PYTHONPATH", "").split(":") if p]
    dask.config.refresh()
    sys.argv = request["command"]
    code = 0
    try:
        runpy.run_module(request["command"][0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1], (*MODULES, "distributed.shuffle", "dask.dataframe"))
