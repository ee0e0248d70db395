"""One cluster on one screen, out of its policy's status. Pure: lines out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.text import Text

from dask_adaptive.cli.paint import BAD, FAINT, GOOD, HEAD, ODD, aligned, line, styled
from dask_adaptive.kube.api import Json

#: What each condition should be; one that is not listed should be True.
_EXPECTED = {"ScalingLimited": "False", "Paused": "False"}

#: Names of workers in one line.
_NAMES_SHOWN = 3

NOT_LOOKED = "the operator has not looked at it yet; is it running?"


def page(policy: Json) -> list[Text]:
    """All lines about one policy and its cluster."""
    status = policy.get("status") or {}
    lines = _head(policy, status)
    if not status:
        return lines
    lines += ["", *_groups(policy, status)]
    for part in (_decision(status), _conditions(status), _holders(status), _rest(status)):
        lines += part
    return [part if isinstance(part, Text) else Text(part) for part in lines]


def summary(policy: Json) -> str:
    """The same in one line, for logs."""
    status = policy.get("status") or {}
    numbers = (
        f"{status.get('replicas', '?')} replicas, {status.get('desiredReplicas', '?')} desired,"
        f" {status.get('wantedReplicas', '?')} wanted, {status.get('pending', '?')} pending,"
        f" {status.get('busy', '?')} busy, {status.get('idle', '?')} idle"
    )
    meta = policy["metadata"]
    why = f"{status.get('reason', 'Unknown')}: {status.get('message', NOT_LOOKED)}"
    return f"{meta['namespace']}/{policy['spec']['clusterRef']['name']}: {numbers}: {why}"


def bounds(policy: Json) -> dict[str, tuple[int, int]]:
    """Least and most workers, by group, the default one first."""
    spec = policy["spec"]
    default = f"{spec['clusterRef']['name']}-default"
    found = {default: (spec.get("minReplicas", 0), spec["maxReplicas"])}
    for group in spec.get("workerGroups") or []:
        if "maxReplicas" in group:
            found[group["name"]] = (group.get("minReplicas", 0), group["maxReplicas"])
    return found


def _head(policy: Json, status: Mapping[str, Any]) -> list[Any]:
    meta, spec = policy["metadata"], policy["spec"]
    mode = spec.get("mode", "Auto")
    lines: list[Any] = [
        line(
            styled(f"DaskCluster {spec['clusterRef']['name']}", HEAD),
            f" in {meta['namespace']}, under AdaptivePolicy {meta['name']}: ",
            styled(mode, GOOD if mode == "Auto" else ODD),
        )
    ]
    if not status:
        return [*lines, line("  ", styled(NOT_LOOKED, BAD))]
    lines.append(f"  {status.get('reason', 'Unknown')}: {status.get('message', '')}")
    if pause := status.get("pause"):
        until = f" (until {pause['until']})" if pause.get("until") else ""
        lines.append(line("  ", styled(f"held: {pause.get('message', '')}{until}", ODD)))
    scheduler = status.get("scheduler") or {}
    agent = f"agent {scheduler['agent']}" if scheduler.get("agent") else "no agent"
    lines.append(
        styled(f"  scheduler: distributed {scheduler.get('distributed') or '?'}, {agent}", FAINT)
    )
    numbers = ", ".join(
        f"{status[n]} {n}"
        for n in ("connected", "pending", "busy", "idle", "pinned", "retiring")
        if n in status
    )
    return [*lines, f"  workers: {numbers}"]


def _groups(policy: Json, status: Mapping[str, Any]) -> list[Text]:
    columns = ("GROUP", "BOUNDS", "REPLICAS", "DESIRED", "WANTED", "CONNECTED", "PENDING", "REASON",
               "MESSAGE")  # fmt: skip
    within = bounds(policy)
    rows = [
        [
            group["name"],
            " to ".join(map(str, within[group["name"]])) if group["name"] in within else "",
            *(
                str(group.get(field, ""))
                for field in ("replicas", "desiredReplicas", "wantedReplicas", "connected")
            ),
            _odd(group.get("pending", 0)),
            group.get("reason", ""),
            group.get("message", ""),
        ]
        for group in status.get("groups") or [_only_group(policy, status)]
    ]
    return aligned(columns, rows, indent="  ")


def _only_group(policy: Json, status: Mapping[str, Any]) -> Json:
    """Of a status that speaks of no groups: the default one."""
    return {**status, "name": f"{policy['spec']['clusterRef']['name']}-default", "message": ""}


def _odd(count: int) -> Text:
    return styled(str(count), ODD if count else "")


def _decision(status: Mapping[str, Any]) -> list[Any]:
    decision = status.get("lastDecision")
    return ["", *decision_lines(decision)] if decision else []


def decision_lines(decision: Json) -> Iterator[Text]:
    """One decision with its steps and what it was made from."""
    before, desired = decision.get("before", "?"), decision.get("desired", "?")
    outcome = decision.get("outcome") or "?"
    is_good = outcome in ("Done", "Held", "Advised")
    yield line(
        "  last decision ",
        styled(str(decision.get("at", "")), FAINT),
        f", {decision.get('group', '')}: {before} → {desired} workers, ",
        styled(outcome, GOOD if is_good else BAD),
        f", asked by {decision.get('askedBy') or 'load'}",
    )
    yield Text(f"    {decision.get('reason', '')}: {decision.get('message', '')}")
    width = max((len(s["stage"]) for s in decision.get("steps") or []), default=0)
    for step in decision.get("steps") or []:
        said = f"{step.get('reason', '')}: {step.get('message', '')}"
        yield Text(f"    {step['stage'].ljust(width)} → {step['replicas']:>3}   {said}")
    if inputs := decision.get("inputs"):
        figures = ", ".join(f"{name} {value:g}" for name, value in sorted(inputs.items()))
        yield styled(f"    made from: {figures}", FAINT)


def _conditions(status: Mapping[str, Any]) -> list[Any]:
    wrong = [
        c for c in status.get("conditions") or [] if c["status"] != _EXPECTED.get(c["type"], "True")
    ]
    if not wrong:
        return []
    rows = [
        [
            c["type"],
            styled(c["status"], ODD if c["status"] == "Unknown" or c["type"] in _EXPECTED else BAD),
            c.get("reason", ""),
            c.get("message", ""),
        ]
        for c in wrong
    ]
    return ["", *aligned(("CONDITION", "STATUS", "REASON", "MESSAGE"), rows, indent="  ")]


def _holders(status: Mapping[str, Any]) -> list[Any]:
    held = status.get("heldBy") or []
    if not held:
        return []
    rows = [
        [
            f"{row['source']} {row.get('owner', '')}".strip(),
            row.get("until") or "until it is given up",
            names(row.get("workers") or [], row.get("count", 0)),
            row.get("reason", ""),
        ]
        for row in held
    ]
    return ["", *aligned(("HELD BY", "AT THE LATEST UNTIL", "WORKERS", "REASON"), rows, "  ")]


def names(workers: Iterable[str], count: int) -> str:
    """Some names, and how many more."""
    shown = list(workers)[:_NAMES_SHOWN]
    more = count - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _rest(status: Mapping[str, Any]) -> list[Any]:
    counts = (
        ("not needed, and stay", status.get("blockers") or []),
        ("pending", status.get("pendingReasons") or []),
    )
    said = [
        f"  {what}: " + ", ".join(f"{row['workers']} {row['reason']}" for row in rows)
        for what, rows in counts
        if rows
    ]
    if replacing := status.get("replacing"):
        said += [
            f"  being replaced: {row['worker']} ({row['state']}): {row['reason']}"
            for row in replacing
        ]
    return ["", *said] if said else []
