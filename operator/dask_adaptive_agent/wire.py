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
RETIRE = "adaptive_retire"
CANCEL = "adaptive_cancel"
PIN = "adaptive_pin"
UNPIN = "adaptive_unpin"
LEAVE = "adaptive_leave"
LIMIT = "adaptive_limit"
WANT = "adaptive_want"
ANNOUNCE = "adaptive_announce"

#: Worker statuses by the number that stands for them in `Columns.status`.
#: Any `distributed.core.Status` that is not listed is sent as `other`.
STATUSES = ("running", "paused", "closing_gracefully", "init", "other")

#: States of a retirement. `active` means none: it is only ever an answer, never in a snapshot.
ACTIVE, DRAINING, DRAINED = "active", "draining", "drained"

#: What ends behind a request to retire: processes, others come under their names; or names as well.
PROCESSES, NAMES = "processes", "names"

#: Where a pin comes from.
SHUFFLE, MANUAL, CLIENT = "shuffle", "manual", "client"

#: Bounds of what a request may hold: entries of a list, characters of a text, bytes of a map.
#: A request beyond them is E_INVALID. (`AnnounceRequest` is cut instead: it is for people to read.)
MOST_ENTRIES, MOST_LETTERS, MOST_BYTES = 20_000, 2_000, 100_000

#: Bounds of `AnnounceRequest`: rows of its lists (`workers` are sentences), characters of a text.
MOST_ARRIVALS, MOST_SENTENCES, MOST_DECISIONS, SHORT_LETTERS = 50, 200, 50, 200

#: The longest that `observe` waits for news, in milliseconds.
MOST_WAIT_MS = 25_000

#: Pins that one owner may have on different names, and all owners together; beyond: E_REFUSED.
MOST_PINS_OF_OWNER, MOST_PINS = 20_000, 100_000

#: Codes of `ErrorAnswer`. `refused`: the request makes sense, and the policy does not allow it.
E_PROTOCOL, E_INVALID, E_REFUSED, E_INTERNAL = "protocol", "invalid", "refused", "internal"

#: Why a worker is cordoned: it was given its last task (`LimitRequest`).
S_TASKS, S_FAILURES, S_PATTERN = "tasks", "failures", "pattern"

#: Why work had to be done again (`Snapshot.redone`): a worker was lost without a word; a retirement
#: was forced at its deadline; a process ended before its tasks did.
LOST, FORCED, ENDED = "lost", "forced", "ended"

#: Kinds of `NoteRow`: what has happened in the scheduler that people should be told, once.
#: A shuffle ran longer than `shuffle_timeout_ms` and pins no more; it may be broken from now on.
#: Or a client's pin came to the longest that the policy allows, and its caller still lives.
N_PIN_EXPIRED = "PinExpired"
#: Somebody named workers to retire or to restart: it was obeyed, and these pins were broken.
N_PINS_OVERRIDDEN = "PinsOverridden"
#: A worker whose process was about to end has left: no task, no last copy.
N_WORKER_LEFT = "WorkerLeft"
#: The time ran out: running tasks were given back to the scheduler, not charged to them.
N_TASKS_GIVEN_BACK = "TasksGivenBack"
#: No worker lives long enough for a kind of task: it runs where the scheduler likes.
N_TASK_TOO_LONG = "TaskTooLong"
#: A worker has come to a limit, and gets no more tasks.
N_QUOTA_REACHED = "QuotaReached"
#: Serializing takes much of the scheduler's time; says which function, and what helps.
N_SERIALIZATION_HEAVY = "SerializationHeavy"
#: A relief could not be applied, or found at work that it can't go on: stock code serves.
N_RELIEF_FAILED = "ReliefFailed"
#: A shuffle that was about to begin has waited for workers, and why it waits no more.
N_SHUFFLE_WAITED = "ShuffleAhead"

NOTES = (
    N_SHUFFLE_WAITED, N_PIN_EXPIRED, N_PINS_OVERRIDDEN,
    N_WORKER_LEFT, N_TASKS_GIVEN_BACK, N_TASK_TOO_LONG, N_QUOTA_REACHED, N_SERIALIZATION_HEAVY,
    N_RELIEF_FAILED,
)  # fmt: skip

#: What can be taken off a scheduler, and what people may say of each (`spec.scheduler.relief`).
AUTO, SHARED, DISABLED = "Auto", "Shared", "Disabled"
RELIEFS = {
    "prefixes": (AUTO, DISABLED),
    "pickling": (AUTO, SHARED, DISABLED),
    "host": (AUTO, DISABLED),
    "identity": (AUTO, DISABLED),
    "clientInfo": (AUTO, DISABLED),
}

#: What becomes of a worker whose own `--lifetime` is over (`spec.retirement.onLifetime`): it is
#: drained first, for at most `lifetime_ms`, and gets no task that would not end before it; or
#: upstream's code alone decides.
LIFETIME_DRAIN, LIFETIME_STOCK = "Drain", "Stock"

#: What a relief is at; `NotNeeded`: this release of distributed has no such load.
R_ACTIVE, R_NOT_NEEDED, R_DISABLED, R_FAILED = "Active", "NotNeeded", "Disabled", "Failed"


class Message(TypedDict):
    """Every request and every answer says which protocol its sender speaks."""

    protocol: int


class ErrorAnswer(Message):
    """Nothing was done, and why. The agent answers this instead of raising."""

    error: str  # one of E_*
    message: str


class HelloAnswer(Message):
    """Describes the agent. `hello` takes `protocol` and answers even when the numbers differ."""

    agent: str  # version of dask_adaptive_agent
    distributed: str
    session: str  # new with each start of the scheduler or of the agent in it


class ConfigureRequest(Message, total=False):
    """Settings of the agent; keys that are absent keep their value. Answer: `{"protocol": …}`."""

    shuffle_pins: bool  # default True
    shuffle_timeout_ms: int  # a shuffle pins its workers no longer than this; default 1 h
    manual_max_ms: int  # longest lease a manual pin gets; default 24 h
    client_pins: bool  # whether code may pin; default True
    client_max_ms: int  # the longest that one client's pin lasts, renewals included; default 4 h
    lease_ms: int  # see `ObserveRequest`; default, and the longest that counts: 300 s
    relief: dict[str, str]  # by name of `RELIEFS`; the whole of it: who is not named is AUTO
    shuffle_wait_ms: int  # the longest that a shuffle's creation waits for workers; 0: never
    on_lifetime: str  # at the end of `--lifetime`: LIFETIME_DRAIN | LIFETIME_STOCK (default)
    lifetime_ms: int  # the longest that `--lifetime` waits for a worker to drain; default 15 min
    config: dict[str, object]  # by dotted key: Dask's configuration that people want; the whole


class ObserveRequest(Message, total=False):
    """
    Ask for a snapshot.

    All that the operator has sent (limits, ends, retirements, reliefs, settings, announcements)
    has one lease of `lease_ms`, which only a request with `renew` renews: that of the leading
    operator's pass. Once the lease has ended the scheduler works as without an operator, and
    `Snapshot.lapses` is one higher.

    `known` is the number of slots the caller has names for, valid only for `session`: send what the
    last snapshot said, or nothing at first.

    With a `version` the answer is an `Update`. With `wait_ms` as well it comes as soon as something
    has changed that may change a plan: in half a second, at most twice a second, and about every
    4 s where there is no end of changes. If nothing does in that time, it is `Unchanged`. A caller
    sends the same `meters` and `demand` as before, or the version 0. An agent that knows neither
    key answers at once, with a `Snapshot`.
    """

    session: str
    known: int
    version: int  # that the caller has of this session; 0: none
    wait_ms: int  # how long the answer may wait for news; at most `MOST_WAIT_MS`; default 0
    caller: str  # any text of the caller's own: what it was answered meanwhile is no news to it
    heard: int  # notes up to this number are not sent again; valid only for `session`
    meters: bool  # whether to answer with `Snapshot.meters`; default False
    demand: bool  # whether to answer with `Snapshot.demand`; default False
    renew: bool  # whether to renew the lease of all that the operator has said; default False
    target_duration_ms: int  # for the scheduler's adaptive_target; absent: the scheduler's own


class Columns(TypedDict):
    """
    One entry a worker in each list, in the same order, ascending by slot.

    A slot is a number that the agent gives a worker address when it first sees it; never used twice
    within a session.
    """

    slot: list[int]
    status: list[int]  # index into STATUSES
    processing: list[int]  # tasks assigned to it: waiting, running or long-running
    idle_ms: list[int]  # since it last had a task (or joined); 0 while it has one
    sole_bytes: list[int]  # bytes of results that no other worker holds
    memory: list[int]  # bytes of its process, as last reported


class Meters(TypedDict):
    """
    Meters of quotas: the first lists are parallel to `Columns`, the others of those few
    workers that have something to say.
    """

    runs: list[int]  # reports of runs since the process joined: finished, erred, rescheduled
    failures: list[int]  # runs that raised within the worker's window, less those blamed on tasks
    managed: list[int]  # bytes of results in its memory (not on disk), as last reported
    matched: list[tuple[int, str]]  # (slot, text) of a failure that a pattern matched
    lifetimes: list[tuple[int, int]]  # (slot, ms left) by Dask's own --lifetime
    too_short: list[int]  # slots: get no more tasks, because they end too soon for some that wait
    held: int  # tasks without a worker while there are such workers
    expected_ms: int  # how long the longest of the tasks that wait or run is expected to take


class CordonRow(TypedDict):
    """A worker that is cordoned because of a limit; what it has it runs to the end."""

    slot: int
    kind: str  # S_TASKS | S_FAILURES | S_PATTERN
    message: str


class StuckRow(TypedDict):
    """Threads that have taken no task for seconds: paused, or held by runs that were cancelled."""

    slot: int
    threads: int


class Introduced(TypedDict):
    """An `Introduction` as every agent sends it."""

    slot: list[int]
    name: list[str]  # Dask's worker name; a worker without one is named by its address
    address: list[str]  # empty string where it equals the name
    nthreads: list[int]
    memory_limit: list[int]  # bytes; 0: none


class Introduction(Introduced, total=False):
    """Constant facts of the workers that are new to the caller; parallel lists."""

    joined_ms: list[int]  # since it joined; -1: it was there before the agent


class PinRow(TypedDict):
    """One claim on one or more workers."""

    source: str  # SHUFFLE | MANUAL | CLIENT
    owner: str  # shuffle id; "operator" for annotations; the client's id; "addresses" code knows
    reason: str
    left_ms: int  # until it ends by itself
    latest_ms: int  # until it ends however often it is renewed; `left_ms` where nobody renews it
    for_ms: int  # since it was first set
    slots: list[int]


class RetirementRow(TypedDict):
    """One worker on its way out."""

    slot: int
    state: str  # DRAINING | DRAINED
    reason: str  # as given by the request
    left_ms: int  # until its deadline; -1: there is none
    message: str  # what it is waiting for, in words


class TerminatingRow(RetirementRow):
    """
    One worker whose process is about to end, by whoever's decision (`leave`, or `--lifetime`).

    It takes no new tasks. It is no retirement: nobody can call it back, and it is not counted as
    one. Its place is taken by another process, often under the same name: then the worker itself is
    renamed, and its name here is still what it was.
    """

    name: str


class NoteRow(TypedDict):
    """Something that happened, to be told once. The agent keeps the last 100."""

    number: int  # ascending from 1 within a session
    kind: str  # one of N_*
    message: str
    names: list[str]  # of at most 10 of its workers
    age_ms: int


class ShuffleRow(TypedDict):
    """A P2P shuffle that runs now."""

    id: str
    run_id: int
    workers: int  # participants


class ReliefRow(TypedDict):
    """One load that is taken off the scheduler, or not, and why."""

    name: str  # of `RELIEFS`
    state: str  # R_*
    message: str  # a sentence
    counts: dict[str, int]  # what it has done so far


class SerializedRow(TypedDict):
    """One function (or class) whose tasks the scheduler has serialized for workers."""

    function: str  # module and qualified name, at most 80 characters
    calls: int
    us: int  # time spent
    bytes: int  # sent
    size: int  # bytes of the largest one


class SerializedPart(TypedDict):
    """The cost of serializing tasks since the agent started."""

    calls: int
    us: int
    bytes: int
    share: int  # percent of the process' CPU time, over the last minute
    top: list[SerializedRow]  # at most 10, the dearest first


class Totals(TypedDict):
    processing: int  # tasks assigned to workers
    queued: int
    unrunnable: int
    memory: int  # bytes of results, each counted once a copy


class Snapshot(Message):
    """The scheduler at one instant; the answer to `observe`."""

    session: str
    now_ms: int  # on a clock of the agent's: durations that change with the clock differ by that
    known: int  # slots given so far: what to send as `known` next time
    lapses: int  # how often the lease has ended in this session: then all must be sent again
    introduced: Introduction  # slots from the request's `known` on (all, if the session differs)
    workers: Columns
    target: int  # scheduler.adaptive_target, draining workers left out
    closable: list[int]  # slots that workers_to_close() offers: idle, unpinned, memory to spare
    actors: list[int]  # slots that hold actors: can't be moved
    pins: list[PinRow]
    pins_expired: dict[str, int]  # by source: pins that ended by their time limit, this session
    retirements: list[RetirementRow]
    departures: list[TerminatingRow]
    notes: list[NoteRow]  # with a number above the request's `heard`
    shuffles: list[ShuffleRow]
    stops: list[CordonRow]  # not those that are retired or terminate by now
    stuck: list[StuckRow]
    meters: Meters | None  # None: not asked for
    has_lifetimes: bool  # some worker ends by Dask's own --lifetime: `Meters` says when
    redone: dict[str, int]  # by LOST | FORCED | ENDED: tasks and results lost with workers
    totals: Totals
    relief: list[ReliefRow]  # one for each of `RELIEFS`
    #: By key of `ConfigureRequest.config`: the values with which the scheduler runs; a key without
    #: a value is left out. None: they could not be read.
    config_in_force: dict[str, object] | None
    demand: DemandPart | None  # None: not asked for
    wants: list[WantRow]
    quiet: QuietPart
    serialized: SerializedPart | None  # None: not measured, because `pickling` is not Active


class Update(Snapshot):
    """
    The changes of a `Snapshot` after version `since`; 0: this is all of one.

    Otherwise `workers` and `meters` have only the rows that have changed, and `closable`, `actors`
    and the lists of slots in `meters` only slots of those. Absent is what has not changed of pins
    (`pins_expired`, too), retirements, departures, shuffles, stops, stuck, redone, totals, relief,
    config_in_force, demand, wants and serialized. That time passes is no change, and neither is a
    row whose counts and bytes have moved by less than 3 %: ask for all of it from time to time.
    """

    version: int
    since: int
    gone: list[int]  # slots of workers that have left


class Unchanged(Message):
    """Nothing has changed in the time that an `ObserveRequest` gave."""

    version: int
    unchanged: bool


class PrefixColumns(TypedDict):
    """
    Unfinished tasks by prefix: parallel lists, at most 200 long, those with most work first. What
    is beyond is added up in one row named "…".
    """

    name: list[str]
    mean_ms: list[float]  # of the latest runs; -1: none has finished yet
    running: list[int]  # assigned to workers
    ready: list[int]  # queued, or without a worker that may run them
    waiting: list[int]  # for other tasks
    longest_ms: list[int]  # how long its oldest running task has run, as last reported
    done: list[int]  # runs that have finished since the scheduler started
    width: list[int]  # tasks that can run at once, estimated from a sample of those that wait
    level: list[int]  # kinds of tasks that come first, one after the other; 0: none
    fan_in: list[float]  # unfinished tasks of other kinds that one waits for, on average
    bound: list[int]  # of all: only some workers may run them (`NeedRow`)


class NeedRow(TypedDict):
    """Tasks that only some workers may run, of one kind."""

    tasks: int  # assigned, or without a worker
    ms: int  # expected, of all of them
    resources: dict[str, float]
    workers: list[str]  # names (or addresses, where no worker is there), at most 50
    hosts: list[str]  # at most 50
    loose: bool
    waiting: int  # such tasks that wait for others, beyond `tasks`; told from a sample
    able: list[str]  # names of connected workers that may run them, at most 50


class UpcomingShuffleRow(TypedDict):
    """A P2P shuffle that has not begun: its outputs are yet to be given to workers."""

    id: str
    inputs: int  # that have not finished
    outputs: int


class DemandTotals(TypedDict):
    """A `DemandPart` as every agent sends it."""

    prefixes: PrefixColumns
    needs: list[NeedRow]  # at most 50
    shuffles: list[UpcomingShuffleRow]  # at most 50
    unknown_ms: int  # how long a task of an unknown prefix is taken to run
    incoming_ms: int  # of work a second, where it has come again and again of late; 0: all at once
    every_ms: int  # from one time to the next


class DemandPart(DemandTotals, total=False):
    """All the work that there is, whether it can run now or not."""

    trickle_ms: int  # of work that has come so into a queue that has not been empty since


class WantRow(TypedDict):
    """A floor that a client has asked for, or what it waits for in `scatter` and the like."""

    workers: int
    left_ms: int
    owner: str
    group: str  # "": the default worker group


class QuietPart(TypedDict):
    """For how long nobody has used the scheduler. 0: it is in use."""

    no_task_ms: int  # since a task last waited, ran or was queued (or the agent started)
    no_client_ms: int  # since a client was last connected


class WantRequest(Message, total=False):
    """
    Ask for a minimum number of workers, for a time. The same `owner` and `group` again: replaced;
    0 workers: given up. With a `client` it ends soon after that client has left. The policy's
    maximum holds. Answer: `{"protocol": …}`.
    """

    workers: int
    ttl_ms: int
    owner: str
    client: str
    group: str


class AnnounceRequest(Message, total=False):
    """
    Workers that the operator has on their way, and its decisions: the whole, each time.
    Answer: `{"protocol": …}`.
    """

    arriving: list[tuple[int, int]]  # (workers, ms until they are expected), soonest first
    groups: list[str]  # parallel: their worker groups
    can_grow: int  # workers beyond those that may still be asked for, all groups together
    grow_ms: int  # how long one of them would take to come; absent: unknown
    policy: str
    message: str
    workers: list[tuple[str, str]]  # (name, sentence)
    decisions: list[tuple[int, str, str, str]]  # (epoch ms, group, reason, message)


class RetireRequest(Message, total=False):
    """
    Start to drain workers, or ask again how far they are (idempotent).

    A worker is refused when it is pinned, holds actors, or holds the last copy of a result that no
    other worker can take; and, unless `busy_ok`, when it has a task. A worker that is already being
    retired is answered with its state, re-checked now: `drained` is only said of a worker that at
    this moment has no task and holds no last copy.

    With `ends` the scheduler forgets those that are called drained, so that nobody calls them as
    they end: no client's `run` fails. One that answers a call now is `draining` until then. With
    NAMES, too, who joins under one of the names within `deadline_ms` is retired from its first
    moment: a worker that was called off as it started gets no task.
    """

    names: list[str]
    reason: str
    busy_ok: bool  # default False
    deadline_ms: int  # from the first request on; default 15 min
    on_timeout: str  # "Abort" (back to service; default) | "Force" (data moved, tasks given up)
    over_pins: list[str]  # sources of pins that do not count: MANUAL | CLIENT; default none
    ends: str  # PROCESSES | NAMES: what is about to end, if all are drained or gone; default ""


class RetireOutcome(TypedDict):
    name: str
    state: str  # DRAINING | DRAINED | ACTIVE (refused) | "gone" (no such worker)
    veto: str  # when refused, one of V_*; else ""
    message: str


#: Why the agent refuses to retire a worker.
V_PINNED, V_BUSY, V_ACTORS = "Pinned", "Busy", "Actors"
V_NO_RECIPIENT, V_TIMEOUT = "NoRecipient", "Timeout"
#: A result that only it can hold: every try to copy it to another worker has failed.
V_UNCOPYABLE = "Uncopyable"


class RetireAnswer(Message):
    outcomes: list[RetireOutcome]


class LimitProfile(TypedDict, total=False):
    """Rules that many workers share."""

    exact: bool  # not one run more than `runs`, whatever it costs; default False
    failures: int  # within the window, at which it stops; 0: never (default)
    window_ms: int  # default 10 min
    patterns: list[str]  # globs (* and ?) of repr(exception): stop at once; 32 of 256 characters
    fresh_ms: int  # how long a new worker lives; -1: no end (default)
    floor_ms: int  # no task is expected to take less; default 0
    runs: int  # of a worker that is not named, as `others`; 0: never cordoned for them (default)
    group: str  # whose workers these are: they have the stops of that group


class LimitRequest(Message, total=False):
    """
    Limits of each worker. Level-based: a worker that is not named has no limit any more (but for
    `others`), and who was cordoned and is not at a limit now is back in service.

    A worker at a limit is cordoned: it gets no new task (excepted what is bound to it, or wants a
    resource that nobody else in service has), runs what it has, and keeps its data; where nobody is
    in service, it takes that of others who leave. Never more than `stops` at once (who was
    cordoned, and is retired, terminates or is lost, counts until the next request), never a pinned
    one. Retiring a cordoned worker goes on from there.

    With `exact`, `runs` counts what is assigned too, and neither `stops` nor pins count: not one
    run more is made, what is bound to the worker included, though the cluster stands still until
    others come. Only what a running P2P shuffle has bound to a worker still runs there.

    A worker that has less time left than the longest kind of tasks is expected to take that it
    might be given, as some are yet to begin and want no resource that it lacks, gets no new task
    either (`Meters.too_short`), unless it is pinned, and what it has not begun is moved away. Kinds
    that nobody in service lives long enough for do not count, unless workers are on their way
    (`AnnounceRequest.arriving`) that do: those run wherever the scheduler likes. An end that has
    passed 10 s ago is none, and neither is one that is first told when it has passed.

    Patterns match the whole of the first 2,000 characters; `*` is any text, `?` any one character,
    and case counts.
    Answer: `{"protocol": …}`.
    """

    session: str  # of the snapshot that the names are of; another: E_INVALID
    names: list[str]
    runs: list[int]  # parallel to names: runs at which it stops; 0: never
    left_ms: list[int]  # parallel: until its end; 0: that has passed; -1: none known
    profile: list[int]  # parallel: index into `profiles`
    profiles: list[LimitProfile]
    stops: int  # workers that may be cordoned at once
    group_stops: dict[str, int]  # the same, of each group; of one that is not named: `stops`
    others: int  # profile of workers that are not named; -1 (default): they have no limit


class CancelRequest(Message, total=False):
    """Back to service. Answer: `RetireAnswer`, state ACTIVE or "gone"."""

    names: list[str]


class PinRequest(Message, total=False):
    """
    Claim workers for a time. Same `source`, `owner` and name again: the lease is replaced.

    A name is a worker's name or address. With source MANUAL, names without a worker are pinned all
    the same (the worker may be about to join), and a `ttl_ms` above the cap is cut to it. With
    source CLIENT a name without a worker is E_INVALID, and E_REFUSED is the answer where the policy
    allows no such pins, to a `ttl_ms` above the cap, and to a renewal once the pin has lasted as
    long as the cap. A worker's pins end with it: a new worker of the same name has none of them.
    Answer: `PinAnswer`.
    """

    names: list[str]
    client: str  # CLIENT: id of the caller's Dask client, if any: its pins end soon after it leaves
    source: str  # MANUAL | CLIENT
    owner: str
    reason: str
    ttl_ms: int


class UnpinRequest(Message, total=False):
    """
    Give up claims: those of `source` and `owner` on `names`; without `names`, all of that owner.
    Answer: `{"protocol": …}`.
    """

    names: list[str]
    source: str
    owner: str


class PinAnswer(Message):
    pinned: list[tuple[str, int]]  # (name, ms left) granted; ttl above the cap is cut to it


class LeaveRequest(Message, total=False):
    """
    Processes of workers are about to end: hand over what they have, or say how far that is.

    Pins are waited for, not obeyed for ever: when the time runs out, data goes first, then running
    tasks are given back without being charged to them. Ask again every second or so; of several
    deadlines the earliest counts. Answer: `RetireAnswer`, states DRAINING, DRAINED and "gone":
    with the last two the process may end. Outcomes name each worker by its address, so that who
    asks again cannot mean the next worker of that name.
    """

    names: list[str]  # or addresses; `x` also stands for processes `x-0`, `x-1` (--nworkers)
    left_ms: int  # without it, 25 s are assumed until somebody knows
    reason: str
