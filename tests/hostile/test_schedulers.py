"""Schedulers that answer anything run no code in the operator, and stop nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dask_adaptive.cli.main import cli
from dask_adaptive.kube.api import POLICIES
from hostile.schedulers import Hostile
from hostile.world import World
from support import kube_bodies
from support.kube_server import FORWARDS, stand_in_kubectl

CASES = int(os.environ.get("HOSTILE_CASES", "200"))

AT_ONCE = 25

#: As deep as an API server takes it, in the one field whose schema leaves room for that.
DEPTH = 9_900


def deep_policy() -> dict[str, Any]:
    deep: Any = 1
    for _ in range(DEPTH):
        deep = {"a": deep}
    return kube_bodies.policy("deep", "deep", scheduler={"config": deep})


#: A scheduler that says nothing is given up after some of these.
PATIENCE_S = 20.0


def _odd(hostile: Hostile, name: str, world: World) -> Iterator[str]:
    """What should be otherwise for the cluster of a hostile scheduler."""
    status = world.status(name)
    ready = {c["type"]: c for c in status.get("conditions", ())}.get("Ready")
    if ready is None:
        yield "its policy was never visited"
    elif hostile.is_broken and ready["status"] == "True":
        yield f"Ready=True: {ready['message']}"
    elif hostile.how == "pickle" and ready["reason"] != "AgentInvalid":
        yield f"{ready['reason']}: {ready['message']}"
    if world.deployments(name) != 3 and hostile.is_broken:
        yield f"{world.deployments(name)} workers left"
    if "\\u001b" in json.dumps(status):
        yield "escapes in its status"


@pytest.mark.timeout(3600)
async def test_a_scheduler_that_answers_anything(tmp_path: Path) -> None:
    """And a policy that is as deep as the API server takes it."""
    sys.setrecursionlimit(5 * DEPTH)
    slots, unsaid = asyncio.Semaphore(AT_ONCE), list[str]()
    world = World(tmp_path)

    async def case(number: int) -> None:
        async with slots, Hostile(number, str(world.canary)).serving() as hostile:
            name = f"evil{number}x"
            world.add(name, hostile.port)
            began = time.monotonic()
            while time.monotonic() < began + PATIENCE_S and not world.status(name).get(
                "conditions"
            ):
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
            odd = _odd(hostile, name, world)
            unsaid.extend(f"{number} ({hostile.how}): {what}" for what in odd)
            world.take_away(name)

    async with world.running():
        world.store.create(POLICIES, "b", deep_policy())
        using = asyncio.create_task(world.use())
        await asyncio.gather(*map(case, range(CASES)))
        using.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await using

        said = {c["type"]: c["reason"] for c in world.status("deep").get("conditions", ())}
    wrong = [*unsaid, *world.wrong]
    if said.get("Ready") != "InvalidSpec":
        wrong.append(f"of the deep policy is said: {said}")
    assert not wrong, "\n".join(wrong)
    assert max(world.scaled_s) < 5.0


#: All commands that read what a scheduler answers: `explain`, as text and …
JSON = ("-o", "json")
RECORD = ("record", "evil", "--for", "1s", "-f", os.devnull)


async def _in_here(words: Sequence[str]) -> str:
    done = await asyncio.to_thread(CliRunner().invoke, cli, words)
    is_odd = done.exception is not None and not isinstance(done.exception, SystemExit)
    return f"Traceback: {done.exception!r}" if is_odd else done.output


async def _in_a_process(words: Sequence[str]) -> str:
    """It wants signals, which a thread has not."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dask_adaptive.cli.main", *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    return said.decode()


@pytest.mark.timeout(3600)
async def test_whoever_asks_it_on_a_laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `kubectl port-forward` stood in for."""
    port = tmp_path / "port"
    stand_in_kubectl(tmp_path, FORWARDS.format(port=f"$(cat {port})"), monkeypatch)
    world, wrong = World(tmp_path), list[str]()
    async with world.serving() as config:
        world.add("evil", 1)
        for number in range(CASES // 10):
            async with Hostile(number, str(world.canary)).serving() as hostile:
                port.write_text(str(hostile.port))
                words = (
                    RECORD
                    if number % 10 == 9
                    else ["explain", "cluster/evil", *JSON[: number % 2 * 2]]
                )
                words = [*words, "-n", "b", "--kubeconfig", str(config)]
                said = await (_in_a_process(words) if words[0] == "record" else _in_here(words))
            if "\x1b" in said or "Traceback" in said:
                wrong.append(f"{number} ({hostile.how}) {words[0]}: {said!r}")

    assert not wrong, "\n".join(wrong)
    assert not world.canary.exists()
