"""The way to a scheduler: its address, and certificates out of Secrets."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from dask_adaptive.kube.api import ApiUnreachable, Forbidden, NotFound
from dask_adaptive.kube.route import FRESH_S, Routes
from dask_adaptive.loop.ports import TlsFailed
from dask_adaptive.model.policy import InvalidPolicy, parse_policy
from support import kube_objects as ko
from support.certificates import Authority, secret

AUTHORITY = Authority()
TLS = AUTHORITY.tls()


class Secrets:
    """An API server that knows one Secret, or fails."""

    def __init__(self, body: dict[str, Any] | None = None) -> None:
        self.body, self.error, self.asked = body, None, list[str]()  # type: Any

    async def get(self, path: str) -> Any:
        self.asked.append(path)
        if self.error:
            raise self.error
        if self.body is None:
            raise NotFound("secrets not found")
        return self.body


def routes(
    api: Any, *bodies: dict[str, Any], now: list[float] | None = None, **more: Any
) -> Routes:
    clock = now or [0.0]
    return Routes(api, ko.world_of(*bodies), clock=lambda: clock[0], **more)


def policy(**scheduler: Any) -> Any:
    return parse_policy({"clusterRef": {"name": "etl"}, "maxReplicas": 1, "scheduler": scheduler})


NAMED = {"tls": {"secretName": "certs"}}


@pytest.mark.parametrize(
    ("bodies", "address"),
    [
        ([ko.service()], "tcp://10.96.0.9:8786"),
        ([ko.service("fd00::1")], "tcp://[fd00::1]:8786"),
        ([ko.service("None")], "tcp://etl-scheduler.ns.svc:8786"),
        ([], "tcp://etl-scheduler.ns.svc:8786"),
    ],
)
async def test_the_address_is_that_of_the_service(bodies: list[Any], address: str) -> None:
    api = Secrets()

    assert (address, "", None) == await routes(api, *bodies).to(ko.KEY, policy())
    assert [] == api.asked


@pytest.mark.parametrize(
    ("scheduler", "default", "protocol", "read"),
    [
        pytest.param({}, "", "tcp", "", id="nothing-said"),
        pytest.param({}, "all", "tls", "all", id="the-charts"),
        pytest.param(NAMED, "all", "tls", "certs", id="the-policys"),
        pytest.param({"protocol": "tcp"}, "all", "tcp", "", id="plain-in-spite-of-the-chart"),
        pytest.param({"protocol": "ws"}, "", "ws", "", id="websocket"),
        pytest.param({"protocol": "wss", **NAMED}, "", "wss", "certs", id="websocket-with-tls"),
    ],
)
async def test_the_policy_counts_before_the_chart(
    scheduler: dict[str, Any], default: str, protocol: str, read: str
) -> None:
    api = Secrets(secret("any", TLS))

    route = await routes(api, ko.service(), secret=default).to(ko.KEY, policy(**scheduler))

    assert (f"{protocol}://10.96.0.9:8786", read) == route[:2]
    assert (TLS if read else None) == route.tls
    assert ([f"/api/v1/namespaces/ns/secrets/{read}"] if read else []) == api.asked


async def test_a_certificate_that_is_renewed_is_used_soon() -> None:
    api, now = Secrets(secret("certs", TLS)), [0.0]
    made = routes(api, now=now)
    first = await made.to(ko.KEY, policy(**NAMED))
    renewed = AUTHORITY.tls()
    api.body = secret("certs", renewed)

    assert first == await made.to(ko.KEY, policy(**NAMED)), "not asked for again at once"
    now[0] = FRESH_S
    assert renewed == (await made.to(ko.KEY, policy(**NAMED))).tls


async def test_an_api_server_that_is_down_costs_no_connection() -> None:
    api, now = Secrets(secret("certs", TLS)), [0.0]
    made = routes(api, now=now)
    await made.to(ko.KEY, policy(**NAMED))
    now[0], api.error = FRESH_S, ApiUnreachable("no answer")

    assert TLS == (await made.to(ko.KEY, policy(**NAMED))).tls

    with pytest.raises(TlsFailed, match="can't be read: no answer"):
        await routes(api).to(ko.KEY, policy(**NAMED))


def without(key: str, **instead: str) -> dict[str, Any]:
    body = secret("certs", TLS)
    del body["data"][key]
    body["data"] |= instead
    return body


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(None, r"there is no Secret ns/certs: make it with kubectl", id="missing"),
        pytest.param({"metadata": {}}, r"lacks ca\.crt and tls\.crt and tls\.key", id="empty"),
        pytest.param(without("ca.crt"), r"lacks ca\.crt, as PEM: make it", id="no-authority"),
        pytest.param(
            without("tls.key", **{"tls.key": text(b"\xff")}), r"lacks tls\.key", id="no-text"
        ),
        pytest.param(
            without("tls.crt", **{"tls.crt": text(b"hello")}), "is no certificate", id="no-pem"
        ),
        pytest.param(
            secret("certs", AUTHORITY.tls(expired=True)), r"was valid until 20.*: renew it",
            id="expired",
        ),
    ],
)  # fmt: skip
async def test_a_secret_of_no_use_is_told_with_what_to_do(body: Any, words: str) -> None:
    with pytest.raises(TlsFailed, match=words):
        await routes(Secrets(body)).to(ko.KEY, policy(**NAMED))


async def test_a_right_that_is_missing_is_told_with_where_to_get_it() -> None:
    api = Secrets()
    api.error = Forbidden("cannot get secrets")

    with pytest.raises(TlsFailed, match=r"grant the right .* chart's scheduler\.tls\.secretNames"):
        await routes(api).to(ko.KEY, policy(**NAMED))


async def test_tls_without_a_secret_says_where_to_name_one() -> None:
    with pytest.raises(TlsFailed, match=r"set spec\.scheduler\.tls\.secretName"):
        await routes(Secrets()).to(ko.KEY, policy(protocol="tls"))


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        ({"protocol": "ucx"}, r"must be tcp, tls, ws or wss; the operator has no UCX"),
        ({"protocol": "tcp", **NAMED}, r"tls\.secretName: is for tls and wss"),
        ({"tls": {"secretName": ""}}, r"must have 1 to 253 characters"),
    ],
)
def test_nonsense_is_refused(scheduler: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidPolicy, match=words):
        policy(**scheduler)
