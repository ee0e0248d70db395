"""The API server of `chaos`, for tests of a client: in this process, or over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from chaos.apiserver import ApiServer, Ask, asked
from chaos.store import Json, Refused, Store
from dask_adaptive.kube.api import KubeApi, NotFound, error_of


class StoredApi(KubeApi):
    """
    A connection to a store with these objects.

    Attributes:
        asked: All that was asked of it, as "get pods w1".
        errors: What it answers instead, by verb and kind; "" stands for everything.
    """

    def __init__(self, *bodies: Json) -> None:
        self.store = Store(time.time, time.monotonic)
        self.store.put(*bodies)
        self._server = ApiServer(self.store, {}, lambda *_: None)
        self.asked: list[str] = []
        self.errors: dict[str, Exception] = {}
        self._dry_run = False

    def count(self, words: str) -> int:
        """How often something was asked that begins so."""
        return sum(one.startswith(words) for one in self.asked)

    async def _answer(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any = None, *_: Any
    ) -> bytes:
        ask = asked("test", method, path, query or {}, body or {})
        if ask is None:
            raise NotFound(path)
        what = f"{ask.verb} {ask.kind.plural}"
        self.asked.append(f"{what} {_name(ask)}")
        if error := self.errors.get(what) or self.errors.get(""):
            raise error
        try:
            return json.dumps(self._server.answer(ask)).encode()
        except Refused as no:
            raise error_of(no.code, json.dumps(no.status()), str(ask)) from None


def _name(ask: Ask) -> str:
    return ask.name or str((ask.body.get("metadata") or {}).get("name", ""))
