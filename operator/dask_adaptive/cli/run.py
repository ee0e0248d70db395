"""`dask-adaptive run`: the operator."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
from typing import Any

import click

from dask_adaptive.cli.access import (
    UNREACHABLE,
    Access,
    cluster_options,
    complain,
    fail,
    namespace_selector_option,
    namespaces_option,
    refuse_both,
)
from dask_adaptive.text import one_line

#: Time for the process to end after all work is done.
EXIT_S = 5.0

#: A log record's own attributes; all others were given as `extra`.
_OWN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


_SECONDS = click.FloatRange(min=0, min_open=True)


@click.command("run", context_settings={"auto_envvar_prefix": "DASK_ADAPTIVE"})
@namespaces_option
@namespace_selector_option
@click.option("--nodes", is_flag=True, help="Watch nodes even with --namespace options.")
@click.option(
    "--budgets", type=click.Choice(["Cluster", "Namespaced"]), default=None,
    help="Watch AdaptiveBudgets even with --namespace options: the scope of their CRD.",
)  # fmt: skip
@click.option(
    "--dev", is_flag=True, allow_from_autoenv=False,
    help="For your machine: kubeconfig, no webhook.",
)  # fmt: skip
@cluster_options
@click.option("--http-port", type=int, default=8080, show_default=True)
@click.option("--webhook-port", type=int, default=8443, show_default=True)
@click.option(
    "--certificate-secret", default="",
    help="Secret with the webhook's certificate. Default: no webhook.",
)  # fmt: skip
@click.option(
    "--certificate-namespace", default="default", show_default=True, help="Its namespace."
)
@click.option(
    "--make-certificate", is_flag=True, help="Fill that Secret, which must exist, and renew it."
)
@click.option(
    "--webhook-host", default="",
    help="Host by which the API server calls the webhook: SERVICE.NAMESPACE.svc.",
)  # fmt: skip
@click.option(
    "--webhook-configuration", default="", metavar="NAME",
    help="MutatingWebhookConfiguration whose caBundle is kept up to date.",
)  # fmt: skip
@click.option(
    "--worker-grace", type=click.IntRange(min=1), default=300, show_default=True,
    help="Grace period of workers' pods in seconds, if their DaskWorkerGroup sets none.",
)  # fmt: skip
@click.option(
    "--hints/--no-hints", default=True, show_default=True,
    help="Have the webhook annotate worker pods for node autoscalers.",
)  # fmt: skip
@click.option(
    "--scheduler-tls-secret", default="", metavar="NAME",
    help="Secret of clusters whose policies name none, in their namespaces. Default: no TLS.",
)  # fmt: skip
@click.option(
    "--adopt", type=click.Choice(["Never", "Annotated", "Always"]), default="Annotated",
    help="Which DaskAutoscalers are adopted: none, those annotated so, or all.",
    show_default=True,
)  # fmt: skip
@click.option(
    "--rest", type=_SECONDS, default=60.0, show_default=True,
    help="Maximum interval between reconciliations of a quiet cluster.",
)  # fmt: skip
@click.option(
    "--resync", type=_SECONDS, default=300.0, show_default=True,
    help="Full resync interval; it repairs what watches miss.",
)  # fmt: skip
@click.option(
    "--qps", type=_SECONDS, default=200.0, show_default=True,
    help="Calls per second to the API server; watches do not count.",
)  # fmt: skip
@click.option(
    "--burst", type=click.IntRange(min=1), default=300, show_default=True,
    help="Calls to the API server at once, after a pause.",
)  # fmt: skip
@click.option("--lease-duration", type=_SECONDS, default=15.0, show_default=True)
@click.option("--renew-deadline", type=_SECONDS, default=10.0, show_default=True)
@click.option("--retry-period", type=_SECONDS, default=2.0, show_default=True)
@click.option(
    "--controller-name", default="dask-adaptive", show_default=True,
    help="Serve the policies with this spec.controllerName.",
)  # fmt: skip
@click.option("--identity", help="Unique name of this replica.")
@click.option(
    "--lease-namespace", default="kube-system", show_default=True,
    help="Namespace of the Lease; operators of one --controller-name must share it.",
)  # fmt: skip
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option("--verbose", is_flag=True, help="Log passes that change nothing, too.")
def command(
    *, access: Access, dev: bool, certificate_secret: str, make_certificate: bool,
    webhook_host: str, webhook_configuration: str, worker_grace: int, adopt: str,
    identity: str | None, log_format: str, verbose: bool, lease_duration: float,
    renew_deadline: float, retry_period: float, rest: float, resync: float, **others: Any,
) -> None:  # fmt: skip
    """
    Run the operator.

    Each option can be given as an environment variable as well: DASK_ADAPTIVE_ and its name in
    capitals (DASK_ADAPTIVE_NAMESPACES holds all of them, separated by spaces).

    \b
    Examples:
      dask-adaptive run --dev                # on your machine, with your kubeconfig
      dask-adaptive run -n team-a -n team-b  # only in these namespaces
    """
    import asyncio

    from dask_adaptive.controller.app import Settings, serve
    from dask_adaptive.controller.certificate import WebhookSettings
    from dask_adaptive.controller.lease import Timing
    from dask_adaptive.kube.annotated import Adopt
    from dask_adaptive.kube.api import KubeError

    refuse_both(others["namespaces"], others["namespace_selector"])
    if not retry_period < renew_deadline < lease_duration:
        raise click.UsageError(
            "--retry-period must be shorter than --renew-deadline, and that shorter than"
            " --lease-duration: else two replicas could act at once"
        )
    if certificate_secret and not webhook_host:
        raise click.UsageError("--certificate-secret needs --webhook-host, which it is valid for")
    webhook = WebhookSettings(
        certificate_secret, webhook_host, make_certificate, webhook_configuration
    )
    set_up_logging(log_format, verbose=verbose)
    settings = Settings(
        # On a developer's machine a restarted operator takes back its Lease at once.
        identity=identity or socket.gethostname() + ("" if dev else f"-{os.getpid()}"),
        address="127.0.0.1" if dev else "0.0.0.0",
        webhook=webhook if certificate_secret and not dev else None,
        grace_s=worker_grace,
        adopt=Adopt(adopt),
        longest_sleep_s=rest,
        resync_s=resync,
        timing=Timing(lease_duration, renew_deadline, retry_period),
        kubeconfig=access.kubeconfig,
        context=access.context,
        **others,  # options that map directly to settings
    )

    async def main() -> None:
        code, why = UNREACHABLE, ""
        try:
            await serve(settings)
            code = 0
        except Exception as exc:
            why = str(exc) or repr(exc)
            raise
        finally:
            hung.args = [code, why]
            hung.start()

    # asyncio waits for all tasks at its end, and a library's may never end: kopf's, if cancelled
    # while it waits for a response head (its `request_cancel_callback` raises then).
    hung = threading.Timer(EXIT_S, _exit)
    hung.daemon = True
    try:
        asyncio.run(main())
    except KubeError as exc:
        fail(str(exc), UNREACHABLE)
    except OSError as exc:
        fail(f"{exc}; is a port in use?", UNREACHABLE)
    except Exception as exc:
        logging.getLogger("dask_adaptive").exception("The operator ends")
        fail(f"internal error: {exc!r}", UNREACHABLE)
    finally:
        hung.cancel()


def _exit(code: int, why: str) -> None:
    """End at once, whatever hangs, with the reason as the last line."""
    if why:
        complain(f"Error: {why}")
    os._exit(code)


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
        return one_line(json.dumps(line, default=str))


class _Text(logging.Formatter):
    """Formats each record as one line; tracebacks are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{k}={v}" for k, v in _extra(record).items())
        return one_line(f"{super().formatMessage(record)} {fields}".rstrip())

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {one_line(line)}" for line in lines)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {k: v for k, v in vars(record).items() if k not in _OWN}


def set_up_logging(style: str, *, verbose: bool) -> None:
    """Log to stderr; of kopf and distributed only warnings."""
    handler = logging.StreamHandler(sys.stderr)
    text = _Text("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_Json() if style == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("dask_adaptive").setLevel(logging.DEBUG if verbose else logging.INFO)
