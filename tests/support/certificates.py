"""Certificates of an authority that nobody else knows, for schedulers that take TLS only."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import trustme
from distributed.security import Security

from dask_adaptive.loop.ports import Tls

PAST = datetime.now(UTC) - timedelta(days=2)


class Authority:
    """Signs for schedulers, workers and clients alike, as Dask has it."""

    def __init__(self, key_type: trustme.KeyType = trustme.KeyType.ECDSA) -> None:
        self._ca = trustme.CA(key_type=key_type)
        self.pem = self._ca.cert_pem.bytes().decode()

    def tls(self, *, expired: bool = False, trusted: Authority | None = None) -> Tls:
        """
        One more certificate.

        Args:
            trusted: Whose certificates its holder trusts; None: ours.
        """
        end = {"not_before": PAST - timedelta(days=9), "not_after": PAST} if expired else {}
        pair = self._ca.issue_cert("localhost", "127.0.0.1", **end)
        chain = "".join(pem.bytes().decode() for pem in pair.cert_chain_pems)
        return Tls((trusted or self).pem, chain, pair.private_key_pem.bytes().decode())


def security(tls: Tls) -> Any:
    """For schedulers, workers and clients of a test."""
    return Security(
        tls_ca_file=tls.ca, require_encryption=True,
        **{
            f"tls_{role}_{what}": text
            for role in ("scheduler", "worker", "client")
            for what, text in (("cert", tls.certificate), ("key", tls.key))
        },
    )  # type: ignore[no-untyped-call]  # fmt: skip


def secret(name: str, tls: Tls, **more: Any) -> dict[str, Any]:
    """As `kubectl create secret generic` makes it."""
    texts = {"ca.crt": tls.ca, "tls.crt": tls.certificate, "tls.key": tls.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, **more},
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()},
    }
