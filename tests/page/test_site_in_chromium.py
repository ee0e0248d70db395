"""The documentation's site, opened from its folder: without a server, and without a network."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.chromium import tab

SITE = Path(__file__).parents[2] / "site"

#: How many elements reach over the right edge, and how many tables hide their last column.
TOO_WIDE = """[...document.querySelectorAll(".bd-article *")].filter((it) =>
  it.getBoundingClientRect().right > innerWidth + 1 && !it.closest("pre, .highlight")
  || it.matches(".pst-scrollable-table-container") && it.scrollWidth > it.clientWidth + 1).length"""


@pytest.fixture
def pages() -> list[Path]:
    found = sorted([*SITE.glob("*.html"), *SITE.glob("[!_]*/*.html")])
    if not found:
        pytest.skip("there is no site/; build it with: make docs")
    return found


async def test_search_works_without_a_server_and_nothing_is_fetched(
    browser: str, tmp_path: Path, pages: list[Path]
) -> None:
    async with tab(browser, tmp_path / "profile", width=1280) as page:
        await page.open(f"{(SITE / 'search.html').as_uri()}?q=unpin")

        await page.until("Search finished", "Pin workers")

        fetched = await page.run("performance.getEntriesByType('resource').map(e => e.name)")
        assert [] == [name for name in fetched if not name.startswith("file:")]
        assert [] == page.complaints


@pytest.mark.parametrize("width", [390, 1280])
async def test_no_page_or_table_is_wider_than_the_screen(
    browser: str, tmp_path: Path, pages: list[Path], width: int
) -> None:
    screen = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    wide = list[str]()
    async with tab(browser, tmp_path / "profile") as page:
        await page.call("Emulation.setDeviceMetricsOverride", **screen)
        for one in pages:
            await page.open(one.as_uri())
            ready = f"document.readyState === 'complete' && location.href === '{one.as_uri()}'"
            while not await page.run(ready):
                await asyncio.sleep(0.05)
            if await page.run(f"document.documentElement.scrollWidth > {width} || {TOO_WIDE}"):
                wide.append(str(one.relative_to(SITE)))

    assert [] == wide
