"""The page in the dashboard: how it gets in and out, what it shows, that it is no bother."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker
from distributed.core import Status
from tornado.httpclient import AsyncHTTPClient

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install, uninstall
from dask_adaptive_agent.page.looks import FRESH_S
from support.agent_cluster import StillClock
from support.agent_work import ask, ran, retire, until

HAS_BOKEH = importlib.util.find_spec("bokeh") is not None
with_bokeh = pytest.mark.skipif(not HAS_BOKEH, reason="this release is installed without bokeh")

#: Bokeh's own, by release.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:bokeh"),
    pytest.mark.filterwarnings("ignore::bokeh.util.warnings.BokehUserWarning")
    if HAS_BOKEH
    else pytest.mark.filterwarnings("default"),
]

ENTRY = '<a href="adaptive">Adaptive</a>'


@contextlib.asynccontextmanager
async def scheduler(**options: Any) -> AsyncIterator[Any]:
    kwargs = {"port": 0, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", **options}
    async with Scheduler(**kwargs) as s:
        yield s


async def get(s: Any, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{s.http_server.port}/{path}"
    answer = await AsyncHTTPClient().fetch(url, raise_error=False, follow_redirects=False)
    return answer.code, answer.body.decode(errors="replace")


async def pages(s: Any, prefix: str = "") -> dict[str, bool]:
    """Which of these pages are served, and whether each has ours in its navigation bar."""
    served = {}
    for name in ("workers", "adaptive"):  # those that are made quickly
        code, body = await get(s, prefix + name)
        if code == 200:
            served[name] = ENTRY in body
    return served


ALL = {"workers": True, "adaptive": True}
STOCK = {"workers": False}


@pytest.mark.long
@with_bokeh
async def test_it_goes_without_a_trace_and_comes_again(s, monkeypatch) -> None:
    before = list(s.http_application.applications)
    agent = install(s)
    assert 200 == (await get(s, "adaptive"))[0]
    app = agent.page._app
    (session,) = app.get_sessions("/adaptive")
    stock = app.stop

    def stop(wait: bool = True) -> None:
        """As Bokeh's since 3.10, whichever is installed."""
        if wait:
            raise RuntimeError("Cannot synchronously wait on a running event loop")
        stock(wait=False)

    monkeypatch.setattr(app, "stop", stop)

    uninstall(s)

    assert not app._cleanup_job.is_running()
    assert STOCK == await pages(s)
    assert before == s.http_application.applications
    assert session.destroyed
    install(s)
    assert ALL == await pages(s)
    assert 1 == (await get(s, "workers"))[1].count(ENTRY)


@with_bokeh
@pytest.mark.parametrize("prefix", ["team", "/team/a/"])
async def test_it_is_where_the_dashboard_is(prefix) -> None:
    async with scheduler(http_prefix=prefix) as s:
        install(s)

        assert ALL == await pages(s, prefix.strip("/") + "/")
        assert 404 == (await get(s, "adaptive"))[0]


@pytest.mark.long
@with_bokeh
async def test_two_schedulers_of_a_process_have_a_page_each() -> None:
    async with scheduler() as one, scheduler() as other:
        install(one)
        assert (ALL, STOCK) == (await pages(one), await pages(other))
        install(other)

        uninstall(one)

        assert (STOCK, ALL) == (await pages(one), await pages(other))


@with_bokeh
async def test_it_ends_with_its_scheduler() -> None:
    async with scheduler() as s:
        agent = install(s)
        app = agent.page._app
        assert app._cleanup_job.is_running()

    assert not app._cleanup_job.is_running()


async def test_without_a_dashboard_there_is_no_page() -> None:
    async with scheduler(dashboard=False) as s:
        install(s)

        assert 404 == (await get(s, "adaptive"))[0]
        uninstall(s)


#: As in an image without bokeh: a scheduler that is asked for a dashboard says that it is missing.
NO_BOKEH = """
import asyncio, sys
sys.modules["bokeh"] = None
from distributed import Scheduler
from dask_adaptive_agent.agent import install, uninstall
async def main():
    async with Scheduler(port=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as s:
        agent = install(s)
        routes = list(s.http_application.applications)
        uninstall(s)
        assert routes == s.http_application.applications
    assert not [name for name in sys.modules if name.startswith("bokeh.")]
    print("fine")
asyncio.run(main())
"""


def test_without_bokeh_there_is_no_page() -> None:
    done = ran(NO_BOKEH)

    assert (0, "fine") == (done.returncode, done.stdout.strip()), done.stderr
    assert "Traceback" not in done.stderr


async def filled(s: Any, a: Any, b: Any) -> Any:
    """Two workers: one is pinned by a person, the other has had all the runs that it may have."""
    agent = install(s)
    async with Client(s.address, asynchronous=True) as client:
        await client.gather(client.map(abs, range(3), workers=[b.address]))
    await ask(
        s, wire.PIN, names=["a"], source=wire.MANUAL, owner="annotation", ttl_ms=7_200_000,
        reason="<b>look</b>",
    )  # fmt: skip
    await ask(
        s, wire.LIMIT, session=agent.session, names=["b"], runs=[3], left_ms=[5_400_000],
        profile=[0], profiles=[{"failures": 5}], stops=1,
    )  # fmt: skip
    s.handlers[wire.ANNOUNCE](
        policy="etl<", message="2 wanted", arriving=[(3, 20_000)],
        workers=[("a", "from the operator, about a"), ("b", "from the operator, about b")],
        decisions=[
            (1_700_000_000_000, "g", "First", "1 → 2"),
            (1_700_000_060_000, "g", "Last", "x"),
        ],
    )  # fmt: skip
    await ask(s, wire.WANT, workers=4, ttl_ms=60_000, owner="me", group="etl-gpu")
    return agent


@pytest.fixture
async def s() -> AsyncIterator[Any]:
    async with scheduler() as made:
        yield made


@contextlib.asynccontextmanager
async def worker(s: Any, name: str) -> AsyncIterator[Any]:
    """A worker that the scheduler has heard to be running: releases up to 2023.5 say so later."""
    async with Worker(s.address, name=name, nthreads=1, memory_limit=0, dashboard=False) as made:
        await until(lambda: s.workers[made.address].status is Status.running)
        yield made


@pytest.fixture
async def a(s: Any) -> AsyncIterator[Any]:
    async with worker(s, "a") as made:
        yield made


@pytest.fixture
async def b(s: Any) -> AsyncIterator[Any]:
    async with worker(s, "b") as made:
        yield made


async def test_what_it_says_of_workers(s, a, b) -> None:
    agent = await filled(s, a, b)

    workers = agent.page.looks.take().tables["workers"]

    assert ["a", "b"] == workers["name"]
    assert ["pinned", "cordoned"] == workers["state"]
    assert [0, 0] == workers["tasks"]
    assert [0, 3] == workers["runs"]
    assert ["", "3 of 3 runs, ends in 90 min"] == workers["quota"]
    # What has happened since it was told decides, not what the operator has said.
    assert "stays: pinned by manual annotation (<b>look</b>) for 120 min more" == workers["why"][0]
    assert "3 of 3 tasks" in workers["why"][1]


async def test_the_operators_word_counts_while_nothing_has_happened(s, a, b) -> None:
    agent = install(s, clock := StillClock(100.0))
    looks = agent.page.looks
    assert ["active", "active"] == looks.take().tables["workers"]["state"]
    assert all("may leave: idle" in why for why in looks.take().tables["workers"]["why"])
    await ask(s, wire.ANNOUNCE, policy="etl", workers=[("a", "stays: idle timeout")])

    clock.now += FRESH_S
    why = looks.take().tables["workers"]["why"]

    assert "stays: idle timeout" == why[0]
    assert why[1].startswith("may leave")


async def test_a_worker_on_its_way_out(s, agent, a, b) -> None:
    await retire(s, "a", reason="Underutilized")
    await until(lambda: agent.drains.ongoing[a.address].state == wire.DRAINED)

    workers = agent.page.looks.take().tables["workers"]

    assert ["drained", "active"] == workers["state"]
    assert workers["why"][0].startswith("Underutilized: ")


async def test_what_it_says_besides(s, a, b) -> None:
    agent = await filled(s, a, b)

    look = agent.page.looks.take()

    assert "etl&lt;" in look.summary
    assert "2 wanted" in look.summary
    assert "1 pinned" in look.summary
    assert "3 on the way" in look.summary
    decisions, pins, ahead = (look.tables[name] for name in ("decisions", "pins", "ahead"))
    assert ["Last", "First"] == decisions["reason"]
    assert ["2023-11-14 22:14:20", "2023-11-14 22:13:20"] == decisions["at"]
    assert (["manual"], ["annotation"], ["<b>look</b>"], ["a"], ["120 min"]) == (
        pins["source"], pins["owner"], pins["reason"], pins["workers"], pins["left"],
    )  # fmt: skip
    assert (["workers requested"], ["me"]) == (ahead["what"], ahead["who"])
    assert "4 workers of etl-gpu" in ahead["message"][0]


async def test_however_many_look_the_agent_is_asked_once_a_second(s, a) -> None:
    agent = install(s, clock := StillClock(100.0))
    looks = agent.page.looks

    first = looks.take()
    assert looks.take() is first
    clock.now += FRESH_S
    assert looks.take() is not first


async def test_what_cannot_be_read_is_said_once_and_the_rest_is_shown(s, a, caplog) -> None:
    agent = install(s, clock := StillClock(100.0))
    await ask(s, wire.ANNOUNCE, policy="etl", decisions=[(0, "g", "Reason", "said")])
    s.workers[a.address].metrics = None  # as no release has it

    with caplog.at_level(logging.WARNING, logger="dask_adaptive_agent"):
        seen = agent.page.looks.take()
        clock.now += 5
        again = agent.page.looks.take()

    assert "workers can&#x27;t be shown" in seen.summary
    assert not seen.tables["workers"]["name"]
    assert not again.tables["workers"]["name"]
    assert ["Reason"] == seen.tables["decisions"]["reason"]
    assert 1 == len([r for r in caplog.records if "workers on the page" in r.message])
    s.workers[a.address].metrics = {}


@with_bokeh
async def test_only_looking_costs(s, agent, a) -> None:
    async with Client(s.address, asynchronous=True) as client:
        await client.gather(client.map(abs, range(10)))
    await get(s, "workers")
    assert agent.page.looks._last is None
    assert not agent.page._app.get_sessions("/adaptive")

    await get(s, "adaptive")

    assert agent.page.looks._last is not None


@with_bokeh
async def test_it_follows_what_happens_and_sends_only_what_has_changed(s, a) -> None:
    from dask_adaptive_agent.page.document import View

    agent = install(s, clock := StillClock(100.0))
    one, other = View(agent.page.looks), View(agent.page.looks)
    mine, others = (view.tables["workers"].source for view in (one, other))
    old = mine.data
    sent: list[Any] = []
    mine.on_change("data", lambda attr, old, new: sent.append(new))
    assert others.data["name"] is not mine.data["name"]

    await ask(
        s, wire.PIN, names=["a"], source=wire.MANUAL, owner="annotation", ttl_ms=7_200_000,
    )  # fmt: skip
    clock.now += 1
    one.update()

    assert mine.data is old  # patched: what is sorted and scrolled stays so
    assert ["pinned"] == mine.data["state"]
    assert ["active"] == others.data["state"]
    other.update()
    assert ["pinned"] == others.data["state"]
    n_sent = len(sent)
    one.update()
    assert n_sent == len(sent)

    async with worker(s, "c"):
        clock.now += 1
        one.update()
        assert ["a", "c"] == mine.data["name"]


@with_bokeh
async def test_a_dashboard_of_another_make_is_left_alone(s, caplog, monkeypatch) -> None:
    """As if a release had changed what we rely on: the agent is there, its page is not."""
    import distributed.dashboard.scheduler as upstream

    before = list(s.http_application.applications)
    monkeypatch.setattr(upstream, "template_variables", lambda scheduler: {"menu": []})

    install(s)

    assert "goes on without a page" in caplog.text
    assert before == s.http_application.applications
    assert "error" not in await ask(s, wire.OBSERVE)
    assert 200 == (await get(s, "workers"))[0]


@with_bokeh
async def test_what_fails_while_somebody_looks_is_logged_once(s, a, caplog) -> None:
    from dask_adaptive_agent.page.document import View

    agent = install(s)
    view = View(agent.page.looks)
    agent.page.looks.take = None  # type: ignore[assignment, method-assign]

    for _ in range(3):
        view.update()

    assert 1 == len([r for r in caplog.records if "the page in the dashboard" in r.message])
    code, body = await get(s, "adaptive")
    assert 200 == code, body
    assert 200 == (await get(s, "workers"))[0]


@with_bokeh
async def test_what_we_rely_on_in_the_dashboard(s) -> None:
    """One list of pages a scheduler; `/status` tells upstream's application; 404 goes on."""
    import distributed.dashboard.scheduler as upstream

    variables = upstream.template_variables(s)
    assert variables is upstream.template_variables(s)
    assert variables["pages"] is upstream.template_variables(s)["pages"]
    assert "info" in variables["pages"]
    (stock,) = [a for a in s.http_application.applications if hasattr(a, "app_paths")]
    assert "/status" in stock.app_paths
    assert "" == stock.prefix
