#!/usr/bin/env python3
"""
What the newest releases change for us, in sentences. scripts/test-next.sh runs it.

    next_releases.py look                         versions here, and what the agent replaces: JSON
    next_releases.py compare NOW.json NEXT.json   exit code 1 if a guard refuses what it took before
    next_releases.py newer NOW.json NEXT.json     exit code 1 if nothing is newer
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WATCHED = ("distributed", "dask", "dask-kubernetes", "kopf", "kubernetes")

Seen = dict[str, Any]


def fingerprint(call: Any) -> str:
    """Of the source, so that a new release in which a place stays as it was is no news."""
    try:
        text = inspect.getsource(inspect.unwrap(call))
    except (OSError, TypeError):
        text = repr(type(call))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


async def places() -> dict[str, Seen]:
    """By name: the code that is replaced, and what its guard says."""
    from distributed import Scheduler

    from dask_adaptive_agent.patching import TARGETS, Mismatch, _owner, _Place

    found: dict[str, Seen] = {}
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        for target in TARGETS:
            try:
                stock = _Place(_owner(target, scheduler), target.name).call()
                if stock is None:
                    raise Mismatch("this release does not have it")
                if target.guard is not None:
                    target.guard(scheduler, stock)
                found[str(target)] = {"code": fingerprint(stock), "refused": ""}
            except Mismatch as refused:
                found[str(target)] = {"code": "", "refused": str(refused)}
    return found


def look() -> Seen:
    versions = {}
    for name in WATCHED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "none"
    return {"versions": versions, "places": asyncio.run(places())}


def sentences(now: Seen, then: Seen) -> Iterator[str]:
    for name, version in then["versions"].items():
        before = now["versions"][name]
        yield (
            f"{name} {version} is newer than our {before}."
            if version != before
            else (f"{name}: nothing is newer than {version}.")
        )
    same = 0
    for place, after in then["places"].items():
        before = now["places"].get(place, {"code": "", "refused": "it was not there"})
        if after["refused"] and not before["refused"]:
            yield f"{place}: the guard refuses it now, so its feature is off: {after['refused']}."
        elif before["refused"] and not after["refused"]:
            yield f"{place}: the guard takes it now; before: {before['refused']}."
        elif after["code"] != before["code"]:
            yield f"{place}: its code has changed, and the guard takes it: read what is new."
        else:
            same += 1
    yield f"{same} of {len(then['places'])} places that the agent replaces are as they were."


def main(words: list[str]) -> int:
    if words == ["look"]:
        print(json.dumps(look()))
        return 0
    if len(words) != 3 or words[0] not in ("compare", "newer"):
        print(__doc__, file=sys.stderr)
        return 2
    now, then = (json.loads(Path(path).read_text()) for path in words[1:])
    if words[0] == "newer":
        return now["versions"] == then["versions"]
    told = list(sentences(now, then))
    print("\n".join(told))
    return any("guard refuses it now" in sentence for sentence in told)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
