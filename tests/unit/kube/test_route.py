"""The way to a scheduler: its address, and certificates out of Secrets."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from dask_adaptive.kube.api import ApiUnreachable, Forbidden
from dask_adaptive.kube.route import FRESH_S, Routes
from dask_adaptive.loop.ports import LinkError, Tls, TlsFailed
from dask_adaptive.model.policy import InvalidPolicy, parse_policy
from support import kube_objects as ko
from support.certificates import Authority
from support.certificates import secret as secret_of
from support.stored_api import StoredApi
from support.tables import table

AUTHORITY = Authority()
TLS = AUTHORITY.tls()


def secret(name: str, tls: Tls) -> dict[str, Any]:
    return secret_of(name, tls, namespace="ns")


def routes(
    api: Any, *bodies: dict[str, Any], now: list[float] | None = None, **more: Any
) -> Routes:
    clock = now or [0.0]
    return Routes(api, ko.world_of(*bodies or [ko.service()]), clock=lambda: clock[0], **more)


def policy(**scheduler: Any) -> Any:
    return parse_policy({"clusterRef": {"name": "etl"}, "maxReplicas": 1, "scheduler": scheduler})


NAMED = {"tls": {"secretName": "certs"}}


@pytest.mark.parametrize(
    ("bodies", "address"),
    [
        ([ko.service()], "tcp://10.96.0.9:8786"),
        ([ko.service("fd00::1")], "tcp://[fd00::1]:8786"),
        ([ko.service("None")], "tcp://etl-scheduler.ns.svc:8786"),
    ],
)
async def test_the_address_is_that_of_the_service(bodies: list[Any], address: str) -> None:
    api = StoredApi()

    assert (address, "", None) == await routes(api, *bodies).to(ko.KEY, policy())
    assert [] == api.asked


@pytest.mark.parametrize(
    ("bodies", "said"),
    [
        ([ko.cluster()], "no Service"),
        ([ko.service(selector=None)], "selects no pods"),
        ([ko.service("", type="ExternalName", externalName="metadata.internal")], "selects no"),
    ],
)
async def test_who_writes_a_service_does_not_choose_where_it_leads(
    bodies: list[Any], said: str
) -> None:
    with pytest.raises(LinkError, match=said):
        await routes(StoredApi(), *bodies).to(ko.KEY, policy())


@table(
    "scheduler, default, protocol, read",
    nothing_said=({}, "", "tcp", ""),
    the_charts=({}, "all", "tls", "all"),
    the_policys=(NAMED, "all", "tls", "certs"),
    plain_in_spite_of_the_chart=({"protocol": "tcp"}, "all", "tcp", ""),
)
async def test_the_policy_counts_before_the_chart(
    scheduler: dict[str, Any], default: str, protocol: str, read: str
) -> None:
    api = StoredApi(secret(read or "any", TLS))

    route = await routes(api, ko.service(), secret=default).to(ko.KEY, policy(**scheduler))

    assert (f"{protocol}://10.96.0.9:8786", read) == route[:2]
    assert (TLS if read else None) == route.tls
    assert ([f"get secrets {read}"] if read else []) == api.asked


async def test_an_api_server_that_is_down_costs_no_connection() -> None:
    api, now = StoredApi(secret("certs", TLS)), [0.0]
    made = routes(api, now=now)
    await made.to(ko.KEY, policy(**NAMED))
    now[0], api.errors[""] = FRESH_S, ApiUnreachable("no answer")

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


@table(
    "body, words",
    missing=(secret("other", TLS), "no Secret ns/certs"),
    empty=({**secret("certs", TLS), "data": {}}, r"ca\.crt and tls\.crt and tls\.key"),
    no_authority=(without("ca.crt"), r"lacks ca\.crt, as PEM"),
    no_text=(without("tls.key", **{"tls.key": text(b"\xff")}), r"lacks tls\.key"),
    no_pem=(without("tls.crt", **{"tls.crt": text(b"hello")}), "is not a PEM"),
    expired=(secret("certs", AUTHORITY.tls(expired=True)), "expired at 20"),
)
async def test_a_secret_of_no_use_is_told_with_what_to_do(body: Any, words: str) -> None:
    with pytest.raises(TlsFailed, match=words):
        await routes(StoredApi(body)).to(ko.KEY, policy(**NAMED))


async def test_a_right_that_is_missing_is_told_with_where_to_get_it() -> None:
    api = StoredApi()
    api.errors[""] = Forbidden("cannot get secrets")

    with pytest.raises(TlsFailed, match=r"scheduler\.tls\.secretNames"):
        await routes(api).to(ko.KEY, policy(**NAMED))


async def test_tls_without_a_secret_says_where_to_name_one() -> None:
    with pytest.raises(TlsFailed, match=r"spec\.scheduler\.tls\.secretName"):
        await routes(StoredApi()).to(ko.KEY, policy(protocol="tls"))


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        ({"protocol": "ucx"}, "must be tcp or tls"),
        ({"protocol": "wss"}, "must be tcp or tls"),
        ({"protocol": "tcp", **NAMED}, r"tls\.secretName: is for"),
        ({"tls": {"secretName": ""}}, r"1 to 253 characters"),
    ],
)
def test_nonsense_is_refused(scheduler: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidPolicy, match=words):
        policy(**scheduler)
