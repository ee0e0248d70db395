"""
Keeps the webhook's certificate: reads it from one Secret in the operator's own namespace, serves it
from memory, and writes its authority into the `caBundle` of our webhook configuration.

The Secret may be filled by this process (`makes`), cert-manager, or people. If replicas make a
certificate at the same time, the first write wins: each write carries the Secret's version, and the
others take the result.

A failure here stops nothing else. Without a certificate connections are refused, and the webhook
has the failurePolicy Ignore.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import logging
import secrets
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from prometheus_client import Gauge

from dask_adaptive.backoff import Backoff
from dask_adaptive.kube import api as kube
from dask_adaptive.kube.api import Json, KubeApi, KubeError

logger = logging.getLogger(__name__)

#: Interval of checks of the Secret and the configuration, and the first wait after an error.
LOOK_S, RETRY_S = 30.0, 2.0

#: Validity of our own certificate; it is renewed after two thirds of it.
LIFE = timedelta(days=365)

#: Backdates it, for clients whose clocks are slow.
BACKDATE = timedelta(days=1)

#: How long the old authority stays trusted after a renewal, because other replicas still serve its
#: certificate. No longer: its key may have leaked.
OVERLAP = timedelta(hours=1)

CRT, KEY, CA = "tls.crt", "tls.key", "ca.crt"


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Locations of the webhook's certificate and of the configuration that trusts it."""

    secret: str  # its name, in the operator's namespace
    host: str  # by which the API server calls the webhook: SERVICE.NAMESPACE.svc
    makes: bool = False  # whether this operator fills the Secret
    configuration: str = ""  # name of the webhook's configuration


class BadCertificate(Exception):
    """A Secret's certificate is unusable; its source must replace it."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A usable certificate with its key."""

    data: Mapping[str, str]  # as the Secret has it
    begins: datetime
    ends: datetime
    authorities: tuple[x509.Certificate, ...]
    context: ssl.SSLContext

    @classmethod
    def read(cls, data: Mapping[str, str]) -> Pair:
        """Read a Secret's data. Raises `BadCertificate`."""
        lacks = [name for name in (CRT, KEY, CA) if not data.get(name)]
        if lacks:
            raise BadCertificate(f"it has no {', no '.join(lacks)}")
        chain = _parsed(CRT, data, _certificates)
        key = _parsed(KEY, data, lambda pem: load_pem_private_key(pem, None))
        authorities = _parsed(CA, data, _certificates)
        try:
            context = _serving(chain, key)
        except (ValueError, ssl.SSLError) as exc:
            raise BadCertificate(f"its tls.crt and tls.key do not match: {exc}") from exc
        begins, ends = chain[0].not_valid_before_utc, chain[0].not_valid_after_utc
        return cls(data, begins, ends, tuple(authorities), context)

    def objection(self, host: str) -> str:
        """Return the error of a TLS client that calls this host and trusts ca.crt, or ""."""
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        inbound, outbound = ssl.MemoryBIO(), ssl.MemoryBIO()
        callee = self.context.wrap_bio(inbound, outbound, server_side=True)
        try:
            trusted = b"".join(one.public_bytes(Encoding.DER) for one in self.authorities)
            client.load_verify_locations(cadata=trusted)
            caller = client.wrap_bio(outbound, inbound, server_hostname=host)
            for side in (caller, callee) * 2:
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        except ssl.SSLCertVerificationError as exc:
            return exc.verify_message
        except ssl.SSLError as exc:
            return str(exc)
        return ""


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _certificates(pem: bytes) -> list[x509.Certificate]:
    found = x509.load_pem_x509_certificates(pem)
    for certificate in found:  # the library reads them when they are asked for
        certificate.not_valid_before_utc, certificate.not_valid_after_utc  # noqa: B018
    return found


def _parsed(name: str, data: Mapping[str, str], parse: Callable[[bytes], Any]) -> Any:
    try:
        return parse(base64.b64decode(data[name]))
    except Exception as exc:  # the library raises all kinds of errors for foreign bytes
        raise BadCertificate(f"its {name} can't be read: {exc}") from exc


def _serving(chain: list[x509.Certificate], key: Any) -> ssl.SSLContext:
    """Load the pair. Python reads keys only from files, so the file's key is encrypted."""
    password = secrets.token_hex(32).encode()
    sealed = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join([*map(_pem, chain), sealed]))
        file.flush()
        context.load_cert_chain(file.name, password=password)
    return context


def make(host: str, now: datetime) -> dict[str, str]:
    """
    Make a Secret's data: a certificate of a new authority, whose key is discarded.

    Args:
        now: Aware of its zone.
    """
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dask-adaptive webhook CA")])
    try:
        called: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        called = x509.DNSName(host)

    def begun(subject: x509.Name, owner: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        public = owner.public_key()
        builder = x509.CertificateBuilder(ca_name, subject, public, x509.random_serial_number())
        builder = builder.not_valid_before(now - BACKDATE).not_valid_after(now + LIFE)
        known = x509.SubjectKeyIdentifier.from_public_key(public)
        return builder.add_extension(known, critical=False)

    authority = (
        begun(ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    certificate = (
        begun(x509.Name([]), key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([called]), critical=True)
        .add_extension(signer, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return _encoded({CRT: _pem(certificate), KEY: private, CA: _pem(authority)})


def _usage(**is_for: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
        "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: is_for.get(name, False) for name in names})


def _encoded(texts: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(text).decode() for name, text in texts.items()}


class CertificateKeeper:
    """
    Keeps the Secret, the configuration and the served certificate in step, in every replica.

    Args:
        ends_at: Called with the certificate's end, in seconds since 1970; 0 while it cannot be
            used or renewed.
    """

    def __init__(
        self, api: KubeApi, namespace: str, settings: WebhookSettings, ends_at: Gauge,
        *, wall_clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._api, self._settings, self._ends_at = api, settings, ends_at
        self._where = f"{namespace}/{settings.secret}"
        self._path = kube.SECRETS.path(namespace, settings.secret)
        self._wall_clock = wall_clock
        self._serving: Pair | None = None
        self._has_looked = False
        self._logged = ""
        #: For a server. New connections get the current certificate.
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # Loaded into one context, an RSA and an EC certificate would both stay in use.
        self.context.sni_callback = self._offer

    def waits_for(self) -> str:
        """Name what is missing before the webhook may be called; empty: nothing."""
        return "" if self._has_looked or self._serving else "the webhook's certificate"

    async def run(self) -> None:
        backoff = Backoff(RETRY_S, LOOK_S)
        while True:
            if await self.look():
                backoff.good()
                await asyncio.sleep(LOOK_S)
            else:
                await asyncio.sleep(backoff.next_s())

    async def look(self) -> bool:
        """Make one round; return True if all is well."""
        try:
            await self._look()
        except kube.Conflict:  # with another replica, or an upgrade of the chart
            return False
        except kube.ApiUnreachable as exc:  # this does not concern the certificate
            self._say(str(exc))
            return False
        except (BadCertificate, KubeError) as exc:
            self._ends_at.set(0)
            self._has_looked = True
            self._say(str(exc))
            return False
        self._has_looked = True
        self._say("")
        return True

    async def _look(self) -> None:
        wrong = list[KubeError]()
        # Read before the Secret: a change of the Secret also changes this, and our write fails.
        configuration = await self._configuration(wrong)
        secret = await self._read()
        if self._settings.makes:
            try:
                secret = await self._renewed(secret)
            except KubeError as exc:  # the present one may be usable
                wrong.append(exc)
        try:
            pair = self._pair(secret)
            if objection := pair.objection(self._settings.host):  # the served one may be better
                raise BadCertificate(f"the API server would refuse it: {objection}")
        except BadCertificate as exc:
            fix = (
                "the operator makes a new one as soon as it can write the Secret"
                if self._settings.makes
                else f"it needs {CRT} and {KEY} for {self._settings.host}, and its issuer as {CA}"
            )
            why = f"that in Secret {self._where} can't be used: {exc}; {fix}"
            raise BadCertificate("; ".join([why, *map(str, wrong)])) from exc
        if configuration is not None:
            await self._have_trusted(configuration, pair.data[CA], wrong)
        self._serving = pair
        self._ends_at.set(pair.ends.timestamp())
        if wrong:
            raise wrong[0]

    async def _read(self) -> Json:
        try:
            return await self._api.get(self._path)
        except kube.NotFound as exc:
            namespace, _, name = self._where.partition("/")
            fix = (
                f"create an empty one, which the operator fills: kubectl create secret generic"
                f" {name} -n {namespace}"
                if self._settings.makes
                else f"create it with {CRT}, {KEY} and {CA}, or find out why cert-manager does not"
            )
            raise BadCertificate(f"there is no Secret {self._where}; {fix}") from exc

    def _pair(self, secret: Json) -> Pair:
        data = secret.get("data") or {}
        if self._serving is not None and self._serving.data == data:
            return self._serving
        return Pair.read(data)

    async def _renewed(self, secret: Json) -> Json:
        """Return the Secret, with a new certificate if one is due."""
        why, data = self._due(secret)
        if not data:
            return secret
        meta = {"resourceVersion": secret["metadata"]["resourceVersion"]}
        try:
            secret = await self._api.patch(self._path, {"metadata": meta, "data": data})
        except kube.Conflict:  # another replica renewed it first
            return await self._read()
        logger.info("Secret %s was written: %s", self._where, why)
        return secret

    def _due(self, secret: Json) -> tuple[str, dict[str, str]]:
        """Return the data to write into the Secret, and the reason."""
        now, known = datetime.fromtimestamp(self._wall_clock(), UTC), self._serving
        try:
            pair = self._pair(secret)
            why = pair.objection(self._settings.host)
            if not why:
                known = pair
                if now > pair.ends - (pair.ends - pair.begins) / 3:
                    why = f"a third of its certificate's lifetime is left, until {pair.ends}"
        except BadCertificate as exc:
            why = str(exc)
        if why:
            data = make(self._settings.host, now)
            if known is not None and known.authorities[0].not_valid_after_utc > now:
                texts = base64.b64decode(data[CA]) + _pem(known.authorities[0])
                data |= _encoded({CA: texts})
            return why, data
        if known and len(known.authorities) > 1 and now > known.begins + BACKDATE + OVERLAP:
            return "an old authority is removed", _encoded({CA: _pem(known.authorities[0])})
        return "", {}

    async def _configuration(self, wrong: list[KubeError]) -> Json | None:
        try:
            return await self._api.get(kube.WEBHOOKS.path(name=self._settings.configuration))
        except (kube.Forbidden, kube.NotFound) as exc:
            wrong.append(exc)
            return None

    async def _have_trusted(self, body: Json, bundle: str, wrong: list[KubeError]) -> None:
        """Make the API server trust the certificate before it is served."""
        old = [
            {"name": hook["name"], "clientConfig": {"caBundle": bundle}}
            for hook in body.get("webhooks") or ()
            if hook["clientConfig"].get("caBundle") != bundle
        ]
        if not old:
            return
        name = self._settings.configuration
        change = {
            "metadata": {"resourceVersion": body["metadata"]["resourceVersion"]}, "webhooks": old
        }  # fmt: skip
        try:
            await self._api.patch(kube.WEBHOOKS.path(name=name), change, how=kube.STRATEGIC)
        except (kube.Forbidden, kube.Invalid) as exc:  # another tool may write the caBundle
            wrong.append(exc)
        else:
            logger.info("The API server trusts the webhook's certificate (%s)", name)

    def _offer(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        if self._serving is not None:
            connection.context = self._serving.context

    def _say(self, wrong: str) -> None:
        """Log a problem once, not in every round."""
        if wrong and wrong != self._logged:
            then = (
                "the webhook keeps using its present certificate"
                if self._serving
                else "until then schedulers start without the agent, and get it while they run"
            )
            logger.warning("The webhook's certificate: %s; %s", wrong, then)
        elif self._logged and not wrong:
            logger.info("The webhook's certificate is in order again")
        self._logged = wrong
