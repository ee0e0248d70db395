"""Which worker this container runs, and how to reach its scheduler; for `leave.py`."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dask_adaptive_agent.naming import is_process_of

#: Options of `dask worker` after which its address need not be an IP of this pod.
ADDRESS_OPTIONS = ("--contact-address", "--listen-address", "--host", "--interface")

TLS_OPTIONS = {
    "--tls-ca-file": "tls_ca_file",
    "--tls-cert": "tls_worker_cert",
    "--tls-key": "tls_worker_key",
}


class Identity(NamedTuple):
    scheduler: str  # empty: not known
    names: list[str]
    hosts: list[str]  # IPs that are this pod's alone
    tls: Mapping[str, str]

    def connection_args(self) -> dict[str, Any]:
        from distributed.security import Security

        stock: Any = Security
        security = stock(**self.tls, require_encryption=True) if self.tls else stock()
        args: dict[str, Any] = security.get_connection_args("worker")
        return args

    def is_connected(self) -> bool:
        """
        Whether a process here, but this one, has a connection to the scheduler, or may have one.

        A worker keeps one as long as it is a worker of that scheduler.
        """
        import psutil  # type: ignore[import-untyped]  # distributed needs it as well

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

    def among(self, workers: Mapping[str, str]) -> list[str]:
        """Addresses of this pod's workers, of (address, name); by name only if no IP says so."""
        from distributed.comm.addressing import get_address_host

        here = [address for address in workers if get_address_host(address) in self.hosts]
        return here or [
            address
            for address, name in workers.items()
            if any(name == own or is_process_of(name, own) for own in self.names)
        ]


def identify(*, shared_host: bool) -> Identity:
    """From the environment, which the worker has as well, and from its command line."""
    name = os.environ.get("DASK_WORKER_NAME", "")
    commands = list(_worker_commands())
    # One container may run several of them.
    command = next((c for c in commands if name in c), next(iter(commands), []))
    options = _options(command)
    name = name or options.get("--name", "")
    tls = {TLS_OPTIONS[key]: value for key, value in options.items() if key in TLS_OPTIONS}
    moved = any(option in options for option in ADDRESS_OPTIONS)
    return Identity(
        scheduler=_scheduler(command, options),
        names=[name] if name else [],
        hosts=[] if shared_host or moved else _own_ips(),
        tls=tls,
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


def _options(command: list[str]) -> dict[str, str]:
    """`--key value` and `--key=value` of a command line."""
    out = {}
    for word, following in zip(command, [*command[1:], ""]):
        if word.startswith("--"):
            key, given, value = word.partition("=")
            out[key] = value if given else following
    return out


def _worker_commands() -> Iterator[list[str]]:
    """Command lines of Dask workers in this container, oldest process first."""
    pids = sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    here = os.readlink("/proc/self/ns/mnt")
    for pid in pids:
        with contextlib.suppress(OSError):
            # A pod may share its processes among its containers, or see those of the node.
            if os.readlink(f"/proc/{pid}/ns/mnt") != here:
                continue
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if _is_worker(words):
                yield words


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
