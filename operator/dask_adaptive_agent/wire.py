"""
The wire: every message between the operator and the agent, and nothing else.

The only module of the agent that `dask_adaptive` imports. Plain msgpack values: no clocks are
compared across processes (all times are durations), and columns instead of one dict a worker keep
a snapshot of 5,000 workers under 600 kB. Tuples arrive as tuples or lists: read, don't compare.

Each message travels as one RPC on the scheduler's own port, `await rpc.adaptive_observe(...)`,
with the keyword arguments of its request class. Each answer is a dict; an answer with the key
`error` is an `ErrorAnswer` and nothing was done. Unknown request keys are ignored, so that a newer
operator can talk to an older agent within one protocol number.
"""

from __future__ import annotations

from typing import TypedDict

#: Raised when an old reader would misread a new message. Both sides refuse another number.
PROTOCOL = 1

HELLO = "adaptive_hello"
CONFIGURE = "adaptive_configure"
OBSERVE = "adaptive_observe"
EXPLAIN = "adaptive_explain"
RETIRE = "adaptive_retire"
CANCEL = "adaptive_cancel"
PIN = "adaptive_pin"
UNPIN = "adaptive_unpin"

HANDLERS = (HELLO, CONFIGURE, OBSERVE, EXPLAIN, RETIRE, CANCEL, PIN, UNPIN)

#: Worker statuses by the number that stands for them in `Columns.status`.
#: Any `distributed.core.Status` that is not listed is sent as `other`.
STATUSES = ("running", "paused", "closing_gracefully", "init", "other")

#: States of a retirement. `active` means none: it is only ever an answer, never in a snapshot.
ACTIVE, DRAINING, DRAINED = "active", "draining", "drained"

#: Where a pin comes from.
SHUFFLE, MANUAL, CLIENT = "shuffle", "manual", "client"

#: Codes of `ErrorAnswer`.
E_PROTOCOL, E_INVALID, E_INTERNAL = "protocol", "invalid", "internal"


class ErrorAnswer(TypedDict):
    """Nothing was done, and why. The agent answers this instead of raising."""

    error: str  # one of E_*
    message: str
    protocol: int


class HelloAnswer(TypedDict):
    """Who answers. `hello` takes `protocol` and answers even when the numbers differ."""

    protocol: int
    agent: str  # version of dask_adaptive_agent
    distributed: str
    python: str
    session: str  # new with each start of the scheduler or of the agent in it
    scheduler_id: str
    uptime_ms: int  # since the agent started
    hooks: dict[
        str, bool
    ]  # what is in place: "valid_workers_downscaling", "shuffle", "stealing", …


class ConfigureRequest(TypedDict, total=False):
    """
    Settings of the agent; keys that are absent keep their value. The answer: the same dict, whole.
    """

    protocol: int
    shuffle_pins: bool  # default True
    shuffle_timeout_ms: int  # a shuffle pins its workers no longer than this; default 1 h
    manual_max_ms: int  # longest lease a manual pin gets; default 24 h
    lease_ms: int  # a retirement nobody has asked about for so long is cancelled; default 300 s
    tally: bool  # count runs and repeated runs by key (rehearsals and tests); default False


class ObserveRequest(TypedDict, total=False):
    """
    Ask for a snapshot. It also renews the lease of every retirement.

    `known` is the number of slots the caller has names for, valid only for `session`: send what the
    last snapshot said, or nothing at first.
    """

    protocol: int
    session: str
    known: int
    target_duration_ms: (
        int  # passed to the scheduler's adaptive_target; absent: the scheduler's own
    )


class Columns(TypedDict):
    """
    One entry a worker in each list, in the same order, ascending by slot.

    A slot is a number that the agent gives a worker address when it first sees it; never used twice
    within a session.
    """

    slot: list[int]
    status: list[int]  # index into STATUSES
    processing: list[int]  # tasks assigned to it: waiting, running or long-running
    occupancy_ms: list[int]
    idle_ms: list[int]  # since it last had a task (or joined); 0 while it has one
    sole_bytes: list[int]  # bytes of results that no other worker holds
    memory: list[int]  # bytes of its process, as last reported


class Introduction(TypedDict):
    """What does not change about the workers that are new to the caller; parallel lists."""

    slot: list[int]
    name: list[str]  # Dask's worker name; a worker without one is named by its address
    address: list[str]  # empty string where it equals the name
    nthreads: list[int]
    memory_limit: list[int]  # bytes; 0: none


class PinRow(TypedDict):
    """One claim on one or more workers."""

    source: str  # SHUFFLE | MANUAL | CLIENT
    owner: str  # shuffle id; "operator" for annotations; the client's id
    reason: str
    left_ms: int  # until it ends by itself
    slots: list[int]


class RetirementRow(TypedDict):
    """One worker on its way out."""

    slot: int
    state: str  # DRAINING | DRAINED
    reason: str  # as given by the request
    for_ms: int  # since it was asked for
    left_ms: int  # until its deadline
    forced: bool  # drained by force at its deadline: tasks were still running
    message: str  # what it is waiting for, in words


class ShuffleRow(TypedDict):
    """A P2P shuffle that runs now."""

    id: str
    run_id: int
    workers: int  # participants
    for_ms: int  # since the agent first saw this run


class Totals(TypedDict):
    workers: int
    running: int  # of them, with status running
    threads: int
    tasks: int  # known to the scheduler
    processing: int  # assigned to workers
    queued: int
    unrunnable: int
    occupancy_ms: int
    memory: int  # bytes of results, each counted once a copy
    clients: int


class Tally(TypedDict):
    """
    Runs counted since `configure(tally=True)`: runs - tasks + interrupted were redone, if any.
    """

    tasks: int  # different keys that finished at least once
    runs: int  # runs that finished, repeated ones included
    erred: int  # runs that raised; user errors, not counted as redone
    repeated: int  # runs that finished for a key that had finished before
    interrupted: int  # tasks taken from a worker that left while it ran them
    max_shuffle_run: int  # highest run id of any shuffle seen; 1: none was restarted
    shuffles: int  # different shuffles seen


class Snapshot(TypedDict):
    """The scheduler at one instant; the answer to `observe`."""

    protocol: int
    session: str
    known: int  # slots given so far: what to send as `known` next time
    introduced: Introduction  # slots from the request's `known` on (all, if the session differs)
    workers: Columns
    target: int  # scheduler.adaptive_target, draining workers left out
    closable: list[
        int
    ]  # slots that scheduler.workers_to_close() offers: idle, unpinned, memory spare
    actors: list[int]  # slots that hold actors: can't be moved
    pins: list[PinRow]
    retirements: list[RetirementRow]
    shuffles: list[ShuffleRow]
    totals: Totals
    tally: Tally | None


class RetireRequest(TypedDict, total=False):
    """
    Start to drain workers, or ask again how far they are (idempotent).

    A worker is refused when it is pinned, holds actors, or holds the last copy of a result that no
    other worker can take; and, unless `busy_ok`, when it has a task. A worker that is already being
    retired is answered with its state, re-checked now: `drained` is only said of a worker that at
    this moment has no task and holds no last copy.
    """

    protocol: int
    names: list[str]
    reason: str
    busy_ok: bool  # default False
    deadline_ms: int  # from the first request on; default 15 min
    on_timeout: str  # "Abort" (back to service; default) | "Force" (data moved, tasks given up)


class RetireOutcome(TypedDict):
    name: str
    state: str  # DRAINING | DRAINED | ACTIVE (refused) | "gone" (no such worker)
    veto: str  # when refused, one of V_*; else ""
    message: str


#: Why the agent refuses to retire a worker.
V_PINNED, V_BUSY, V_ACTORS = "Pinned", "Busy", "Actors"
V_NO_RECIPIENT, V_TIMEOUT = "NoRecipient", "Timeout"


class RetireAnswer(TypedDict):
    protocol: int
    outcomes: list[RetireOutcome]


class CancelRequest(TypedDict, total=False):
    """Back to service. Answer: `RetireAnswer`, state ACTIVE or "gone"."""

    protocol: int
    names: list[str]


class PinRequest(TypedDict, total=False):
    """
    Claim workers for a time. Same `source`, `owner` and name again: the lease is replaced.

    Names without a worker are pinned all the same (the worker may be about to join).
    Answer: `PinAnswer`.
    """

    protocol: int
    names: list[str]
    source: str  # MANUAL | CLIENT
    owner: str
    reason: str
    ttl_ms: int


class UnpinRequest(TypedDict, total=False):
    """
    Give up claims: those of `source` and `owner` on `names`; without `names`, all of that owner.
    """

    protocol: int
    names: list[str]
    source: str
    owner: str


class PinAnswer(TypedDict):
    protocol: int
    pinned: list[tuple[str, int]]  # (name, ms left) granted; ttl above the cap is cut to it
    message: str


class ExplainRequest(TypedDict, total=False):
    """Ask all about some workers; without `names`, about all. Answer: `ExplainAnswer`."""

    protocol: int
    names: list[str]


class WorkerExplanation(TypedDict):
    name: str
    address: str
    status: str
    idle_ms: int
    processing: list[str]  # keys, at most 10, as text
    n_processing: int
    sole_bytes: int
    n_sole: int
    pins: list[str]  # sentences
    retirement: str  # a sentence, or ""
    closable: bool
    sentence: str  # why it may or may not go, in one sentence


class ExplainAnswer(TypedDict):
    protocol: int
    workers: list[WorkerExplanation]
