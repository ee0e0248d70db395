"""
The dashboard's panels without Grafana: a Prometheus of our own, and what the panels' queries find.

Grafana itself cannot be had from a package index.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from support.kube_server import CHART, ROOT, Kubectl, ran
from support.ports import free_port

DASHBOARD = CHART / "files/dashboard.json"

#: What Grafana would put in for its variables.
_VARIABLES = {"namespace": ".*", "cluster": ".*", "__rate_interval": "30s", "__interval": "2s"}


class Prometheus:
    def __init__(self, url: str) -> None:
        self._url, self._began = url, time.time()

    async def panels(self) -> dict[str, bool]:
        """Whether the queries of each panel of the dashboard have found something, by its title."""
        panels = json.loads(DASHBOARD.read_text())["panels"]
        async with aiohttp.ClientSession() as session:
            return {
                panel["title"]: any(
                    [await self._query(session, _filled_in(t["expr"])) for t in panel["targets"]]
                )
                for panel in panels
                if panel.get("targets")
            }

    async def _query(self, session: aiohttp.ClientSession, query: str) -> list[Any]:
        when = {"start": str(self._began), "end": str(time.time()), "step": "2"}
        address = f"{self._url}/api/v1/query_range"
        async with session.get(address, params={"query": query, **when}) as answer:
            body = await answer.json()
        assert "success" == body["status"], f"{query}: {body.get('error')}"
        return list(body["data"]["result"])


def _filled_in(query: str) -> str:
    for name, value in _VARIABLES.items():
        query = query.replace(f"${name}", value).replace(f"${{{name}}}", value)
    assert "$" not in query, f"a variable of the dashboard is not known here: {query}"
    return query


@asynccontextmanager
async def prometheus(operator: Kubectl, folder: Path) -> AsyncIterator[Prometheus]:
    """Scrape the operator's pods, with the labels that the chart's monitors give them."""
    installer = str(ROOT / "tests/chart/promtool.sh")
    done = await asyncio.to_thread(ran, installer, "prometheus", check=True)
    config, targets, port = folder / "prometheus.yml", folder / "targets.json", free_port()
    job = {
        "job_name": "dask-adaptive",
        "scrape_interval": "2s",
        "scrape_timeout": "2s",
        "honor_labels": True,  # `namespace` is the cluster's
        # Debian's Prometheus cannot ask Kubernetes for pods.
        "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "2s"}],
    }
    config.write_text(yaml.safe_dump({"scrape_configs": [job]}))
    words = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'prometheus'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            done.stdout.strip().splitlines()[-1], *words,
            f"--web.listen-address=127.0.0.1:{port}", stderr=log,
        )  # fmt: skip
    following = asyncio.create_task(_follow(operator, targets))
    try:
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        following.cancel()
        process.terminate()
        await process.wait()


async def _follow(operator: Kubectl, targets: Path) -> None:
    selector = "app.kubernetes.io/name=dask-adaptive-operator"
    while True:
        found = await asyncio.to_thread(operator.json, "get", "pods", "--selector", selector)
        listed = [
            {
                "targets": [f"{pod['status']['podIP']}:8080"],
                "labels": {name: pod["metadata"][key] for name, key in _LABELS.items()},
            }
            for pod in found["items"]
            if pod["status"].get("podIP")
        ]
        targets.with_suffix(".new").write_text(json.dumps(listed))
        targets.with_suffix(".new").replace(targets)
        await asyncio.sleep(2)


_LABELS = {"pod": "name", "namespace": "namespace"}
