"""Dask's configuration that people want: how it gets into a scheduler, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.config
import distributed
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_adaptive.model.scheduler_settings import (
    INHERIT,
    SchedulerSettings,
    flat,
    nested,
    of_scheduler,
    read_settings,
)
from dask_adaptive_agent import dask_config, wire
from support.agent_cluster import with_agent
from support.agent_work import ask

TTL = "distributed.scheduler.worker-ttl"


def leaves(node: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from leaves(value, (*above, key))
        else:
            yield ".".join((*above, key)), value


def problem(key: str, value: Any) -> tuple[str, str]:
    """State and message of one setting; ("", "") if all is well."""
    rows = dask_config.rows({key: value})
    return (rows[0]["state"], rows[0]["message"]) if rows else ("", "")


def test_the_defaults_of_every_release_are_known_and_valid() -> None:
    every = [leaf for defaults in dask.config.defaults for leaf in leaves(defaults)]
    found = {k: problem(k, v) for k, v in every}

    assert len(every) > 100
    assert [] == [(k, at) for k, at in found.items() if at[0] in (wire.K_UNKNOWN, wire.K_INVALID)]


def test_what_distributed_reads_is_known() -> None:
    """Each key in its own source, even where no schema and no default names it."""
    read = set[str]()
    for path in Path(str(distributed.__file__)).parent.rglob("*.py"):
        if "tests" not in path.parts:
            read |= set(re.findall(r'config\.get\(\s*"(distributed\.[\w.-]+)"', path.read_text()))

    assert len(read) > 50
    assert [] == sorted(key for key in read if problem(key, None)[0] == wire.K_UNKNOWN)


@pytest.mark.parametrize(
    ("key", "value", "state", "words"),
    [
        ("distributed.scheduler.wroker-ttl", "10m", wire.K_UNKNOWN, "does not know it"),
        ("distributed.scheduler.worker-ttl.x", 1, wire.K_UNKNOWN, "distributed 20"),
        ("distrbuted.scheduler.worker-ttl", "10m", wire.K_UNKNOWN, "dask 20"),
        ("jobqueue.slurm.cores", 4, wire.K_UNKNOWN, "does not know it"),
        (TTL, 600, wire.K_INVALID, "600 is not string or null"),
        (TTL, "banana", wire.K_INVALID, "'banana' is not a duration such as 5 minutes"),
        ("distributed.comm.shard", "64 apples", wire.K_INVALID, "not a number of bytes such as 64"),
        ("distributed.scheduler.allowed-failures", -1, wire.K_INVALID, "-1 is less than 0"),
        ("distributed.scheduler.allowed-failures", True, wire.K_INVALID, "True is not integer"),
        ("distributed.scheduler.work-stealing", "yes", wire.K_INVALID, "'yes' is not boolean"),
        ("distributed.scheduler.worker-saturation", 0, wire.K_INVALID, "above 0 or 'inf'"),
        ("distributed.worker.memory.target", 1.5, wire.K_INVALID, "up to 1"),
        ("distributed.worker.multiprocessing-method", "x", wire.K_INVALID, "is not one of 'spawn'"),
        ("distributed.scheduler.preload-argv", "--x", wire.K_INVALID, "is not array"),
        (TTL, "11m", wire.K_PENDING, "it runs with '5 minutes', not '11m'"),
        ("distributed.scheduler.worker_ttl", "11m", wire.K_PENDING, "'5 minutes', not '11m'"),
        ("distributed.worker.memory.target", False, wire.K_PENDING, "not False"),
        ("distributed.nanny.environ.SECRET", "x", wire.K_PENDING, "it runs with another value"),
        ("distributed.logging", {"distributed.core": "debug"}, wire.K_PENDING, "another value"),
        ("distributed.worker.resources.GPU", 1, wire.K_PENDING, "another value"),
        (TTL, "5 minutes", "", ""),
        ("distributed.scheduler.worker_ttl", "5 minutes", "", ""),
        ("distributed.worker.resources", {}, "", ""),
    ],
)  # fmt: skip
def test_what_is_said_of_a_setting(key: str, value: Any, state: str, words: str) -> None:
    found, message = problem(key, value)

    assert state == found, message
    assert words in message


def test_a_name_that_this_release_has_replaced_is_read_as_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(dask.config.deprecations, "old-ttl", TTL)
    monkeypatch.setitem(dask.config.deprecations, "gone", None)

    assert ("", "") == problem("old-ttl", "5 minutes")
    assert wire.K_PENDING == problem("old-ttl", "1 minute")[0]
    assert (wire.K_UNKNOWN, True) == (problem("gone", 1)[0], "removed" in problem("gone", 1)[1])


def test_another_packages_settings_are_known_once_it_has_said_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = {"jobqueue": {"slurm": {"cores": None, "job-extra": {}}}}
    monkeypatch.setattr(dask.config, "defaults", [*dask.config.defaults, ours])

    assert wire.K_PENDING == problem("jobqueue.slurm.cores", 4)[0]
    assert wire.K_PENDING == problem("jobqueue.slurm.job_extra.x", 4)[0]
    assert wire.K_UNKNOWN == problem("jobqueue.slurm.coers", 4)[0]


def test_a_value_that_may_be_a_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {"coiled": {"token": None}}
    monkeypatch.setattr(dask.config, "defaults", [*dask.config.defaults, ours])
    with dask.config.set({"coiled.token": "theirs"}):
        state, message = problem("coiled.token", "mine")

    assert wire.K_PENDING == state
    assert "theirs" not in message
    assert "mine" not in message


def test_the_variable_that_may_stand_in_the_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "1h")

    assert "its pod sets DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL" in problem(TTL, "11m")[1]


def test_without_schemas_only_the_defaults_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(paths: Any) -> Any:
        raise ValueError("malformed")

    dask_config._schema.cache_clear()
    monkeypatch.setattr(dask.config, "collect_yaml", unreadable)
    try:
        assert wire.K_PENDING == problem(TTL, "11m")[0]
        assert wire.K_PENDING == problem("distributed.scheduler.allowed-failures", -1)[0]
    finally:
        dask_config._schema.cache_clear()


@with_agent(0, client=False)
async def test_a_snapshot_says_what_waits_and_nothing_is_set(s) -> None:
    await ask(s, wire.CONFIGURE, config={TTL: "11m", "distributed.scheduler.nope": 1})
    before = dask.config.get(TTL)
    rows = (await ask(s, wire.OBSERVE))["config"]

    assert {TTL: wire.K_PENDING, "distributed.scheduler.nope": wire.K_UNKNOWN} == {
        row["key"]: row["state"] for row in rows
    }
    assert before == dask.config.get(TTL)
    await ask(s, wire.CONFIGURE, config={})
    assert [] == list((await ask(s, wire.OBSERVE))["config"])


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
    got: Any = dask_config._holds
    return bool(got(running, nested(read_settings(config))))


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


def test_a_mapping_holds_names_with_dots() -> None:
    wanted = read_settings(CONFIG)

    assert {"distributed.core": "debug"} == flat(wanted)["distributed.logging"]
    assert "error" == flat(wanted)["distributed.logging.bokeh"]
