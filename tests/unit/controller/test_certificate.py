"""What is read from a Secret, when it is written, and what is said; on a server: tests/api."""

from __future__ import annotations

import base64
import logging
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import Gauge

from dask_adaptive.controller import certificate as module
from dask_adaptive.controller.certificate import (
    BACKDATE,
    LIFE,
    BadCertificate,
    CertificateKeeper,
    Pair,
    WebhookSettings,
    make,
)
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.api import ApiUnreachable, Conflict, Forbidden, Json, NotFound
from support.tables import table

HOST = "r-webhook.ns.svc"
HOOKS = "r"
NOW = datetime.now(UTC)


class Api:
    """An API server with one Secret and one webhook configuration, which may fail."""

    def __init__(self) -> None:
        self.secret: Json | None = {"metadata": {"resourceVersion": "1"}, "type": "Opaque"}
        hook = {"name": "inject", "clientConfig": {"service": {}}}
        self.hooks: Json = {
            "metadata": {"resourceVersion": "1", "name": "r"}, "webhooks": [hook]
        }  # fmt: skip
        self.errors: dict[str, Exception] = {}  # by verb and kind
        self.writes = list[str]()

    def _object(self, verb: str, path: str) -> Json:
        kind = "secret" if "/secrets/" in path else "hooks"
        if error := self.errors.get(f"{verb} {kind}"):
            raise error
        found: Json | None = getattr(self, kind)
        if found is None:
            raise NotFound(f"{path} not found")
        return found

    async def get(self, path: str) -> Json:
        found = self._object("get", path)
        return {**found, "metadata": dict(found["metadata"])}

    async def patch(self, path: str, body: Json, **_: Any) -> Json:
        found = self._object("patch", path)
        version = found["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            raise Conflict("the object has been modified")
        found["metadata"]["resourceVersion"] = str(int(version) + 1)
        self.writes.append(path.rpartition("/")[2])
        if "data" in body:
            found["data"] = {**(found.get("data") or {}), **body["data"]}
        for hook in body.get("webhooks") or ():
            found["webhooks"][0]["clientConfig"]["caBundle"] = hook["clientConfig"]["caBundle"]
        return await self.get(path)

    def fill(self, data: dict[str, str]) -> None:
        self.secret = {"metadata": {"resourceVersion": "7"}, "data": data}

    @property
    def bundle(self) -> str:
        return str(self.hooks["webhooks"][0]["clientConfig"].get("caBundle", ""))


class Scene:
    def __init__(self, *, makes: bool = True) -> None:
        self.api, self.makes, self.now = Api(), makes, time.time()
        self.metrics, self.host = Metrics(), HOST
        self.keeper = self.replica(self.metrics.certificate.labels("s"))

    def replica(self, ends_at: Gauge | None = None) -> CertificateKeeper:
        api: Any = self.api
        settings = WebhookSettings("s", self.host, self.makes, HOOKS)
        ends_at = ends_at or Metrics().certificate.labels("s")
        return CertificateKeeper(api, "ns", settings, ends_at, wall_clock=lambda: self.now)

    @property
    def ends_at(self) -> float | None:
        name = "dask_adaptive_webhook_certificate_expiration_timestamp_seconds"
        return self.metrics.registry.get_sample_value(name, {"secret": "s"})


@pytest.mark.parametrize(
    ("age_days", "is_new"), [(1, False), (200, False), (242, False), (244, True), (364, True)]
)
async def test_after_two_thirds_of_a_year_there_is_a_new_one(age_days: int, is_new: bool) -> None:
    scene = Scene()
    old = make(HOST, NOW - timedelta(days=age_days))
    scene.api.fill(old)

    assert await scene.keeper.look()
    assert scene.api.secret is not None
    assert is_new == (scene.api.secret["data"]["tls.crt"] != old["tls.crt"])
    assert scene.api.bundle == scene.api.secret["data"]["ca.crt"]
    assert scene.ends_at is not None
    assert is_new == (scene.ends_at > time.time() + LIFE.total_seconds() - 3600)


async def test_one_that_cannot_be_renewed_serves_on(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    old = make(HOST, NOW - timedelta(days=300))
    scene.api.fill(old)
    scene.api.errors["patch secret"] = Forbidden("secrets s is forbidden")

    assert not await scene.keeper.look()
    assert not await scene.keeper.look()
    assert scene.keeper._serving is not None
    assert old == scene.keeper._serving.data
    assert old["ca.crt"] == scene.api.bundle
    assert 0.0 == scene.ends_at
    assert 1 == caplog.text.count("secrets s is forbidden")


async def test_without_the_api_server_it_waits_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    scene.api.errors = dict.fromkeys(("get secret", "get hooks"), ApiUnreachable("no answer"))
    for _ in range(3):
        assert not await scene.keeper.look()
    assert "the webhook's certificate" == scene.keeper.waits_for()
    assert 1 == caplog.text.count("no answer")

    scene.api.errors.clear()
    with caplog.at_level(logging.INFO):
        assert await scene.keeper.look()
    assert "" == scene.keeper.waits_for()
    assert "in order again" in caplog.text
    before = scene.ends_at
    scene.api.errors["get secret"] = ApiUnreachable("no answer")
    assert not await scene.keeper.look()
    assert before == scene.ends_at, "it says nothing of the certificate"


async def test_what_is_not_trusted_yet_is_not_served() -> None:
    scene = Scene(makes=False)
    old, new = make(HOST, NOW), make(HOST, NOW)
    scene.api.fill(old)
    assert await scene.keeper.look()
    scene.api.fill(new)
    scene.api.errors["patch hooks"] = ApiUnreachable("no answer")

    assert not await scene.keeper.look()
    assert scene.keeper._serving is not None
    assert old == scene.keeper._serving.data
    scene.api.errors.clear()
    assert await scene.keeper.look()
    assert new == scene.keeper._serving.data


@table(
    "spoil",
    emptied=lambda _: {},
    wrong_authority=lambda new: {**new, "ca.crt": make(HOST, NOW)["ca.crt"]},
    another_host=lambda _: make("other.ns.svc", NOW),
    expired=lambda _: make(HOST, NOW - 2 * LIFE),
)
async def test_a_good_certificate_is_not_given_up_for_a_bad_one(
    spoil: Any, caplog: pytest.LogCaptureFixture
) -> None:
    scene, old = Scene(makes=False), make(HOST, NOW)
    scene.api.fill(old)
    assert await scene.keeper.look()
    scene.api.fill(spoil(make(HOST, NOW)))
    assert not await scene.keeper.look()

    assert old["ca.crt"] == scene.api.bundle
    assert scene.keeper._serving is not None
    assert old == scene.keeper._serving.data
    assert 0.0 == scene.ends_at
    assert "keeps using" in caplog.text


async def test_people_may_tell_the_api_server_themselves() -> None:
    scene = Scene(makes=False)
    scene.api.fill(make(HOST, NOW))
    scene.api.errors["get hooks"] = Forbidden("no right")
    assert not await scene.keeper.look()

    assert scene.keeper._serving is not None
    assert 0.0 == scene.ends_at


async def test_who_looked_too_early_takes_nothing_back() -> None:
    """One replica reads the Secret before another one renews it, and writes after it."""
    scene = Scene(makes=False)
    old, new = make(HOST, NOW), make(HOST, NOW)
    late, get = scene.replica(), scene.api.get

    async def renewed_meanwhile(path: str) -> Json:
        found = await get(path)
        if "/secrets/" in path:
            scene.api.get = get  # type: ignore[method-assign]
            scene.api.fill(new)
            assert await scene.keeper.look()
        return found

    scene.api.fill(old)
    scene.api.get = renewed_meanwhile  # type: ignore[method-assign]
    assert not await late.look()
    assert new["ca.crt"] == scene.api.bundle
    assert await late.look()
    assert new["ca.crt"] == scene.api.bundle


async def test_nothing_is_written_when_nothing_changed() -> None:
    scene = Scene()
    assert await scene.keeper.look()
    assert ["s", "r"] == scene.api.writes
    assert await scene.keeper.look()
    assert await scene.replica().look()

    assert ["s", "r"] == scene.api.writes


async def test_an_authority_that_has_ended_is_not_kept() -> None:
    scene = Scene()
    scene.api.fill(make(HOST, NOW - LIFE + timedelta(days=1)))
    scene.makes = False
    reader = scene.replica()
    assert await reader.look()
    scene.now += 2 * 86_400.0
    why, data = reader._due({"data": {}})

    assert "no tls.crt" in why
    assert 1 == base64.b64decode(data["ca.crt"]).count(b"BEGIN")


async def test_it_looks_again_soon_after_an_error_and_then_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene, waits = Scene(makes=False), list[float]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 9:
            scene.api.fill(make(HOST, NOW))
        if len(waits) == 11:
            raise TimeoutError

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    with pytest.raises(TimeoutError):
        await scene.keeper.run()

    assert 1.0 <= waits[0] <= 2.0
    assert max(waits) <= 30.0
    assert min(waits[6:9]) >= 15.0
    assert [30.0, 30.0] == waits[9:]


def pem(key: Any, seal: Any) -> str:
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, seal)
    return base64.b64encode(text).decode()


def changes() -> Iterator[tuple[str, dict[str, str], str]]:
    good = make(HOST, NOW)
    key = ec.generate_private_key(ec.SECP256R1())
    sealed = serialization.BestAvailableEncryption(b"x")
    yield (
        "others-key",
        {**good, "tls.key": pem(key, serialization.NoEncryption())},
        "do not match",
    )
    yield "a-password", {**good, "tls.key": pem(key, sealed)}, "tls.key can't be read"
    yield "key-for-certificate", {**good, "tls.crt": good["tls.key"]}, "tls.crt can't be read"
    yield "no-authority", {**good, "ca.crt": good["tls.key"]}, "ca.crt can't be read"
    yield "incomplete", {"tls.crt": good["tls.crt"]}, "it has no tls.key, no ca.crt"


@pytest.mark.parametrize(
    ("data", "why"), [pytest.param(data, why, id=name) for name, data, why in changes()]
)
def test_what_can_not_be_used(data: dict[str, str], why: str) -> None:
    with pytest.raises(BadCertificate, match=why):
        Pair.read(data)


_GOOD = {name: base64.b64decode(text) for name, text in make(HOST, NOW).items()}


@given(st.sampled_from(sorted(_GOOD)), st.integers(0, 400), st.binary(max_size=8), st.booleans())
@example("ca.crt", 109, b"+", False)
def test_whatever_is_in_the_secret_is_read_or_refused(
    name: str, at: int, noise: bytes, begins: bool
) -> None:
    old = _GOOD[name]
    text = noise + old if begins else old[:at] + noise + old[at + len(noise) :]
    parts = {**_GOOD, name: text}
    try:
        pair = Pair.read({n: base64.b64encode(t).decode() for n, t in parts.items() if t})
    except BadCertificate:
        return
    assert isinstance(pair.objection(HOST), str)


def test_the_key_of_the_authority_is_not_kept() -> None:
    parts = {n: base64.b64decode(t) for n, t in make(HOST, NOW).items()}
    pair = Pair.read(make(HOST, NOW))

    assert [b"PRIVATE KEY" in text for text in parts.values()] == [False, True, False]
    assert BACKDATE + LIFE == pair.ends - pair.begins
    assert "" == pair.objection(HOST)
    assert "mismatch" in pair.objection("other.ns.svc")


def test_no_key_is_in_a_file_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = tempfile.NamedTemporaryFile

    def kept() -> Any:
        return made(dir=tmp_path, delete=False)

    monkeypatch.setattr(module.tempfile, "NamedTemporaryFile", kept)
    Pair.read(make(HOST, NOW))
    (file,) = tmp_path.iterdir()

    assert b"BEGIN ENCRYPTED PRIVATE KEY" in file.read_bytes()
    assert b"BEGIN PRIVATE KEY" not in file.read_bytes()
