"""The webhook's certificate, however its Secret is filled: the API server trusts it at any time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trustme
import yaml

from dask_adaptive.controller.app import Operator
from dask_adaptive.controller.certificate import (
    LIFE,
    CertificateKeeper,
    Pair,
    WebhookSettings,
    make,
)
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.api import KubeApi
from support.certificates import Authority, secret
from support.kube_bodies import dask_pod, pod
from support.kube_operator import running, until
from support.kube_server import ROOT, Kubectl
from support.kube_webhook import HOST, KIND, SECRET, registered
from support.ports import free_port
from support.tables import table

_NOW = datetime.now(UTC)


class Scene:
    """An operator, whose webhook the API server calls, and other replicas that only look."""

    def __init__(self, api: KubeApi, kubectl: Kubectl, settings: WebhookSettings) -> None:
        self.api, self.kubectl, self.settings = api, kubectl, settings
        self.operator: Operator

    @property
    def keeper(self) -> CertificateKeeper:
        """The operator's own."""
        assert self.operator._certificate is not None
        return self.operator._certificate

    def replica(self, *, in_s: float = 0.0) -> CertificateKeeper:
        """Another one, that makes certificates, and whose clock may be fast."""
        ends_at = Metrics().certificate.labels(SECRET)
        settings = replace(self.settings, makes=True)
        return CertificateKeeper(
            self.api, self.kubectl.namespace, settings, ends_at,
            wall_clock=lambda: time.time() + in_s,
        )  # fmt: skip

    @property
    def data(self) -> dict[str, str]:
        return dict(self.kubectl.json("get", "secret", SECRET).get("data") or {})

    @property
    def authorities(self) -> int:
        return base64.b64decode(self.data["ca.crt"]).count(b"BEGIN CERTIFICATE")

    @property
    def ends_at(self) -> float:
        where = {"secret": SECRET}
        name = "dask_adaptive_webhook_certificate_expiration_timestamp_seconds"
        return self.operator._metrics.registry.get_sample_value(name, where) or 0.0

    def bundles(self) -> set[str]:
        body = self.kubectl.json("get", KIND, self.settings.configuration)
        return {hook["clientConfig"].get("caBundle", "") for hook in body["webhooks"]}

    def fill(self, data: dict[str, str] | None) -> None:
        patch = yaml.safe_dump([{"op": "add", "path": "/data", "value": data}])
        self.kubectl("patch", "secret", SECRET, "--type=json", "--patch", patch)

    async def works(self, *, within_s: float = 15.0) -> None:
        """The API server calls the webhook: a scheduler gets the agent."""
        made = dask_pod("scheduler", cluster="demo")
        body = yaml.safe_dump(pod("s", made["spec"], **made["metadata"]))

        def is_injected() -> bool:
            made = self.kubectl("create", "--dry-run=server", "-o", "yaml", "-f", "-", stdin=body)
            return "dask-adaptive.dev/injected" in made

        await until(is_injected, timeout_s=within_s)

    async def looks(self) -> None:
        """Let the operator look, until all is well; it does so by itself every half minute."""
        await until(self.keeper.look)


@contextlib.asynccontextmanager
async def scene_of(
    api: KubeApi, kubectl: Kubectl, *, makes: bool, data: dict[str, str] | None = None
) -> AsyncIterator[Scene]:
    kubectl("apply", "-f", str(ROOT / "manifests/examples/cluster.yaml"))
    port = free_port()
    with registered(kubectl, port=port) as configuration:
        settings = WebhookSettings(SECRET, HOST, makes, configuration)
        scene = Scene(api, kubectl, settings)
        if data:
            scene.fill(data)
        where = {"webhook": settings, "webhook_port": port}
        async with running(api, kubectl.namespace, **where) as scene.operator:
            await until(lambda: scene.operator.waits_for() == "")
            yield scene


@pytest.fixture
async def scene(api: KubeApi, kubectl: Kubectl) -> AsyncIterator[Scene]:
    """The operator makes its certificate."""
    async with scene_of(api, kubectl, makes=True) as made:
        yield made


def trusted(key_type: trustme.KeyType = trustme.KeyType.RSA) -> dict[str, str]:
    """What people, or cert-manager, would write into the Secret."""
    return dict(secret(SECRET, Authority(key_type).tls())["data"])


async def test_an_empty_secret_is_filled_and_its_authority_trusted(scene: Scene) -> None:
    assert {scene.data["ca.crt"]} == scene.bundles()
    await scene.works()

    year = time.time() + LIFE.total_seconds()
    assert scene.ends_at == pytest.approx(year, abs=120)
    before = scene.data
    await scene.looks()
    assert before == scene.data
    has_key = {name: b"PRIVATE KEY" in base64.b64decode(text) for name, text in before.items()}
    assert {"tls.crt": False, "tls.key": True, "ca.crt": False} == has_key


async def test_of_replicas_that_start_at_once_one_is_first(api: KubeApi, kubectl: Kubectl) -> None:
    with registered(kubectl, port=free_port()) as configuration:
        scene = Scene(api, kubectl, WebhookSettings(SECRET, HOST, True, configuration))
        replicas = [scene.replica() for _ in range(8)]
        while not all(await asyncio.gather(*(r.look() for r in replicas))):
            pass  # whoever comes too late with the configuration looks again

        served = [r._serving.data for r in replicas if r._serving is not None]
        assert [scene.data] * 8 == served
        assert {scene.data["ca.crt"]} == scene.bundles()


async def test_a_renewal_is_trusted_before_during_and_after(api: KubeApi, kubectl: Kubectl) -> None:
    old = make(HOST, _NOW - timedelta(days=250))
    async with scene_of(api, kubectl, makes=False, data=old) as scene:
        await scene.works()
        serving = scene.keeper._serving
        await until(scene.replica().look)

        assert old["tls.crt"] != scene.data["tls.crt"]
        assert 2 == scene.authorities
        assert {scene.data["ca.crt"]} == scene.bundles()
        assert serving is scene.keeper._serving
        await scene.works()  # by the old certificate, with the new bundle
        await scene.looks()
        assert serving is not scene.keeper._serving
        await scene.works()

        await until(scene.replica(in_s=1800.0).look)
        assert 2 == scene.authorities, "replicas may serve the old one"
        await until(scene.replica(in_s=4000.0).look)
        assert 1 == scene.authorities
        assert {scene.data["ca.crt"]} == scene.bundles()
        await scene.works()


async def test_a_replica_that_died_in_between_is_made_up_for(scene: Scene) -> None:
    """It has renewed the certificate, and nobody trusts that yet."""
    scene.fill(make(HOST, datetime.now(UTC)))
    assert {scene.data["ca.crt"]} != scene.bundles()
    await scene.looks()

    assert {scene.data["ca.crt"]} == scene.bundles()
    await scene.works()


@table(
    "change, why",
    emptied=(lambda _: None, "no tls.crt, no tls.key, no ca.crt"),
    garbage=(lambda old: {**old, "tls.crt": "eHg="}, "tls.crt can't be"),
    others_ca=(lambda old: {**old, "ca.crt": trusted()["ca.crt"]}, "issuer"),
    expired=(lambda _: make(HOST, _NOW - LIFE * 2), "has expired"),
    clock_was_fast=(lambda _: make(HOST, _NOW + LIFE), "not yet valid"),
)
async def test_a_secret_that_was_spoilt_is_made_anew(
    scene: Scene, change: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    old = scene.data
    scene.fill(change(old))
    with caplog.at_level(logging.INFO):
        await scene.looks()

    assert why in caplog.text
    assert scene.data["tls.crt"] != old["tls.crt"]
    assert 2 == scene.authorities, "replicas may serve the old one"
    assert "" == Pair.read({**old, "ca.crt": scene.data["ca.crt"]}).objection(HOST)
    assert {scene.data["ca.crt"]} == scene.bundles()
    await scene.works()


async def test_a_secret_that_was_deleted_is_asked_for(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.works()
    scene.kubectl("delete", "secret", SECRET)
    assert not await scene.keeper.look()
    assert not await scene.keeper.look()

    (said,) = [r.getMessage() for r in caplog.records if SECRET in r.getMessage()]
    create = f"kubectl create secret generic {SECRET} -n {scene.kubectl.namespace}"
    assert create in said
    assert "keeps using its present certificate" in said
    assert 0.0 == scene.ends_at
    await scene.works()
    scene.kubectl("create", "secret", "generic", SECRET)
    await scene.looks()
    assert {scene.data["ca.crt"]} == scene.bundles()
    await scene.works()


async def test_a_given_certificate_is_served_and_followed(api: KubeApi, kubectl: Kubectl) -> None:
    async with scene_of(api, kubectl, makes=False, data=trusted()) as scene:
        await scene.works()
        given = scene.data
        for key_type in (trustme.KeyType.ECDSA, trustme.KeyType.RSA):
            scene.fill(trusted(key_type))
            await scene.looks()
            assert {scene.data["ca.crt"]} == scene.bundles()
            await scene.works()
        assert given != scene.data


async def test_one_that_signs_itself_is_served(api: KubeApi, kubectl: Kubectl) -> None:
    """As cert-manager's Issuer of the kind selfSigned makes them."""
    async with scene_of(api, kubectl, makes=False, data=self_signed()) as scene:
        assert {scene.data["tls.crt"]} == scene.bundles()
        await scene.works()


def self_signed() -> dict[str, str]:
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "dask-adaptive")])
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
    built = x509.CertificateBuilder(name, name, key.public_key(), 1)
    built = built.not_valid_before(_NOW - timedelta(hours=1)).not_valid_after(_NOW + LIFE)
    certificate = built.add_extension(host, critical=False).sign(key, hashes.SHA256())
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    parts = {"tls.crt": pem, "tls.key": private, "ca.crt": pem}
    return {part: base64.b64encode(text).decode() for part, text in parts.items()}
