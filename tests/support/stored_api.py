"""The API server of `chaos`, for tests of its clients: in this process, or over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.apiserver import ApiServer, Ask, asked, kubeconfig_of
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
        self._dry_run, self._pages = False, asyncio.Semaphore(1)

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


class ServedApi:
    """The same over HTTP, from a thread of its own: for commands, which begin with a kubeconfig."""

    def __init__(self) -> None:
        self.store = Store(time.time, time.monotonic)
        self._server = ApiServer(self.store, {"t": "test"}, lambda *_: None)
        self._is_up, self._loop = threading.Event(), asyncio.new_event_loop()
        self._ends = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        self._is_up.wait()

    async def _serve(self) -> None:
        async with self._server.serving():
            self._is_up.set()
            await self._ends.wait()

    def add(self, *bodies: Json) -> None:
        self.store.put(*bodies)

    def kubeconfig(self, folder: Path) -> str:
        path = folder / "kubeconfig"
        path.write_text(kubeconfig_of(self._server.port, "t", "team"))
        return str(path)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join()
        self._loop.close()
