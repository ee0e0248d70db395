"""What the API server calls: the webhooks' paths and their certificate."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from dask_adaptive.controller.evictions import EvictionReviewer
from dask_adaptive.controller.injector import Injector
from dask_adaptive.kube.api import Json

logger = logging.getLogger(__name__)

#: How often the certificate's files are looked at.
RELOAD_S = 30.0


Review = Callable[[Mapping[str, Any]], Awaitable[Json]]


def webhook_app(injector: Injector, evictions: EvictionReviewer) -> web.Application:
    """Serve `/mutate` (pods) and `/evict` (pods/eviction, where the chart registers it)."""
    app = web.Application(client_max_size=8 * 1024**2)
    app.router.add_post("/mutate", _handler(injector.review))
    app.router.add_post("/evict", _handler(evictions.review))
    return app


def _handler(review: Review) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        try:
            body = await review(await request.json())
        except (KeyError, TypeError, ValueError) as exc:
            # Both webhooks have the failurePolicy Ignore: this counts as a yes.
            return web.Response(status=400, text=f"not an AdmissionReview: {exc!r}")
        return web.json_response(body)

    return answer


class Certificate:
    """The webhook's certificate, loaded anew when its files change: the Secret may be renewed."""

    def __init__(self, folder: Path) -> None:
        self._files = (folder / "tls.crt", folder / "tls.key")
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._stamp: tuple[float, ...] = ()
        self.reload()

    def reload(self) -> bool:
        """Load the files if they are others than before. Raises `OSError` (SSL errors are some)."""
        stamp = tuple(f.stat().st_mtime for f in self._files)
        if stamp == self._stamp:
            return False
        # The context is shared: connections made from now on get the new certificate.
        self.context.load_cert_chain(*self._files)
        self._stamp = stamp
        return True

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_S)
            try:
                if self.reload():
                    logger.info("The webhook's certificate was loaded anew")
            except OSError as exc:
                logger.warning("The webhook goes on with its old certificate: %s", exc)
