"""The page as people see it, in a real browser."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dask_adaptive_agent import wire
from support.agent_work import ask
from support.chromium import Tab, tab
from support.scene import BY_TASK, DRAINING, FREE, NAMES, PINNED, scene
from support.stage import Stage
from support.tasks import slow


async def test_people_see_workers_pins_and_decisions(browser: str, tmp_path: Path) -> None:
    async with scene() as s, tab(browser, tmp_path / "profile", height=930) as page:
        await page.open(f"http://127.0.0.1:{s.http_server.port}/adaptive")

        text = await page.until(PINNED, "draining", "notebook-7f3a")

        for wanted in (
            "etl", "7 workers", "2 on the way", BY_TASK, DRAINING, "cordoned", "5 of 5 runs",
            "model is being inspected", "LoadIncreased", "7 → 6:", "at least 4 workers",
            *("Status", "Adaptive", "Info"),
        ):  # fmt: skip
            assert wanted in text
        assert [] == page.complaints


async def test_it_is_found_from_any_other_page_and_follows_what_happens(
    browser: str, tmp_path: Path
) -> None:
    async with scene() as s, tab(browser, tmp_path / "profile") as page:
        await page.open(f"http://127.0.0.1:{s.http_server.port}/workers")
        await page.until("Adaptive")
        await page.run("""document.querySelector('.navbar a[href="adaptive"]').click()""")
        await page.until(FREE, "may leave")

        await ask(
            s, wire.PIN, names=[FREE], source=wire.CLIENT, owner="<img src=x>", ttl_ms=600_000,
            reason="<script>document.title = 'taken over'</script>",
        )  # fmt: skip

        await page.until("3 pinned", "stays: pinned by client <img src=x> (<script>document.title")
        assert "taken over" not in await page.run("document.title")
        assert await page.run("""document.querySelectorAll('img[src="x"]').length""") == 0
        busy = next(ws for ws in s.workers.values() if ws.name == PINNED)
        await s.remove_worker(busy.address, stimulus_id="test")
        await page.until("6 workers", "\n (6)\n")
        assert [] == page.complaints


async def test_a_table_can_be_sorted_and_stays_so(browser: str, tmp_path: Path) -> None:
    async with scene() as s, tab(browser, tmp_path / "profile") as page:
        await page.open(f"http://127.0.0.1:{s.http_server.port}/adaptive")
        await page.until(*NAMES)
        assert NAMES == _order(await page.text())

        for _ in range(2):  # descending
            await page.run(f"({FIND_HEADER})('Worker').click()")

        assert NAMES[::-1] == await _eventually(page, NAMES[::-1])
        await ask(s, wire.PIN, names=[FREE], source=wire.MANUAL, owner="me", ttl_ms=600_000)
        await page.until("3 pinned")
        assert NAMES[::-1] == _order(await page.text())


async def test_what_a_real_loop_decides_is_there(browser: str, tmp_path: Path) -> None:
    """Worker processes on this machine come and go under a policy, as in a rehearsal."""
    stage = Stage(tmp_path, spec={"minReplicas": 2, "idleTimeout": "60s"})
    async with stage as s, tab(browser, tmp_path / "profile") as page:
        await page.open(s.rehearsal.scheduler.dashboard.replace("/status", "/adaptive"))
        await s.until(lambda: s.status.connected >= 2, "at the minimum")
        futures = s.client.map(slow, range(300), seconds=0.2, pure=False)
        await s.until(lambda: s.status.connected == 3, "scaled up")
        name = sorted(s.names())[0]
        await ask(
            s.client.scheduler.address, wire.PIN, names=[name], source=wire.CLIENT, owner="a test",
            ttl_ms=600_000, reason="somebody looks",
        )  # fmt: skip

        await page.until(*s.names(), "3 workers", "1 pinned", "somebody looks", "LoadIncreased")

        assert [] == page.complaints
        del futures


#: The header of a column by its title, inside whatever shadow roots a release of Bokeh makes.
FIND_HEADER = """function(title) {
  const all = (root) => [...root.querySelectorAll("*")].flatMap(
    (one) => [one, ...(one.shadowRoot ? all(one.shadowRoot) : [])]);
  return all(document).find(
    (one) => one.classList.contains("slick-header-column") && one.textContent.trim() === title);
}"""


def _order(text: str) -> list[str]:
    """Workers as the first table has them from top to bottom: cells are in the order of rows."""
    return [line for line in text.partition("Last decisions")[0].splitlines() if line in NAMES]


async def _eventually(page: Tab, wanted: list[str]) -> list[str]:
    for _ in range(50):
        if _order(await page.text()) == wanted:
            break
        await asyncio.sleep(0.1)
    return _order(await page.text())
