"""A headless Chromium that opens pages of this machine, spoken to by its own DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

#: All text of a page as people see it, shadow roots (Bokeh 3) included.
TEXT = """
(function texts(node) {
  if (node === null) return "";
  if (node.nodeType === Node.TEXT_NODE) return node.textContent;
  if (["STYLE", "SCRIPT", "TEMPLATE"].includes(node.nodeName)) return "";
  if (node instanceof Element && getComputedStyle(node).display === "none") return "";
  const children = [...(node.shadowRoot ? node.shadowRoot.childNodes : []), ...node.childNodes];
  return children.map(texts).filter(text => text.trim()).join("\\n");
})(document.body)
"""


def find() -> str:
    """The path of a Chromium; empty: there is none."""
    asked = os.environ.get("CHROMIUM", "")
    return next((path for name in (asked, *NAMES) if name and (path := shutil.which(name))), "")


class Tab:
    """One tab, by its DevTools websocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        #: What the page has complained of: uncaught exceptions and errors on its console.
        self.complaints: list[str] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = await self._socket.receive_json(timeout=60)
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                result: dict[str, Any] = message["result"]
                return result
            self._hear(message)

    async def open(self, url: str) -> None:
        await self.call("Page.enable")
        await self.call("Runtime.enable")
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def text(self) -> str:
        return str(await self.run(TEXT))

    async def until(self, *wanted: str, timeout_s: float = 60.0) -> str:
        """Wait until all of these are on the page; its text."""
        deadline = time.monotonic() + timeout_s
        while True:
            text = await self.text()
            missing = [one for one in wanted if one not in text]
            if not missing:
                return text
            assert time.monotonic() < deadline, (missing, text, self.complaints)
            await asyncio.sleep(0.2)

    async def picture(self, path: Path) -> None:
        """A PNG of the whole page."""
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _hear(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        if message.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.complaints.append(str(params["args"]))


@contextlib.asynccontextmanager
async def tab(
    path: str, profile: Path, *, width: int = 1600, height: int = 900
) -> AsyncIterator[Tab]:
    """A browser of its own, with one tab; gone with all of its processes at the end."""
    process = subprocess.Popen(
        [
            path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-extensions", "--disable-background-networking",
            "--hide-scrollbars", f"--window-size={width},{height}", f"--user-data-dir={profile}",
            "--remote-debugging-port=0", "about:blank",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        port = await _port(process, profile)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                pages = [one for one in await answer.json() if one["type"] == "page"]
            address = pages[0]["webSocketDebuggerUrl"]
            async with session.ws_connect(address, max_msg_size=0) as socket:
                yield Tab(socket)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def _port(process: subprocess.Popen[bytes], profile: Path) -> int:
    """Where it listens: Chromium writes the port that it has chosen into its profile."""
    told, deadline = profile / "DevToolsActivePort", time.monotonic() + 60
    while not (told.exists() and told.read_text().count("\n")):
        assert process.poll() is None, f"chromium has ended ({process.returncode})"
        assert time.monotonic() < deadline, "chromium does not listen"
        await asyncio.sleep(0.05)
    return int(told.read_text().splitlines()[0])
