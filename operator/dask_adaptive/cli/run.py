"""`dask-adaptive run`: the operator."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
from pathlib import Path

import click

from dask_adaptive.cli.access import UNREACHABLE, fail

#: What a log record has by itself; all else was given as `extra`.
_OWN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _env(name: str) -> str:
    return f"DASK_ADAPTIVE_{name}"


@click.command("run")
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    multiple=True,
    envvar=_env("NAMESPACES"),
    help="Serve only this namespace; may be repeated. Default: all.",
)
@click.option("--dev", is_flag=True, help="On your machine: kubeconfig, no webhook, no lease.")
@click.option("--context", help="Context of the kubeconfig.")
@click.option("--http-port", type=int, default=8080, show_default=True, envvar=_env("HTTP_PORT"))
@click.option(
    "--webhook-port", type=int, default=8443, show_default=True, envvar=_env("WEBHOOK_PORT")
)
@click.option(
    "--certificates",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar=_env("CERTIFICATES"),
    help="Folder with tls.crt and tls.key for the webhook. Default: no webhook.",
)
@click.option(
    "--worker-grace",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    envvar=_env("WORKER_GRACE"),
    help="Seconds that pods of workers have to end, where their DaskWorkerGroup sets none.",
)
@click.option(
    "--hints/--no-hints",
    default=True,
    show_default=True,
    envvar=_env("HINTS"),
    help="Annotate pods of pinned and busy workers, for autoscalers of machines.",
)
@click.option(
    "--adopt",
    type=click.Choice(["Never", "Annotated", "Always"]),
    default="Annotated",
    show_default=True,
    envvar=_env("ADOPT"),
    help="Which DaskAutoscalers are taken over: none, those annotated so, or all.",
)
@click.option("--identity", envvar=_env("IDENTITY"), help="Unique name of this replica.")
@click.option(
    "--lease-namespace", default="default", show_default=True, envvar=_env("LEASE_NAMESPACE")
)
@click.option("--deployment", default="", envvar=_env("DEPLOYMENT"), help="To own the Lease.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    envvar=_env("LOG_FORMAT"),
)
@click.option("--verbose", is_flag=True, envvar=_env("VERBOSE"), help="Log what is held, too.")
def command(
    namespaces: tuple[str, ...],
    dev: bool,
    context: str | None,
    http_port: int,
    webhook_port: int,
    certificates: Path | None,
    worker_grace: int,
    hints: bool,
    adopt: str,
    identity: str | None,
    lease_namespace: str,
    deployment: str,
    log_format: str,
    verbose: bool,
) -> None:
    """
    Run the operator.

    Each option can be given as an environment variable as well: DASK_ADAPTIVE_ and its name in
    capitals (DASK_ADAPTIVE_NAMESPACES holds all of them, separated by spaces).
    """
    from dask_adaptive.controller.app import serve
    from dask_adaptive.controller.settings import Settings
    from dask_adaptive.kube.adoption import Adopt
    from dask_adaptive.kube.errors import KubeError

    set_up_logging(log_format, verbose=verbose)
    settings = Settings(
        identity=identity or f"{socket.gethostname()}-{os.getpid()}",
        namespaces=namespaces,
        lease_namespace=lease_namespace,
        lease=not dev,
        deployment=deployment,
        address="127.0.0.1" if dev else "0.0.0.0",
        http_port=http_port,
        webhook_port=webhook_port,
        certificates=None if dev else certificates,
        grace_s=worker_grace,
        hints=hints,
        adopt=Adopt(adopt),
        context=context,
    )
    try:
        asyncio.run(serve(settings))
    except KubeError as exc:
        fail(str(exc), UNREACHABLE)
    except OSError as exc:
        fail(f"{exc}; is a port in use, or a certificate missing?", UNREACHABLE)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{k}={v}" for k, v in _extra(record).items())
        return f"{super().format(record)} {fields}".rstrip()


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {k: v for k, v in vars(record).items() if k not in _OWN}


def set_up_logging(style: str, *, verbose: bool) -> None:
    """Log to stderr; kopf and distributed only when something is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    text = _Text("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_Json() if style == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("dask_adaptive").setLevel(logging.DEBUG if verbose else logging.INFO)
