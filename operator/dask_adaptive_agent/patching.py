"""
The one place where upstream's code is changed, and put back.

`TARGETS` lists every method, handler, class attribute and function of distributed that the agent
replaces while it runs; `docs/contributing/patches.md` is made from it. To change something else,
add a `Target` to the table and put a hook there:

    patch = patches.put(patching.RETIRE_WORKERS, wrap)       # wrap(stock) returns the new call
    patch = patches.listen(patching.TASK_FINISHED, listener)  # listener(message), before stock code
    patch.remove()                                           # or patches.close(), for all

`put` and `listen` raise `Mismatch` where this release, or somebody else's patch, is not what the
target expects: the caller then does without its feature. Each place gets one layer of ours, however
many hooks it has. The layer goes with its last hook, in whatever order hooks go. If somebody else
has wrapped the layer meanwhile, theirs stays, and ours only calls stock code from then on.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MethodType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakSet

from distributed.scheduler import Scheduler, WorkerState

from dask_adaptive_agent.guard import logged

logger = logging.getLogger(__name__)

Call = Callable[..., Any]
Wrap = Callable[[Any], Any]
Listener = Callable[[dict[str, Any]], None]

_ABSENT: Any = object()

#: The way out of all of the agent.
NO_AGENT = '`dask-adaptive.dev/inject: "false"`'


class Mismatch(Exception):
    """Upstream's code is not as expected, or ours does not give its answers."""


@dataclass(frozen=True)
class Releases:
    """Releases of distributed from one on, and before another; empty: there is no such bound."""

    since: str = ""
    before: str = ""

    def __contains__(self, release: str) -> bool:
        number = _number(release)
        is_before = not self.before or number < _number(self.before)
        return _number(self.since) <= number and is_before

    def __str__(self) -> str:
        bounds = [f"{self.since} and later"] if self.since else []
        bounds += [f"before {self.before}"] if self.before else []
        return ", ".join(bounds) or "all"


def _number(release: str) -> list[int]:
    """Of `2026.7.0+3.g1a2b3c4`: 2026, 7 and 0."""
    return [int(part) for part in re.findall(r"\d+", release)[:3]]


@dataclass(frozen=True)
class Target:
    """
    One place of upstream's. The comment over it says why we are there; the documentation quotes it.

    Its owner is `Scheduler`, `Scheduler.handlers` or `Scheduler.stream_handlers`, of one scheduler;
    `extensions.NAME`, that extension of it; `module` or `module:Class`, for the process. Anything
    else is a kind of object; `put` and `listen` are given the one that is meant.
    """

    owner: str
    name: str  # of the attribute, or the key
    when: str = "always"  # it is in force
    way_out: str = NO_AGENT  # how people do without it; where a guard fails, it is off by itself
    releases: Releases = Releases()  # of distributed where it is patched
    #: Raises `Mismatch` unless upstream's code behaves as known. It gets the scheduler and what is
    #: there without us. The documentation quotes its docstring.
    guard: Callable[[Any, Any], None] | None = None
    proof: str = ""  # what is compared besides, by whoever puts something there

    def __str__(self) -> str:
        if self.owner.endswith("handlers"):
            return f'{self.owner}["{self.name}"]'
        return f"{self.owner.replace(':', '.')}.{self.name}"


@dataclass(eq=False)
class Patch:
    """One hook of ours at one target."""

    target: Target
    layer: _Layer | _Shared
    hook: Any
    is_listener: bool = False  # called with the message alone, before the wraps

    @property
    def is_on(self) -> bool:
        return self in self.layer.patches

    @property
    def is_called(self) -> bool:
        """Tells whether calls still come to us, through whatever others have put over ours."""
        return self.is_on and self.layer.is_called

    @property
    def stock(self) -> Any:
        """The code that is there without us."""
        return self.layer.stock

    def remove(self) -> None:
        """Harmless when it has been removed already."""
        if self.is_on:
            self.layer.remove(self)


class Patches:
    """All that one agent has changed. To be used on the scheduler's event loop."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler: Any = scheduler
        self._patches: list[Patch] = []

    def put(self, target: Target, wrap: Wrap, owner: Any = None) -> Patch:
        """
        Replace what is there by `wrap(what is there)`.

        What is replaced for the process serves all its schedulers: it must do for those without an
        agent what upstream does. The first `wrap` is used for all who put one there.
        """
        return self._add(target, wrap, owner)

    def listen(self, target: Target, listener: Listener) -> Patch:
        """Call `listener(message)`, which may change it, before what handles a stream so far."""
        return self._add(target, listener, None, is_listener=True)

    def _add(self, target: Target, hook: Any, owner: Any, *, is_listener: bool = False) -> Patch:
        """Raises `Mismatch`."""
        if owner is None:
            owner = _owner(target, self._scheduler)
        is_shared = isinstance(owner, (type, ModuleType))
        layer = _Shared.at(owner, target.name) if is_shared else _Layer.at(owner, target.name)
        if target.guard is not None and all(patch.target is not target for patch in layer.patches):
            target.guard(self._scheduler, layer.stock)
        patch = Patch(target, layer, hook, is_listener)
        layer.add(patch)
        self._patches = [*(one for one in self._patches if one.is_on), patch]
        return patch

    def before_removals(self, is_announced: Callable[[WorkerState], bool]) -> list[Patch]:
        """
        Call `is_announced(worker)` before the scheduler forgets a worker, which still has all it
        had. True: it was said that its process ends, so none of its tasks is charged with that.

        `SchedulerPlugin.remove_worker` comes too late: the worker's tasks have been released, and
        its results are on nobody's books.
        """

        def wrap(stock: Call) -> Call:
            # Older releases call it `safe`; somebody's wrapper may take neither.
            uncharged = {
                name: True for name in ("expected", "safe") if name in _signature(stock).parameters
            }

            @functools.wraps(stock)
            async def remove_worker(address: str, *args: Any, **kwargs: Any) -> Any:
                # As `Scheduler.remove_worker` finds it: most callers have it as the books do.
                ws = self._scheduler.workers.get(address)
                # Fail open: the worker goes, counted or not.
                with logged(logger, "Failed to count what worker %s had", address):
                    if ws is not None and is_announced(ws):
                        kwargs.update(uncharged)
                return await stock(address, *args, **kwargs)

            return remove_worker

        # `handle_worker` and `retire_workers` call the method, a worker that closes the handler.
        return [self.put(target, wrap) for target in (REMOVE_WORKER, REMOVE_WORKER_RPC)]

    @contextlib.contextmanager
    def together(self) -> Iterator[list[Patch]]:
        """All that is put meanwhile, or nothing if one of it can't be."""
        before = set(self._patches)
        added: list[Patch] = []
        try:
            yield added
        except BaseException:
            for patch in reversed(self._patches):
                if patch not in before:
                    patch.remove()
            raise
        added += [patch for patch in self._patches if patch not in before]

    def close(self) -> None:
        for patch in reversed(self._patches):
            patch.remove()
        self._patches = []


def _owner(target: Target, scheduler: Any) -> Any:
    """Raises `Mismatch` where this scheduler, or this release, has none."""
    module, _, name = target.owner.partition(":")
    try:
        if target.owner == "Scheduler":
            return scheduler
        if target.owner.startswith("Scheduler."):
            return getattr(scheduler, target.owner.partition(".")[2])
        if target.owner.startswith("extensions."):
            return scheduler.extensions[target.owner.partition(".")[2]]
        found = importlib.import_module(module)
        return getattr(found, name) if name else found
    except (ImportError, AttributeError, KeyError) as error:
        raise Mismatch(f"there is no {target.owner} here: {error!r:.100}") from None


class _Place(NamedTuple):
    """An attribute of an object, or an entry of a dict."""

    owner: Any
    name: str

    def read(self) -> Any:
        """The entry itself: of an object, not of its class."""
        entries = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        return entries.get(self.name, _ABSENT)

    def call(self) -> Any:
        """The call that callers find; None: nothing."""
        if isinstance(self.owner, dict):
            return self.owner.get(self.name)
        return getattr(self.owner, self.name, None)

    def write(self, value: Any) -> None:
        if isinstance(self.owner, dict):
            self.owner[self.name] = value
        elif value is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)


class _Layer:
    """
    Lies over one method or handler of one scheduler: listeners, then wraps, then what was there.
    The function in the place stays the same while hooks come and go: others may wrap it.
    """

    def __init__(self, place: _Place) -> None:
        self._place = place
        self._before = place.read()
        self.stock: Call = place.call()
        if not callable(self.stock):
            raise Mismatch(f"there is no {place.name} here that can be called")
        self.patches: list[Patch] = []
        self._listeners: list[Listener] = []
        self._current = self.stock

        def function(*args: Any, **kwargs: Any) -> Any:
            # `Server.handle_stream` calls handlers by keyword alone.
            for listener in self._listeners:
                try:
                    listener(kwargs)
                except Exception:
                    # Fail open: the scheduler hears of it, whatever we make of it.
                    logger.exception("Failed to note a message of a worker")
            # A server hands the connection to handlers that ask for it, as some of ours did.
            if self._takes_no_comm and args and hasattr(args[0], "peer_address"):
                args = args[1:]
            return self._current(*args, **kwargs)

        function.layer_of_ours = self  # type: ignore[attr-defined]
        self._function = function

    @classmethod
    def at(cls, owner: Any, name: str) -> _Layer:
        """The one that is there, also below somebody's wrapper, or a new one."""
        place = _Place(owner, name)
        for call in _wrapped(place.call()):
            layer = getattr(call, "layer_of_ours", None)
            # `functools.wraps` copies attributes to wrappers that are not ours.
            if isinstance(layer, cls) and layer._function is call:
                return layer
        return cls(place)

    @property
    def is_called(self) -> bool:
        return any(call is self._function for call in _wrapped(self._place.call()))

    def add(self, patch: Patch) -> None:
        self._set([*self.patches, patch])
        if not self.is_called:
            self._place.write(self._function)

    def remove(self, patch: Patch) -> None:
        self._set([one for one in self.patches if one is not patch])
        if not self.patches:
            self._current = self._passing
            self._put_back_if_unused()

    def _set(self, patches: list[Patch]) -> None:
        call = self.stock
        for patch in patches:
            if not patch.is_listener:
                call = patch.hook(call)
        self.patches, self._current = patches, call
        self._listeners = [one.hook for one in reversed(patches) if one.is_listener]
        # Servers look at the arguments and the name of a handler, `is_called` at what it wraps.
        functools.update_wrapper(self._function, call, updated=())
        signature = _signature(call)
        self._function.__signature__ = signature  # type: ignore[attr-defined]
        is_handler = isinstance(self._place.owner, dict)
        self._takes_no_comm = is_handler and "comm" not in signature.parameters
        # Since 2024.7.0 servers keep what a function's signature told them.
        told = getattr(sys.modules.get("distributed.core"), "_expects_comm", None)
        getattr(told, "cache_clear", lambda: None)()

    def _put_back_if_unused(self) -> None:
        if not self.patches and self._place.read() is self._function:
            self._place.write(self._before)

    def _passing(self, *args: Any, **kwargs: Any) -> Any:
        """Unused, below somebody's wrapper, who may have gone meanwhile."""
        self._put_back_if_unused()
        return self.stock(*args, **kwargs)


def _signature(call: Any) -> inspect.Signature:
    """The signature that servers see; Python 3.9 finds `self` behind a bound method."""
    bare = inspect.unwrap(
        call, stop=lambda one: isinstance(one, MethodType) or hasattr(one, "__signature__")
    )
    return inspect.signature(bare)


def _wrapped(call: Any) -> Iterator[Any]:
    """A call, what it wraps, and so on."""
    while call is not None:
        yield call
        call = getattr(call, "__wrapped__", None)


class _Shared:
    """
    An attribute of a class or a module, replaced for the process while anybody holds it.

    It is called often, so nothing stands before ours, which does as stock code where nobody does.
    """

    _all: dict[tuple[Any, str], _Shared] = {}  # noqa: RUF012 - those of this process

    def __init__(self, owner: Any, name: str) -> None:
        self._place = _Place(owner, name)
        self._before: Any = _ABSENT
        self._ours: Any = _ABSENT
        # A holder that dies with its scheduler, without letting go, does not hold it any more.
        self.patches: WeakSet[Patch] = WeakSet()

    @classmethod
    def at(cls, owner: Any, name: str) -> _Shared:
        return cls._all.setdefault((owner, name), cls(owner, name))

    @property
    def is_called(self) -> bool:
        """True as far as is known: what somebody has put over ours may call ours or not."""
        return self._ours is not _ABSENT and self._place.read() is self._ours

    @property
    def stock(self) -> Any:
        """The function or descriptor in the class."""
        there = self._place.read() if self._ours is _ABSENT else self._before
        if there is _ABSENT:
            raise Mismatch(f"{self._place.owner!r:.80} has no {self._place.name} of its own")
        return there

    def add(self, patch: Patch) -> None:
        if self._ours is _ABSENT:
            before = self.stock
            self._ours, self._before = patch.hook(before), before
            self._place.write(self._ours)
        self.patches.add(patch)

    def remove(self, patch: Patch) -> None:
        self.patches.discard(patch)
        if not self.patches:
            if self.is_called:
                self._place.write(self._before)
            self._before = self._ours = _ABSENT


class Delegate:
    """Stands for a scheduler in one of its own methods: what is not set here is the scheduler's."""

    def __init__(self, scheduler: Scheduler, **overrides: Any) -> None:
        self.__dict__.update(overrides)
        self.__dict__["_scheduler"] = scheduler

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # `super()` in one of its methods asks for it.
        return type(self.__dict__["_scheduler"])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_scheduler"], name)


def _takes(*fields: str) -> Callable[[Any, Any], None]:
    """A guard: what is called with these fields by name, as far as we read them."""

    def guard(scheduler: Any, stock: Any) -> None:
        try:
            inspect.signature(stock).bind_partial(**dict.fromkeys(fields))
        except TypeError as error:
            raise Mismatch(f"it takes other arguments than known: {error}") from None

    guard.__doc__ = f"It can be called with {', '.join(f'`{field}`' for field in fields)}."
    return guard


def _answers_by_n(scheduler: Any, stock: Any) -> None:
    """It takes its known arguments. Somebody's own rule answers an empty list for `n=0`."""
    if is_upstreams(stock):
        _takes("memory_ratio", "n", "key", "minimum", "target", "attribute")(scheduler, stock)
    elif list(stock(n=0)) != []:
        raise Mismatch("workers_to_close(n=0) names workers")


def is_upstreams(stock: Any) -> bool:
    """Tells whether a call or a property is upstream's own code."""
    function = getattr(stock, "fset", None) or getattr(stock, "fget", None) or stock
    function = getattr(function, "__func__", function)
    # `functools.wraps` copies the module's name to wrappers, but not where they were written.
    written = getattr(function, "__globals__", {}).get("__name__", "")
    named = getattr(function, "__module__", "")
    return all(str(module).startswith("distributed.") for module in (written, named))


def _is_upstreams(scheduler: Any, stock: Any) -> None:
    """It is upstream's own, not another package's, which ours would replace as well."""
    if not is_upstreams(stock):
        raise Mismatch(f"{stock!r:.80} is not upstream's")


def relief(name: str) -> str:
    """The way out of what a relief patches."""
    return f"`spec.scheduler.relief.{name}: Disabled`"


def _with_rpc(
    name: str, rpc: str, guard: Callable[[Any, Any], None], when: str = "always"
) -> tuple[Target, Target]:
    """A method, and the handler by which clients and workers call it."""
    return Target("Scheduler", name, when, guard=guard), Target(_RPC, rpc, when, guard=guard)


_STREAM, _RPC = "Scheduler.stream_handlers", "Scheduler.handlers"
_SCHEDULER = "distributed.scheduler"
_REPORT = _takes("key", "worker", "stimulus_id")
_FROM_SHUFFLES = "from the first P2P shuffle on"
_EXACT = ("while a quota of tasks is exact", "`spec.recycle.tasks.exact: false`")
_FROM_PASSES = "from the first pass of an operator on"

#: Counts the run for quotas, and notes when its worker was last active.
TASK_FINISHED = Target(_STREAM, "task-finished", guard=_REPORT)
#: Counts the run for quotas, and notes when its worker was last active. Of a failed copy it counts
#: none: tasks that need it run where the result is.
TASK_ERRED = Target(_STREAM, "task-erred", guard=_REPORT)
#: Counts the run for quotas, and notes when its worker was last active. With `pickling: Shared`, a
#: worker that lacks a callable sends its task back.
RESCHEDULE = Target(_STREAM, "reschedule", guard=_REPORT)
#: What needs a copy that was taken back has to fetch it.
RELEASED = Target(
    _STREAM, "release-worker-data", "from a policy, or the first drain or cordon, on", guard=_REPORT
)
#: A worker that is drained or cordoned reports `running` when its memory monitor resumes it. That
#: does not bring it back to service.
STATUS_CHANGE = Target(
    _STREAM,
    "worker-status-change",
    "from the first drain or cordon on",
    guard=_takes("status", "worker", "stimulus_id"),
)
#: A worker whose process is sure to end leaves its name to the one that comes with it. A scheduler
#: refuses a name that is taken.
REGISTER_WORKER_RPC = Target(
    _RPC, "register-worker", "from the first notice of an end on", guard=_takes("name", "address")
)
#: Pinned workers are never named, and workers that are leaving are not counted. Upstream's rule
#: decides, or somebody else's, if one is there already. Where it fails, no worker is named.
WORKERS_TO_CLOSE, WORKERS_TO_CLOSE_RPC = _with_rpc(
    "workers_to_close",
    "workers_to_close",
    _answers_by_n,
    when="from the first pin, shuffle, drain or cordon on",
)
#: A worker whose `--lifetime` has ended is drained first. A call that names pinned workers is
#: obeyed, and noted.
RETIRE_WORKERS, RETIRE_WORKERS_RPC = _with_rpc(
    "retire_workers", "retire_workers", _takes("workers", "names", "stimulus_id")
)
#: Counts what is lost with a worker, while the scheduler still knows what it has. A worker that
#: dies after its announced end does not count as killed by its tasks.
REMOVE_WORKER, REMOVE_WORKER_RPC = _with_rpc("remove_worker", "unregister", _takes("address"))
#: A worker whose address code is told stays as long as what it was asked for is wanted.
WHO_HAS_RPC, HAS_WHAT_RPC = [
    Target(_RPC, name, "from a policy on", "`spec.pins.client.enabled: false`", guard=guard)
    for name, guard in (("who_has", _takes("keys")), ("has_what", _takes("workers")))
]
#: A new P2P shuffle waits for workers on their way, as long as it pays.
SHUFFLE_RPC = Target(
    _RPC, "shuffle_get_or_create", _FROM_SHUFFLES, "`spec.shuffle.waitForWorkers: Disabled`"
)
#: A new P2P shuffle gets no worker that is leaving, unless there is no other.
SHUFFLE_CHOICE, SHUFFLE_CHOICE_OLD = [
    Target("extensions.shuffle", name, _FROM_SHUFFLES, releases=releases)
    for name, releases in (
        ("_calculate_worker_for", Releases(since="2024.2.0")),
        ("_pin_output_workers", Releases(before="2024.2.0")),
    )
]
#: A worker that has as many tasks as its quota allows is taken out of service at once.
ADD_TO_PROCESSING = Target("Scheduler", "_add_to_processing", *_EXACT)
#: A worker that has left service in the middle of a round of stealing takes nothing.
MOVE_TASK_REQUEST = Target("extensions.stealing", "move_task_request", *_EXACT)
#: Notes that a client sends data, or waits for workers.
SCATTER_RPC, NCORES_RUNNING_RPC, UPDATE_DATA_RPC, IDENTITY_POLLS = [
    Target(_RPC, name, _FROM_PASSES)
    for name in ("scatter", "ncores_running", "update_data", "identity")
]
#: Answers from a message that is kept for up to a second.
IDENTITY_RPC = Target(
    _RPC,
    "identity",
    way_out=relief("identity"),
    releases=Releases(before="2026.7.0"),
    guard=_is_upstreams,
    proof="A kept answer reads like a fresh one.",
)
#: Tells clients of workers to poll hardly at all.
CLIENT_HEARTBEAT = Target(
    _STREAM,
    "heartbeat-client",
    way_out=relief("clientInfo"),
    releases=Releases(since="2025.4.0", before="2026.7.0"),
    guard=_is_upstreams,
    proof="On a stand-in it notes the time, sends one interval, and asks for nothing else.",
)
#: Pickles a callable that goes by value once, not once for each task.
PICKLE_DUMPS = Target(
    "distributed.protocol.pickle",
    "dumps",
    way_out=relief("pickling"),
    releases=Releases(since="2023.8.1"),
    proof="Samples of tasks give the same values when they have come through a message.",
)
#: Parses each worker's address once.
HOST = Target(
    f"{_SCHEDULER}:WorkerState",
    "host",
    way_out=relief("host"),
    releases=Releases(before="2025.4.0"),
    guard=_is_upstreams,
    proof="Its answer for a known address needs nothing but that address.",
)
#: Keeps upstream's answer, which it sums up over all groups of a prefix at each read, for a moment.
PREFIX_READS = [
    Target(
        f"{_SCHEDULER}:TaskPrefix",
        name,
        way_out=relief("prefixes"),
        releases=Releases(before="2024.6.0"),
        guard=_is_upstreams,
    )
    for name in ("states", "active_states", "nbytes_total", "duration", "types", "__len__")
]
#: Sends a worker each callable once.
STREAM_SEND = Target(
    "BatchedSend of a worker",
    "send",
    "while `spec.scheduler.relief.pickling: Shared`",
    "`spec.scheduler.relief.pickling: Auto`",
)

#: All of them, in the order of the documentation.
TARGETS = (*(value for value in list(vars().values()) if isinstance(value, Target)), *PREFIX_READS)
