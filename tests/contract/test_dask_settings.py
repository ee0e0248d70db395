"""Dask's configuration that people want: how it gets into a scheduler, and what is said of it."""

from __future__ import annotations

from typing import Any

import dask
import dask.config
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_adaptive.model.scheduler_settings import (
    INHERIT,
    SchedulerSettings,
    flat,
    json_by_key,
    of_scheduler,
    read_settings,
)
from dask_adaptive_agent import answers, wire
from support.agent_cluster import with_agent
from support.agent_work import ask

TTL = "distributed.scheduler.worker-ttl"


@pytest.mark.parametrize(
    ("key", "wanted", "expected"),
    [
        (TTL, "11m", "5 minutes"),
        ("distributed.scheduler.worker_ttl", "11m", "5 minutes"),
        ("distributed.worker.resources", 1, {}),
        ("ours.logging", {"a.b": "debug", "x_y": 1, "c.d": 2}, {"a.b": "info", "x_y": 3}),
        ("ours.a_list", 1, [1, [2.5, None, True]]),
        ("ours.object", 1, "{1}"),
        ("ours.no-text", 1, "\\udc80"),
    ],
)
def test_a_value_in_force_can_be_sent(key: str, wanted: Any, expected: Any) -> None:
    ours = {
        "logging": {"a.b": "info", "x-y": 3, "e.f": "not asked for"},
        "a-list": (1, [2.5, None, True]),
        "object": {1},
        "no-text": "\udc80",
    }
    with dask.config.set(ours=ours):
        found = answers.in_force({key: wanted})

    assert {key: expected} == msgpack.loads(msgpack.dumps(found))


def test_a_key_without_a_value_is_left_out() -> None:
    assert {} == answers.in_force({"distributed.scheduler.nope": 1, f"{TTL}.x": 2})


def test_a_value_that_is_long_is_cut() -> None:
    with dask.config.set({"ours.long": ["x"] * 100_000}):
        assert answers.LONGEST == len(answers.in_force({"ours.long": 1})["ours.long"])


def test_a_name_that_this_release_has_replaced_is_read_as_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(dask.config.deprecations, "old-ttl", TTL)
    monkeypatch.setitem(dask.config.deprecations, "gone", None)

    found = answers.in_force({"old_ttl": 1, "gone": 1})

    assert {"old_ttl": "5 minutes"} == found


@with_agent(0, client=False)
async def test_a_snapshot_has_the_values_in_force_and_nothing_is_set(s) -> None:
    await ask(s, wire.CONFIGURE, config={TTL: "11m", "distributed.scheduler.nope": 1})

    assert {TTL: "5 minutes"} == (await ask(s, wire.OBSERVE))["config_in_force"]
    assert "5 minutes" == dask.config.get(TTL)
    await ask(s, wire.CONFIGURE, config={})
    assert {} == (await ask(s, wire.OBSERVE))["config_in_force"]


CONFIG = {
    "distributed": {
        "scheduler": {"worker-ttl": "10m", "allowed-failures": 10, "blocked-handlers": ["a", "b"]},
        "logging": {"distributed.core": "debug", "bokeh": "error"},
        "nanny": {"environ": {"OMP_NUM_THREADS": 2}},
        "comm": {"compression": None, "retry": {"count": 0}},
        "admin": {"pdb-on-err": False, "log-format": "%(name)s - 10"},
    },
    "temporary-directory": "/tmp/$(x)",
    "array.slicing.split-large-chunks": True,
    "jobqueue": {"name": "10", "none": "none", "nested": [{"a": [1.5, None]}]},
}


def environment(config: Any, *taken: str, has_unseen: bool = False) -> dict[str, str]:
    wanted = SchedulerSettings(config=read_settings(config))
    return dict(of_scheduler(wanted, taken, has_unseen=has_unseen).variables)


def holds(config: Any, env: dict[str, str]) -> bool:
    """Whether Dask, with its defaults and these variables, has the configuration."""
    running: dict[str, Any] = {}
    dask.config.refresh(config=running, env=env, paths=[])
    wanted = flat(read_settings(config))
    with dask.config.set(running):
        return json_by_key(answers.in_force(wanted)) == json_by_key(wanted)


@pytest.mark.parametrize("has_unseen", [False, True])
def test_dask_reads_out_of_the_variables_what_was_put_in(has_unseen: bool) -> None:
    env = environment(CONFIG, has_unseen=has_unseen)

    assert holds(CONFIG, env), env
    assert has_unseen == ("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL" not in env)


def test_what_the_pod_says_itself_counts() -> None:
    theirs = {
        "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "1h",
        "DASK_DISTRIBUTED__COMM": "{'compression': 'zlib'}",
        "DASK_DISTRIBUTED__LOGGING__BOKEH": "info",
    }
    for env in (environment(CONFIG, *theirs), environment(CONFIG, has_unseen=True)):
        for both in ({**env, **theirs}, {**theirs, **env}):  # their order must not matter
            running = dask.config.collect_env(both)

            assert "1h" == dask.config.get(TTL, config=running)
            assert "zlib" == dask.config.get("distributed.comm.compression", config=running)
            logging: Any = dask.config.get("distributed.logging", config=running)
            assert {"distributed.core": "debug", "bokeh": "info"} == logging
            failures = dask.config.get("distributed.scheduler.allowed-failures", config=running)
            assert 10 == failures


names = st.text("abcxyzAZ09-_. ", min_size=1, max_size=6).filter(str.strip)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=8),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["10", "None", "true", "1e3", "(1,", "'x'", " 5", "[1]", "$(HOME)", "a\nb"]),
)  # fmt: skip
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
trees = st.dictionaries(
    st.sampled_from(["zz-top", "zz_other", "ZZ"]),
    st.recursive(values, lambda inner: st.dictionaries(names, inner, max_size=3), max_leaves=8),
)


@settings(max_examples=100, deadline=None)
@given(trees, st.booleans())
def test_any_configuration_arrives_as_it_is(tree: Any, has_unseen: bool) -> None:
    try:
        wanted = read_settings(tree)
    except ValueError:
        return  # refused, with a sentence; test_policy_scheduler is about those
    env = environment(tree, has_unseen=has_unseen)

    assert holds(tree, env), env
    assert wanted == read_settings(flat(wanted)) or any(
        "." in part for s in wanted for part in s.path
    )
    for name, value in env.items():
        assert name == INHERIT or name.startswith("DASK_"), value
