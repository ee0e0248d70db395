"""
The operator as it is, in a process of its own, which says each second what it has used so far.

    python runner.py PORT   reads {"stand_ins": {"address of a scheduler": "of its stand-in"},
                            "controller": its name, "namespaces": those it watches; none: all}
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from dask_adaptive.cli.run import set_up_logging
from dask_adaptive.controller.app import Settings, serve
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.scheduler.link import connect

EVERY_S = 1.0


class CountingApi(KubeApi):
    """Counts what is asked of the API server, by verb and kind."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.counts: Counter[str] = Counter()

    async def _answer(
        self, method: str, path: str, query: Any, body: Any = None, *more: Any
    ) -> bytes:
        # A patch that says nothing is how the operator reads what it may write.
        verb = "GET" if method == "PATCH" and body == {} else method
        self.counts[f"{verb} {kind_of(path)}"] += 1
        return await super()._answer(method, path, query, body, *more)


def kind_of(path: str) -> str:
    """The plural of a path, and its subresource: `daskworkergroups/scale`."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    return "/".join([parts[0], *parts[2:]])


def usage() -> dict[str, Any]:
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = {k: v for k, _, v in (line.partition(":") for line in lines) if k in ("VmRSS", "VmHWM")}
    mib = {k: int(v.split()[0]) / 1024 for k, v in kib.items()}
    return {
        "at": time.monotonic(),
        "cpu_s": time.process_time(),
        "rss": mib["VmRSS"],
        "peak": mib["VmHWM"],
    }


async def lateness() -> float:
    """How late the event loop is."""
    began = time.monotonic()
    await asyncio.sleep(EVERY_S)
    return time.monotonic() - began - EVERY_S


async def tell(api: CountingApi) -> None:
    while True:
        late_s = await lateness()
        print(json.dumps({**usage(), "late_s": late_s, "counts": api.counts}), flush=True)


async def main() -> None:
    set_up_logging("text", verbose=False)
    first = json.loads(sys.stdin.readline())

    def to_stand_in(address: str, **how: Any) -> Any:
        return connect(first["stand_ins"][address], **how)

    api = await CountingApi.connect()
    settings = Settings(
        identity="bench", address="127.0.0.1", http_port=int(sys.argv[1]),
        controller_name=first["controller"], namespaces=tuple(first["namespaces"]),
    )  # fmt: skip
    telling = asyncio.create_task(tell(api))
    try:
        await serve(settings, api=api, connect=to_stand_in)
    finally:
        telling.cancel()


if __name__ == "__main__":
    asyncio.run(main())
