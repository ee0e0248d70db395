"""Schedulers that answer anything run no code in the operator, and stop nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from pathlib import Path

import pytest

from hostile.schedulers import Hostile
from hostile.world import World

CASES = int(os.environ.get("HOSTILE_CASES", "200"))

AT_ONCE = 25

#: A scheduler that says nothing is given up after some of these.
PATIENCE_S = 20.0


@pytest.mark.timeout(3600)
async def test_a_scheduler_that_answers_anything(tmp_path: Path) -> None:
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
            said = {c["type"]: c for c in world.status(name).get("conditions", ())}
            if not said:
                unsaid.append(f"{number} ({hostile.how}): its policy was never visited")
            elif hostile.is_broken and said["Ready"]["status"] == "True":
                unsaid.append(f"{number} ({hostile.how}): Ready=True: {said['Ready']['message']}")
            if world.deployments(name) != 3 and hostile.is_broken:
                unsaid.append(f"{number} ({hostile.how}): {world.deployments(name)} workers left")
            if "\\u001b" in json.dumps(world.status(name)):
                unsaid.append(f"{number} ({hostile.how}): escapes in its status")
            world.take_away(name)

    async with world.running():
        using = asyncio.create_task(world.use())
        await asyncio.gather(*map(case, range(CASES)))
        using.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await using

    wrong = [*unsaid, *world.wrong]
    assert not wrong, "\n".join(wrong)
    assert max(world.scaled_s) < 5.0
