"""Reliefs, configuration and what serializing costs, as they reach the operator."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import dask.config
import pytest
from distributed import Client

from dask_adaptive.local.processes import Machine
from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.status import SCHEDULER_CONFIGURED
from dask_adaptive.model.observed import Quiet, Serialized, SerializedFunction, Want
from dask_adaptive.model.policy import ClusterRef, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scheduler_settings import scheduler_settings
from dask_adaptive.rehearse.rehearsal import Rehearsal
from dask_adaptive.rehearse.views import Watcher
from dask_adaptive.scheduler.link import Link
from dask_adaptive_agent import wire
from dask_adaptive_agent.loading.attach import install
from support.agent_work import observe_once, until

TTL = "distributed.scheduler.worker-ttl"
LEVELS = {"distributed": {"logging": {"distributed.core": "debug"}}}
PLAIN = Policy(ClusterRef("t"), 3)


def policy(config: Any = None, **relief: str) -> Policy:
    spec = {"scheduler": {"relief": relief, "config": config or {}}}
    return dataclasses.replace(PLAIN, scheduler=scheduler_settings(spec))


def told(s: Any, **more: Any) -> Any:
    """The scheduler's next snapshots say this, too."""
    agent, stock = install(s), s.handlers[wire.OBSERVE]

    def observe(**request: Any) -> Any:
        answer = {**stock(**request), **more}
        return {key: value for key, value in answer.items() if value is not Ellipsis}

    s.handlers[wire.OBSERVE] = observe
    return agent


async def test_the_agent_hears_what_is_wanted_and_again_when_that_changes(
    s: Any, link: Link
) -> None:
    agent = install(s)
    await link.observe(policy({TTL: "10m", **LEVELS}, pickling="Shared", host="Disabled"))

    assert {"pickling": "Shared", "host": "Disabled"} == agent.settings.relief
    config = {TTL: "10m", "distributed.logging": {"distributed.core": "debug"}}
    assert config == agent.settings.config

    await link.observe(PLAIN)
    assert ({}, {}) == (agent.settings.relief, agent.settings.config)


async def test_every_relief_is_reported_with_its_state(s: Any, link: Link) -> None:
    agent = install(s)
    seen = await link.observe(policy(**dict.fromkeys(wire.RELIEFS, wire.DISABLED)))

    assert [row["name"] for row in agent.reliefs.rows()] == [r.name for r in seen.relief]
    assert {wire.R_DISABLED} >= {r.state for r in seen.relief}


async def test_configuration_is_checked_where_it_is_to_work(s: Any, link: Link) -> None:
    wanted = {TTL: "11m", "distributed.scheduler.worker-tll": "11m", **LEVELS}
    seen = await link.observe(policy(wanted))

    assert seen.config is not None
    assert {
        TTL: wire.K_PENDING,
        "distributed.scheduler.worker-tll": wire.K_UNKNOWN,
        "distributed.logging": wire.K_PENDING,
    } == {problem.key: problem.state for problem in seen.config}
    assert () == (await link.observe(PLAIN)).config


async def test_what_serializing_costs_is_read(s: Any, link: Link) -> None:
    row = {"function": "etl.step", "calls": 2, "us": 1_500_000, "bytes": 70, "size": 40}
    whole = {"calls": 3, "us": 2_000_000, "bytes": 100, "share": 25, "top": [row] * 12}
    told(s, serialized=whole)
    seen = await link.observe(PLAIN)

    one = SerializedFunction("etl.step", 2, 1.5, 70, 40)
    assert Serialized(3, 2.0, 100, 0.25, (one,) * 10) == seen.serialized
    assert seen.serialized == (await observe_once(s.address)).serialized


async def test_wants_and_idleness_are_read(s: Any, link: Link) -> None:
    want = {"workers": 3, "left_ms": 1500, "owner": "x", "group": "g"}
    told(s, wants=[want], quiet={"no_task_ms": 2500, "no_client_ms": 0})
    seen = await link.observe(PLAIN)

    assert ((Want(3, 1.5, "x", "g"),), Quiet(2.5, 0.0)) == (seen.wants, seen.quiet)


async def test_an_older_agent_tells_of_none_of_it(s: Any, link: Link) -> None:
    told(s, relief=..., config=..., serialized=..., meters=..., stops=..., wants=..., quiet=...)
    seen = await link.observe(policy({TTL: "11m"}))

    assert seen.is_connected
    assert ((), None, None) == (seen.relief, seen.config, seen.serialized)
    assert ((), Quiet(0.0, 0.0)) == (seen.wants, seen.quiet), "and the cluster counts as in use"


async def test_what_the_agent_warns_of_arrives_once(s: Any, link: Link) -> None:
    agent = install(s)
    await link.observe(PLAIN)
    for kind in (wire.N_RELIEF_FAILED, wire.N_SERIALIZATION_HEAVY):
        agent.notes.add(kind, "said")
    notes = (await link.observe(PLAIN)).notes

    assert [Reason.RELIEF_FAILED, Reason.SERIALIZATION_HEAVY] == [n.kind for n in notes][-2:]
    assert () == (await link.observe(PLAIN)).notes


async def test_a_snapshot_that_is_half_one_is_none(s: Any, link: Link) -> None:
    told(s, config=[{"key": "a"}])
    seen = await link.observe(PLAIN)

    assert Reason.SCHEDULER_UNREACHABLE is seen.problem


class Last(Watcher):
    """The last pass of a rehearsal."""

    result: PassResult | None = None

    def saw(self, result: PassResult) -> None:
        self.result = result

    def condition(self) -> tuple[bool | None, Reason] | None:
        conditions = self.result.status.conditions if self.result else ()
        found = (c for c in conditions if c.type == SCHEDULER_CONFIGURED)
        return next(((c.status, c.reason) for c in found), None)


@pytest.mark.thorough
async def test_a_rehearsal_starts_with_what_the_policy_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: variables, Dask's own reading of them, the agent's check, the condition."""
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "7")  # the shell's own
    operator = Path(__file__).parents[2] / "operator"
    monkeypatch.setenv("PYTHONPATH", str(operator))  # where only distributed is installed
    failures = "distributed.scheduler.allowed-failures"
    config = {TTL: "10m", failures: 9, "distributed": {"nanny": {"environ": {"A_B": "c"}}}}
    last = Last()
    wanted = policy(config, pickling="Shared", idle="Disabled")
    async with Rehearsal(wanted, tmp_path, Machine(), watchers=(last,)) as rehearsal:
        await until(lambda: last.condition() is not None)
        assert (False, Reason.PENDING_RESTART) == last.condition(), "the shell's own counts"
        rehearsal.policy = policy({k: v for k, v in config.items() if k != failures})
        await until(lambda: last.condition() == (True, Reason.RECONCILED))
        async with Client(rehearsal.address, asynchronous=True) as client:
            keys = (TTL, failures, "distributed.nanny.environ.A_B")
            found = [await client.run_on_scheduler(dask.config.get, key) for key in keys]
            variable = await client.run_on_scheduler(os.getenv, "DASK_ADAPTIVE_RELIEF")

        assert ["10m", 7, "c"] == found
        assert "idle=Disabled,pickling=Shared" == variable
        rehearsal.policy = policy({"distributed.scheduler.nope": 1})
        await until(lambda: last.condition() == (False, Reason.CONFIG_UNKNOWN))
