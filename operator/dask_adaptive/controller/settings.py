"""How one operator is to run; read from the command line by `cli.run`, passed around whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dask_adaptive.kube.adoption import Adopt


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one operator process."""

    identity: str  # unique among replicas: the pod's name
    namespaces: tuple[str, ...] = ()  # empty: all
    lease_namespace: str = "default"
    lease: bool = True  # without it, this process takes itself for the only one
    deployment: str = ""  # of the operator itself; owns the Lease, so that uninstalling removes it
    address: str = "0.0.0.0"
    http_port: int = 8080  # probes and metrics
    webhook_port: int = 8443
    certificates: Path | None = None  # folder with tls.crt and tls.key; None: no webhook
    grace_s: int = 300  # of workers' pods where nobody set one; the webhook writes it
    hints: bool = True  # whether workers' pods may be annotated
    adopt: Adopt = Adopt.ANNOTATED  # which DaskAutoscalers are taken over
    context: str | None = None  # of the kubeconfig
    resync_s: float = 300.0
