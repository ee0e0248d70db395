"""Probes and metrics, on one HTTP port."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from dask_adaptive.controller.metrics import Metrics


def probes_app(metrics: Metrics, not_ready: Callable[[], str]) -> web.Application:
    """
    Serve `/healthz` (the event loop turns), `/readyz` and `/metrics`.

    Args:
        not_ready: What this process still waits for, or an empty text.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        why = not_ready()
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=metrics.render(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", show_metrics)
    return app
