"""
The dashboard's panels without Grafana: a Prometheus of our own, the panels' queries, and a drawing.

Grafana itself cannot be had from a package index.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from support.kube_server import CHART, ROOT, Kubectl
from support.ports import free_port

DASHBOARD = CHART / "files/dashboard.json"

#: What Grafana would put in for its variables.
_VARIABLES = {"namespace": ".*", "cluster": ".*", "__rate_interval": "30s", "__interval": "2s"}


#: Seconds since 1970, and a value.
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Points


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    at: dict[str, int]
    series: tuple[Series, ...]


class Prometheus:
    def __init__(self, url: str) -> None:
        self._url, self._began = url, time.time()

    async def panels(self) -> list[Panel]:
        """Each panel of the dashboard with all that its queries find since this began."""
        panels = json.loads(DASHBOARD.read_text())["panels"]
        async with aiohttp.ClientSession() as session:
            return [await self._panel(session, body) for body in panels if body.get("targets")]

    async def _panel(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> Panel:
        found = list[Series]()
        for target in body["targets"]:
            for row in await self._query(session, _filled_in(target["expr"])):
                name = re.sub(
                    r"{{\s*(\w+)\s*}}",
                    lambda label, row=row: row["metric"].get(label[1], ""),
                    target.get("legendFormat", ""),
                )
                points = tuple((float(at), float(value)) for at, value in row["values"])
                found.append(Series(name, points))
        return Panel(body["title"], body["gridPos"], tuple(found))

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
    done = await asyncio.to_thread(
        subprocess.run,
        [str(ROOT / "tests/chart/promtool.sh"), "prometheus"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
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


def draw(panels: list[Panel], path: Path) -> None:
    """A picture of them, each at its place on the dashboard."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    # Letters as letters and few names of fonts, for less bytes; no ids that differ from run to run.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "panels"})
    matplotlib.rcParams.update({"font.size": 8, "font.sans-serif": ["DejaVu Sans", "Arial"]})
    rows = max(panel.at["y"] + panel.at["h"] for panel in panels)
    figure = plt.figure(figsize=(14, rows * 0.3), layout="constrained")
    grid = figure.add_gridspec(rows, 24)
    times = [at for panel in panels for series in panel.series for at, _ in series.points]
    began, minutes = min(times), (max(times) - min(times)) / 60
    for panel in panels:
        x, y, w, h = (panel.at[key] for key in "xywh")
        axes = figure.add_subplot(grid[y : y + h, x : x + w])
        axes.set_title(panel.title, loc="left", fontsize=9)
        for series in panel.series:
            points = _without_repeats(series.points)
            xs = [(at - began) / 60 for at, _ in points]
            ys = [value for _, value in points]
            axes.plot(xs, ys, "-" if len(points) > 1 else ".", linewidth=1, label=series.name)
        if panel.series:
            axes.legend(fontsize=6, loc="upper left", frameon=False)
        else:
            axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes, color="gray")
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, minutes)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.grid(linewidth=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("minutes", fontsize=7)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _without_repeats(points: Points) -> list[tuple[float, float]]:
    """Only those that a line needs: the first and the last of equal ones."""
    around = zip((None, *points[:-1]), points, (*points[1:], None), strict=True)
    return [
        here
        for before, here, after in around
        if before is None or after is None or not before[1] == here[1] == after[1]
    ]
