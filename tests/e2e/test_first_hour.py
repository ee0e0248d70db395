"""
Pages of the documentation, typed into a shell and a notebook. Never beside other tests.

The pictures of the documentation are made on the way:
FIRST_HOUR_PICTURES=docs/images pytest tests/e2e/test_first_hour.py
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from support import chromium
from support.chromium import tab
from support.e2e_cluster import Start
from support.e2e_objects import DASK_IMAGE
from support.e2e_release import Release
from support.kube_server import ROOT, Kubectl, binary
from support.panels import prometheus
from support.walk import Session, Walk, blocks, draw_terminal

PAGES = ROOT / "docs/howto"
SPACE = "first-hour"

#: Panels of which that hour has no data, and why.
EMPTY = {
    "Refused or failed actions": "no action failed",
    "Recycled workers per hour": "no quota is set, so no worker is replaced",
    "Use of quotas": "no quota is set",
    "Workers under each budget": "there is no budget",
    "Worker groups waiting for a budget": "there is no budget",
}


@pytest.fixture
def release(admin: Kubectl) -> Iterator[Release]:
    """The operator's release; at the end as it was found."""
    found = Release(admin)
    yield found
    for node in admin("get", "nodes", "-o", "name").split():
        admin("uncordon", node)
    found.install()


@pytest.fixture
async def walk(admin: Kubectl, release: Release, tmp_path: Path) -> AsyncIterator[Walk]:
    kubeconfig = tmp_path / "kubeconfig"  # pages change the context's namespace
    shutil.copy(admin.kubeconfig, kubeconfig)
    programs = [str(Path(sys.executable).parent), str(Path(binary("helm")).parent)]
    image = release.values()["image"]
    images = {"IMAGE": image["repository"], "TAG": image["tag"], "DASK_IMAGE": DASK_IMAGE}
    path = os.pathsep.join([*programs, os.environ["PATH"]])
    env = {**os.environ, **images, "KUBECONFIG": str(kubeconfig), "PATH": path}
    checkout = tmp_path / "checkout"  # pages write files, and not into this one
    checkout.mkdir()
    for one in ("helm", "manifests", "operator", "pyproject.toml", "README.md", "LICENSE"):
        (checkout / one).symlink_to(ROOT / one)
    async with AsyncExitStack() as stack:
        shell = await Session.shell(env, checkout)
        stack.push_async_callback(shell.close)
        notebook = await Session.notebook(env, checkout)
        stack.push_async_callback(notebook.close)
        yield Walk(Kubectl(str(kubeconfig)), shell, notebook, images)


async def test_the_first_hour(walk: Walk, release: Release, admin: Kubectl, tmp_path: Path) -> None:
    pictures = Path(os.environ.get("FIRST_HOUR_PICTURES", tmp_path)).absolute()
    # An interrupted run leaves it, and it takes the operator to end it.
    await asyncio.to_thread(admin, "delete", "namespace", SPACE, "--ignore-not-found")
    await asyncio.to_thread(release.uninstall)
    panels = dict[str, bool]()
    async with prometheus(release.kubectl, tmp_path) as scraped:
        for block in blocks(PAGES / "first-hour.md"):
            if block.section == "Uninstall" and not panels:
                panels = await scraped.panels()
            await walk.block(block)
            if "dask-adaptive.dev/pin=" in block.text:
                address = await walk.address_of("notebook-scheduler")
                await _picture_of_the_page(address, tmp_path, pictures / "first-hour-page.png")

    assert not await asyncio.to_thread(admin, "get", "namespace", SPACE, "--ignore-not-found")
    assert not {title for title, has_data in panels.items() if not has_data} - set(EMPTY)
    assert set(EMPTY) <= panels.keys()
    shown = [(c, output) for section, c, output in walk.typed if section == SHOWN and output]
    draw_terminal(shown, pictures / "first-hour.svg")


#: The section whose commands are in the picture of the terminal.
SHOWN = "Pin and explain"


async def _picture_of_the_page(address: str, folder: Path, path: Path) -> None:
    browser = chromium.find()
    if not browser:
        return
    async with tab(browser, folder / "profile", height=930) as page:
        await page.open(f"http://{address}:8787/adaptive")
        await page.until("looking at it", "1 pinned")
        await page.picture(path)


async def test_after_a_disaster(walk: Walk, start: Start) -> None:
    c = await start("demo", policy={"minReplicas": 1})
    await c.until_settled(1)
    (worker,) = await c.connected()
    await c.kubectl("annotate", "pod", await c.pod_of(worker), "dask-adaptive.dev/pin=1h")
    await c.edit(minReplicas=0)
    await c.until(lambda: c.is_pinned(worker), "it is pinned")
    await walk.enter(c.namespace)

    for block in blocks(PAGES / "restore.md"):
        await walk.block(block)

    await c.until_connected(1)
    assert {worker} == await c.connected()
    spec: dict[str, Any] = (await c.policy())["spec"]
    assert ("demo", 0, 3) == (spec["clusterRef"]["name"], spec["minReplicas"], spec["maxReplicas"])
    await c.kubectl("annotate", "pod", await c.pod_of(worker), "dask-adaptive.dev/pin-")
    await c.until_settled(0)


async def test_without_the_internet(walk: Walk, release: Release) -> None:
    await asyncio.to_thread(release.uninstall)

    for block in blocks(PAGES / "air-gap.md"):
        await walk.block(block)
