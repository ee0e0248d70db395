"""`dask-adaptive why-not-down CLUSTER`: which workers stay though they are not needed, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import click
from rich.text import Text

from dask_adaptive.cli.access import Access, kube_options, output_option, policies_and_clusters
from dask_adaptive.cli.output import FAINT, HEAD, ODD, Cell, aligned, dump, show
from dask_adaptive.cli.status_view import (
    NOT_LOOKED,
    PinView,
    PolicyView,
    RowView,
    StatusView,
    policies_of,
)
from dask_adaptive.loop.ports import LinkError
from dask_adaptive.model.amounts import format_duration
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.reason import Reason
from dask_adaptive_agent import wire

if TYPE_CHECKING:
    from dask_adaptive.kube.api import KubeApi

#: When a hold on a whole group, or a whole cluster, ends, by `Reason`.
ENDS: Mapping[str, str] = {
    "ScaleDownStabilized": "once the load has been low for behavior.scaleDown.stabilizationWindow"
    " (by default idleTimeout)",
    "ScaleDownLimited": "when the period of behavior.scaleDown.policies is over",
    "DelayAfterScaleUp": "behavior.scaleDown.delayAfterScaleUp after the last rise",
    "WithinTolerance": "when the load needs fewer than behavior.scaleDown.tolerance allows",
    "BudgetExhausted": "when one of those that leave is gone (retirement.maxConcurrent)",
    "TooFewReplicas": "with a lower minReplicas",
    "ScheduledMinimum": "when the schedule closes (schedules)",
    "ClientWants": "when the client's want() ends, or the client leaves",
    "ShuffleAhead": "when the shuffle is done",
    "Settling": "when dask-kubernetes has completed the last change",
    "Retiring": "when they have handed over what they hold",
    "ScaleInPaused": "when the annotation paused-scale-in ends or is removed",
    "InvalidPause": "when the annotation is fixed or removed",
    "Paused": "with spec.mode Auto, and without the annotation paused",
    "Advising": "with spec.mode Auto",
    "Fallback": "when the scheduler answers again",
    "TooManyUnready": "when the workers are back (maxUnready)",
    "SchedulerUnreachable": "when the scheduler answers again",
    "ProtocolMismatch": "with an operator and an agent of one release",
    "AgentMissing": "when the agent is in the scheduler",
    "OwnershipConflict": "when only one autoscaler scales the cluster",
    "ClusterNotFound": "when the DaskCluster exists",
    "InvalidPolicy": "when the policy is fixed",
}

#: When a hold on one worker ends, where only the status is known.
_WORKER_ENDS: Mapping[str, str] = {
    **ENDS,
    "Busy": "when their tasks are done",
    "IdleGrace": "after idleTimeout without a task",
    "Pinned": "see: dask-adaptive pins",
}

#: When a veto of the agent's ends.
_VETO_ENDS: Mapping[str, str] = {
    wire.V_BUSY: "when its tasks are done",
    wire.V_ACTORS: "when its actors are released",
    wire.V_NOT_OFFERED: "when results are released, or memory is added",
    wire.V_NO_RECIPIENT: "when another worker is there, or the results are released",
}

#: Reasons for which a cluster is not scaled at all.
_NOT_SCALED = frozenset(
    ("Paused", "Advising", "SchedulerUnreachable", "ProtocolMismatch", "AgentMissing",
     "OwnershipConflict", "ClusterNotFound", "InvalidPolicy", "Fallback", "TooManyUnready")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stay:
    """One worker that stays."""

    worker: str
    reason: str
    message: str
    ends: str


@dataclass(frozen=True, slots=True)
class GroupHold:
    """A hold that keeps a whole group from shrinking; without a name, all groups."""

    group: str
    reason: str
    message: str
    ends: str


@dataclass(frozen=True, slots=True)
class WhyNot:
    """The answer."""

    cluster: str
    policy: str
    answer: str  # in one sentence
    workers: int  # connected, or on their way
    desired: int
    holds: tuple[GroupHold, ...] = ()
    stays: tuple[Stay, ...] = ()
    unknown: str = ""  # why the scheduler itself was not asked; empty: it was


@click.command("why-not-down")
@click.argument("cluster", shell_complete=policies_and_clusters)
@kube_options
@output_option
def command(cluster: str, access: Access, output: str) -> None:
    """
    Show why workers that are not needed stay, and until when. The first line is the answer.

    CLUSTER is a DaskCluster or an AdaptivePolicy. Its scheduler is asked through kubectl
    port-forward; where that fails, the policy's status has to do. Exit code 1 if it is under no
    AdaptivePolicy.
    """
    from dask_adaptive.cli.cluster_now import link_to

    where = access.namespace

    async def question(api: KubeApi) -> WhyNot:
        policy, *_ = await policies_of(api, where, cluster)
        try:
            async with link_to(ClusterKey(where, policy.cluster), access) as link:
                return why_not(policy, await link.explain())
        except (ConnectionError, LinkError) as exc:
            return why_not(policy, None, str(exc))

    answer = access.ask(question)
    if output == "table":
        show(lines_of(answer))
    else:
        dump(asdict(answer), output)


def lines_of(answer: WhyNot) -> list[Cell]:
    """For people."""
    holds = [(h.group or "all groups", h.reason, h.ends, h.message) for h in answer.holds]
    table = aligned(("HELD", "REASON", "ENDS", "MESSAGE"), holds)
    lines: list[Cell] = [Text(answer.answer, HEAD)]
    lines += ["", *table] if table else []
    lines += [""] if answer.stays else []
    for reason, several in groupby(answer.stays, key=lambda stay: stay.reason):
        rows = [(s.worker, s.ends, s.message) for s in several]
        lines.append(Text.assemble(Text(reason, ODD), f": {len(rows)}"))
        lines += aligned(("WORKER", "ENDS", "MESSAGE"), rows, indent="  ")
    if answer.unknown:
        said = f"The scheduler itself was not asked: {answer.unknown}"
        lines += ["", Text(said, FAINT)]
    return lines


def why_not(
    policy: PolicyView, explained: Sequence[wire.WorkerExplanation] | None, unknown: str = ""
) -> WhyNot:
    """
    Put the answer together. Pure.

    Args:
        explained: What the agent says of each worker; None: it was not asked, and `unknown` says
            why. Then only those workers are named that the status names.
    """
    status = policy.status
    if status is None:
        said = f"Not known: {NOT_LOOKED}"
        return WhyNot(policy.cluster, policy.name, said, 0, 0, unknown=unknown)
    workers = status.connected + status.pending - status.retiring
    if explained is None:
        stays = _stays_of_status(status)
    else:
        stays = [_stay(row, status, policy.idle_timeout_s) for row in explained]
    stays = sorted(stays, key=lambda s: (s.reason, s.worker))
    holds = tuple(_holds(status))
    answer = _answer(status, workers, holds, stays)
    return WhyNot(
        policy.cluster, policy.name, answer, workers, status.desired, holds, tuple(stays), unknown
    )


def _answer(
    status: StatusView, workers: int, holds: Sequence[GroupHold], stays: Iterable[Stay]
) -> str:
    if status.reason in _NOT_SCALED:
        return f"Nothing leaves, because of {status.reason}: {status.message}."
    desired, leaving = status.desired, status.retiring
    also = f" {leaving} {'is' if leaving == 1 else 'are'} leaving now." if leaving else ""
    if workers > desired:
        counted = Counter(stay.reason for stay in stays if stay.reason != "Retiring")
        order = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
        said = ", ".join(f"{n} {reason}" for reason, n in order)
        there = f" Those that are there: {said}." if said else ""
        return f"{workers - desired} of {workers} workers are not needed, and stay.{there}{also}"
    if holds:
        return (
            f"No worker is too many: {desired} are desired and {workers} there, because"
            f" {holds[0].reason} holds the load's number ({status.wanted})." + also
        )
    return f"No worker is too many: the load needs {desired}, and {workers} are there.{also}"


def _holds(status: StatusView) -> Iterable[GroupHold]:
    """List the holds by group, or one of the whole cluster where it is not scaled at all."""
    found = {("", status.reason): status.message} if status.reason in _NOT_SCALED else {}
    rows = [(group.name, group.reason, group.message) for group in status.groups]
    if decision := status.decision:
        rows += [
            (decision.group, str(step.reason), step.message)
            for step in decision.steps
            if step.replicas > decision.wanted
        ]
    for name, reason, message in rows:
        if ("", reason) not in found:
            found.setdefault((name, reason), message)
    for (name, reason), message in found.items():
        if reason in ENDS:
            yield GroupHold(name, reason, message, ENDS[reason])


def _stay(row: wire.WorkerExplanation, status: StatusView, idle_timeout_s: float) -> Stay:
    from dask_adaptive.scheduler.link import VETOES

    name = row["name"]
    if row["retirement"]:
        return Stay(name, "Retiring", row["retirement"], ENDS["Retiring"])
    if row["pins"]:
        pins = [_pin_of(pin, status.held_by) for pin in row["held_by"]]
        return Stay(name, "Pinned", f"pinned by {', '.join(row['pins'])}", _last_end(pins))
    if row["n_processing"]:
        tasks = ", ".join(row["processing"][:2])
        more = row["n_processing"] - min(len(row["processing"]), 2)
        said = f"has {tasks}" + (f" and {more} more" if more > 0 else "")
        return Stay(name, "Busy", said, "when its tasks are done")
    sentence = row["sentence"].removeprefix("stays: ")
    if row["veto"]:
        reason = VETOES[row["veto"]].value if row["veto"] in VETOES else "Held"
        return Stay(name, reason, sentence, _VETO_ENDS.get(row["veto"], "when that ends"))
    idle_s = row["idle_ms"] / 1000
    if idle_s < idle_timeout_s:
        left = format_duration(idle_timeout_s - idle_s)
        return Stay(name, "IdleGrace", f"idle for {format_duration(idle_s)}", f"in {left}")
    return Stay(name, "Free", sentence, "when it is not needed, and it is its turn")


def _pin_of(pin: wire.PinExplanation, known: Iterable[PinView]) -> PinView:
    """The pin as the status has it, with its end if that is known."""
    unknown = PinView(pin["source"], pin["owner"])
    return next((p for p in known if (p.source, p.owner) == (pin["source"], pin["owner"])), unknown)


def _last_end(pins: Iterable[PinView]) -> str:
    ends = {pin.until for pin in pins}
    return f"at the latest {max(ends)}" if ends and "" not in ends else "when the pin ends"


def _stays_of_status(status: StatusView) -> list[Stay]:
    """List workers that the status names; those that it only counts have no name."""
    named = [
        Stay(row.name, row.reason, row.message, _end_by_status(row, status))
        for row in status.workers
        if row.state in ("Active", "Stopped", "Draining", "Drained")
    ]
    counted = Counter({row.reason: row.workers for row in status.blockers})
    counted.subtract(stay.reason for stay in named)
    return named + [
        Stay(f"({n} without a name)", reason, "", _WORKER_ENDS.get(reason, ""))
        for reason, n in counted.items()
        if n > 0
    ]


def _end_by_status(row: RowView, status: StatusView) -> str:
    if row.reason == Reason.PINNED.value:
        return _last_end(pin for pin in status.held_by if row.name in pin.workers)
    return _WORKER_ENDS.get(row.reason, "")
