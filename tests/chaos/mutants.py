"""
Deliberate faults in the operator, which the rounds have to find; else they prove nothing.

    python -m chaos.mutants [NAME ...]       plays rounds until each is found

An operator applies one to itself, in its own process, before it begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Rounds until a mutant has survived.
MOST_ROUNDS = 8


@dataclass(frozen=True)
class Mutant:
    """
    Attributes:
        faults: Those by which it is to be found; empty: any.
    """

    what: str
    apply: Callable[[], None]
    faults: tuple[str, ...] = ()


def _believe_the_cache() -> None:
    from dask_adaptive.kube.objects import DeploymentObject
    from dask_adaptive.kube.platform import KubePlatform

    set_replicas: Any = KubePlatform.set_replicas

    async def unasked(self: Any, group: str, replicas: int) -> None:
        async def known(*_: Any, **__: Any) -> list[Any]:
            return [d for d in self._world.of(DeploymentObject, self._key) if d.group == group]

        api, self._api = self._api, copy.copy(self._api)
        self._api.list = known
        try:
            await set_replicas(self, group, replicas)
        finally:
            self._api = api

    KubePlatform.set_replicas = unasked  # type: ignore[method-assign]


def _without_uid() -> None:
    from dask_adaptive.kube.api import KubeApi

    delete: Any = KubeApi.delete

    async def anyone(self: Any, path: str, *, uid: str = "") -> Any:
        return await delete(self, path)

    KubeApi.delete = anyone  # type: ignore[method-assign]


def _without_version() -> None:
    from dask_adaptive.kube.api import KubeApi

    patch: Any = KubeApi.patch

    async def forced(self: Any, path: str, body: Any, **how: Any) -> Any:
        if path.endswith("/scale"):
            body = {"spec": body["spec"]}
        return await patch(self, path, body, **how)

    KubeApi.patch = forced  # type: ignore[method-assign]


def _without_asking() -> None:
    from dask_adaptive.loop import act
    from dask_adaptive.model.plan import Delete, Outcome

    take_away: Any = act._take_away

    async def at_once(action: Any, policy: Any, ports: Any) -> Any:
        if not isinstance(action, Delete):
            return await take_away(action, policy, ports)
        await ports.platform.delete_worker(action.worker, action.uid)
        return Outcome(action, True, action.reason, action.message)

    act._take_away = at_once


def _without_leading() -> None:
    from dask_adaptive.controller.lease import LeaderLease

    LeaderLease.check = lambda self: None  # type: ignore[method-assign]
    LeaderLease._is_late = lambda self: False  # type: ignore[method-assign]


def _deaf() -> None:
    from dask_adaptive.kube.api import KubeError
    from dask_adaptive.kube.cache.informer import Informer

    async def once(self: Any) -> None:
        version = await self._world.read(self._api, self._scope)
        self._world.sees(self._scope)
        with contextlib.suppress(KubeError):
            await self._follow(version)
        await asyncio.Event().wait()

    Informer.run = once  # type: ignore[method-assign]


def _hasty() -> None:
    from dask_adaptive.backoff import Backoff

    Backoff.next_s = lambda self, at_least_s=0.0: 0.2  # type: ignore[method-assign]


MUTANTS = {
    "believe-the-cache": Mutant(
        "lowers `replicas` by what the watch has told", _believe_the_cache,
        ("kind_silent", "kind_late", "upstream_slow"),
    ),
    "without-uid": Mutant("deletes by name", _without_uid),
    "without-version": Mutant("scales whoever has written since", _without_version),
    "without-asking": Mutant("deletes what it saw drained a moment ago", _without_asking),
    "without-leading": Mutant(
        "writes though another one leads", _without_leading, ("leader_cut_off",),
    ),
    "deaf": Mutant("stops watching after an error", _deaf, ("stream_error", "kind_unavailable")),
    "hasty": Mutant("tries again at once", _hasty, ("kind_unavailable", "flaky")),
}  # fmt: skip


def hunt(name: str) -> str:
    """Returns how a mutant was found; empty if it was not."""
    mutant = MUTANTS[name]
    only = ["--only", *mutant.faults] if mutant.faults else []
    for seed in range(1, MOST_ROUNDS + 1):
        command = [sys.executable, "-m", "chaos", "--seed", str(seed), "--mutant", name, *only]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [line for line in done.stdout.splitlines() if "WRONG: " in line]
        if found:
            return f"round {seed}: {found[0].partition('WRONG: ')[2]}"
    return ""


def main() -> None:
    survived = []
    for name in sys.argv[1:] or MUTANTS:
        how = hunt(name)
        print(f"{name} ({MUTANTS[name].what}): {how or 'NOT FOUND'}", flush=True)
        survived += [] if how else [name]
    sys.exit(f"not found: {', '.join(survived)}" if survived else 0)


if __name__ == "__main__":
    main()
