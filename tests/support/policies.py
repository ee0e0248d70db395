"""
Specs of policies, written as YAML and added to `LEAST`, for the model and for the API server alike.

`WRONG`: each has the field at fault, without `spec.`, and the words with which both refuse it. No
words: the schema refuses it, and the API server has its own words for that. What is wrong with one
field alone is made from the CRD, in test_policy.py: here it is once for each sentence.
"""

from __future__ import annotations

from typing import Any

import yaml

from support.kube_server import ROOT

#: The example that names every field.
FULL: dict[str, Any] = yaml.safe_load((ROOT / "manifests/examples/full-policy.yaml").read_text())[
    "spec"
]

LEAST: dict[str, Any] = {"clusterRef": {"name": "etl"}, "maxReplicas": 5}

_UP = "behavior.scaleUp"
_RATE = "type: Pods, value: 4, period: 15s"
_CRON = "cron: 0 8 * * 1-5"
_TOLERANCE = "must be a percentage from 0% to 100%, such as 10%, or a part of one in quotes"
_DURATION = "must be a duration such as 90s, 15m or 1h30m: a number with a unit (ms, s, m, h)"
_IDLE = "must be Auto, or a duration such as 90s, 15m or 1h30m, not negative, at most 87600h"
_PART = "must be a percentage from 0% to 100%, such as 10%"
_LINE = "must be a percentage of more than 0% and at most 100%, such as 80%"
_AMOUNT = "must be a whole number from 0 to 2147483647, or a percentage, such as 10%"
_OPEN = "must not be longer than 744h, which are 31 days: let the schedule begin more often"
_PROTOCOL = "must be tcp or tls; the operator speaks no other: start dask scheduler with one"
_FIELDS = "must be five fields of cron, such as 0 2 * * 1-5"
_NOT_SCALED = "needs maxReplicas: a group without it is not scaled"
_GROUP = "must be the default group, or one of spec.workerGroups with maxReplicas"
_MOST = "must not be greater than maxReplicas of its worker group"
_STILL = "has one of 0 for TaskQuota, and with recycle.tasks.exact workers would come to"


WRONG: list[tuple[str, str, str]] = [
    # Bounds, groups
    ("controllerName: Team_A", "controllerName", "must be a name of Kubernetes, such as team-a"),
    ("controllerName: ''", "controllerName", "must be a name of Kubernetes, such as team-a"),
    ("maxReplicas:", "maxReplicas", ""),
    ("maxReplicas: true", "maxReplicas", ""),
    ("minReplicas: 1.5", "minReplicas", ""),
    ("minReplicas: 9", "minReplicas",
     "(9) must not be greater than spec.maxReplicas (5): lower the one or raise the other"),
    ("idelTimeout: 5s", "idelTimeout", ""),
    ("workerGroups: [{name: g, minReplicas: 4, maxReplicas: 3}]", "workerGroups[0].minReplicas",
     "(4) must not be greater than maxReplicas (3): lower the one or raise the other"),
    ("workerGroups: [{name: g, minReplicas: 1}]", "workerGroups[0].minReplicas", _NOT_SCALED),
    ("workerGroups: [{name: g, idleTimeout: 1m}]", "workerGroups[0].idleTimeout", _NOT_SCALED),
    ("workerGroups: [{name: g, priority: 1}]", "workerGroups[0].priority", _NOT_SCALED),
    ("workerGroups: [{name: g, maxReplicas: 3, idleTimeout: '5'}]", "workerGroups[0].idleTimeout",
     _IDLE),
    ("workerGroups: [{name: g}, {name: g, maxReplicas: 2}]", "workerGroups[1]", ""),
    ("workerGroups: [{name: g, recycle: {tasks: {jitter: 10%}}}]",
     "workerGroups[0].recycle.tasks.jitter", ""),
    ("workerGroups: [{name: g, recycle: {lifetime: {walltime: true}}}]",
     "workerGroups[0].recycle.lifetime.walltime", "needs max: how long workers have"),
    ("workerGroups: [{name: g, recycle: {memory: {soft: 90%, hard: 80%}}}]",
     "workerGroups[0].recycle.memory.soft", "must be lower than hard"),
    ("workerGroups: [{name: g, minReplicas: 3, maxReplicas: 4},"
     " {name: etl-default, minReplicas: 3, maxReplicas: 3}]", "workerGroups",
     "the minReplicas of all groups (6) must not be more than spec.maxReplicas (5): lower them"),
    ("{minReplicas: 1, workerGroups: [{name: etl-default, maxReplicas: 4}]}", "minReplicas",
     "must be that of the default group in spec.workerGroups: write it there"),
    # How the number moves
    ("idleTimeout: '5'", "idleTimeout", _IDLE),
    ("idleTimeout: ''", "idleTimeout", _IDLE),
    ("idleTimeout: 87601h", "idleTimeout", _IDLE),
    ("target: {duration: soon}", "target.duration", _DURATION),
    ("target: {duration: 99999999h}", "target.duration", _DURATION),
    (f"target: {{duration: {'9' * 31}h}}", "target.duration", _DURATION),
    ("target: {duration: 0s}", "target.duration", "must be longer than 0s"),
    ("behavior: {scaleUp: {stabilizationWindow: 61m}}", f"{_UP}.stabilizationWindow",
     "must not be longer than 1h"),
    ("behavior: {scaleUp: {tolerance: '1.1'}}", f"{_UP}.tolerance", _TOLERANCE),
    ("behavior: {scaleUp: {tolerance: 0.1}}", f"{_UP}.tolerance", ""),
    ("behavior: {scaleUp: {policies: [{type: Pods, value: 4, period: 0s}]}}",
     f"{_UP}.policies[0].period", "must be from 1s to 30m"),
    *(
        (f"schedules: [{{{written}}}]", f"schedules[0].{field}", words)
        for written, field, words in (
            (f"{_CRON}, minReplicas: 2, duration: 745h", "duration", _OPEN),
            (f"{_CRON}, minReplicas: 2, duration: 1h, workerGroup: g", "workerGroup", _GROUP),
            (f"{_CRON}, minReplicas: 6, duration: 1h", "minReplicas", _MOST),
            ("cron: daily, minReplicas: 2, duration: 1h", "cron", _FIELDS),
        )
    ),
    (f"{{workerGroups: [{{name: g}}], schedules: [{{{_CRON}, minReplicas: 1, duration: 1h,"
     " workerGroup: g}]}", "schedules[0].workerGroup", _GROUP),
    (f"{{workerGroups: [{{name: g, maxReplicas: 2}}], schedules: [{{{_CRON}, minReplicas: 3,"
     " duration: 1h, workerGroup: g}]}", "schedules[0].minReplicas", _MOST),
    (f"{{workerGroups: [{{name: etl-default, maxReplicas: 1}}], schedules: [{{{_CRON},"
     " minReplicas: 2, duration: 1h}]}", "schedules[0].minReplicas", _MOST),
    ("idle: {action: ScaleToZero}", "idle.action",
     "needs idle.after or idle.noClientTimeout: when to do it"),
    ("fallback: {behavior: Replicas}", "fallback.replicas",
     "is required with fallback.behavior: Replicas"),
    ("fallback: {replicas: 2}", "fallback.replicas", "needs fallback.behavior: Replicas"),
    ("fallback: {behavior: Replicas, replicas: 6}", "fallback.replicas",
     "(6) must not be greater than spec.maxReplicas (5)"),
    ("maxUnready: 101%", "maxUnready", _PART),
    ("shuffle: {maxWait: 601s}", "shuffle.maxWait", "must not be longer than 10m"),
    ("shuffle: {maxWait: -1s}", "shuffle.maxWait", _DURATION),
    # How workers leave, and what holds them
    ("disruption: {budgets: [{workers: half}]}", "disruption.budgets[0].workers", ""),
    ("disruption: {budgets: [{workers: -1}]}", "disruption.budgets[0].workers", ""),
    ("disruption: {budgets: [{workers: 2147483648}]}", "disruption.budgets[0].workers", ""),
    ("disruption: {budgets: [{workers: true}]}", "disruption.budgets[0].workers", ""),
    ("disruption: {budgets: [{workers: 1, reasons: [Idle]}]}", "disruption.budgets[0].reasons[0]",
     ""),
    ("disruption: {budgets: [{workers: 1, reasons: [Lifetime, Lifetime]}]}",
     "disruption.budgets[0].reasons[1]", ""),
    # Quotas
    ("{recycle: {tasks: {max: 9, exact: true}}, disruption: {budgets: [{workers: 0%,"
     " reasons: [TaskQuota]}]}}", "disruption.budgets", _STILL),
    ("recycle: {lifetime: {walltime: true}}", "recycle.lifetime.walltime",
     "needs max: how long workers have"),
    ("recycle: {memory: {soft: 92%, hard: 80.5%}}", "recycle.memory.soft",
     "must be lower than hard: lower the one or raise the other"),
    ("recycle: {memory: {soft: 0%}}", "recycle.memory.soft", _LINE),
    ("recycle: {memory: {soft: 0.8}}", "recycle.memory.soft", ""),
    ("recycle: {failures: {patterns: ['*', CUDA]}}", "recycle.failures.patterns[1]",
     "must have a *, which stands for any text"),
    (r"recycle: {failures: {patterns: ['*\d+*']}}", "recycle.failures.patterns[0]",
     "must be a glob, not a regular expression"),
    ("recycle: {failures: {patterns: ['^*']}}", "recycle.failures.patterns[0]",
     "must be a glob, not a regular expression"),
    ("recycle: {failures: {patterns: ['a*', 'a*']}}", "recycle.failures.patterns[1]", ""),
    ("recycle: {maxPerHour: some}", "recycle.maxPerHour", _AMOUNT),
    ("recycle: {maxPerHour: '20'}", "recycle.maxPerHour", _AMOUNT),
    ("recycle: {maxPerHour: -1}", "recycle.maxPerHour", _AMOUNT),
    ("recycle: {maxPerHour: 2147483648}", "recycle.maxPerHour", _AMOUNT),
    ("recycle: {maxPerHour: 1.5}", "recycle.maxPerHour", ""),
    ("recycle: {strategy: {maxSurge: 0}}", "recycle.strategy.maxSurge", ""),
    ("recycle: {strategy: {maxSurge: 2147483648}}", "recycle.strategy.maxSurge", ""),
    ("recycle: {strategy: {maxSurge: 0%}}", "recycle.strategy.maxSurge", ""),
    # The scheduler
    ("scheduler: {relief: {pickling: Off}}", "scheduler.relief.pickling", ""),
    ("scheduler: {protocol: ws}", "scheduler.protocol", _PROTOCOL),
    ("scheduler: {protocol: wss}", "scheduler.protocol", _PROTOCOL),
    ("scheduler: {protocol: tcp, tls: {secretName: a}}", "scheduler.tls.secretName",
     "is for tls, and protocol is tcp: drop one of the two"),
    ("scheduler: {config: {distributed: 1}}", "scheduler.config.distributed", ""),
    ("scheduler: {config: {distributed: {scheduler: {preload: [x]}}}}",
     "scheduler.config.distributed.scheduler.preload",
     "must not have a value, because it loads the agent: set DASK_DISTRIBUTED__"),
    (f"scheduler: {{config: {{{', '.join(f'k{i}: {{a: 1}}' for i in range(201))}}}}}",
     "scheduler.config", ""),
]  # fmt: skip

#: What both take, and read alike.
TAKEN = [
    "{}",
    "controllerName: team-a.example.org",
    "{minReplicas: 1, workerGroups: [{name: etl-gpu, minReplicas: 1, maxReplicas: 9,"
    " idleTimeout: 10m}, {name: big, maxReplicas: 0, priority: -3, recycle: {tasks: {max: 9}}},"
    f" {{name: fixed, recycle: {{}}}}], schedules: [{{{_CRON}, duration: 1h, minReplicas: 2,"
    f" workerGroup: ''}}, {{{_CRON}, duration: 1h, minReplicas: 2, workerGroup: etl-gpu,"
    " timeZone: Europe/Berlin}, {cron: '*/5 0-6 1,15 * MON-FRI', duration: 1h, minReplicas: 2,"
    " workerGroup: etl-default}]}",
    "workerGroups: [{name: etl-default, minReplicas: 2, maxReplicas: 2}]",
    "{minReplicas: 5, workerGroups: [{name: etl-gpu, minReplicas: 8, maxReplicas: 9}]}",
    f"{{schedules: [{{{_CRON}, duration: 1h, minReplicas: 9, workerGroup: etl-gpu}}],"
    " workerGroups: [{name: etl-gpu, maxReplicas: 9}]}",
    "behavior: {scaleUp: {stabilizationWindow: 0s, selectPolicy: Min, tolerance: '0.1'},"
    f" scaleDown: {{stabilizationWindow: 1h, tolerance: 2.5%, policies: [{{{_RATE}}}]}}}}",
    "behavior: {scaleUp: {policies: [{type: Percent, value: 900, period: 1s}], maxPending: 1}}",
    "behavior: {scaleUp: {tolerance: '1'}, scaleDown: {selectPolicy: Disabled}}",
    "{idle: {noClientTimeout: 1h, action: DeleteCluster}, maxUnready: 100%}",
    "{idle: {after: 1h}, fallback: {behavior: Replicas, replicas: 0}}",
    "{shuffle: {maxWait: 0s}, unschedulableTimeout: 500ms, maxUnready: 0%}",
    "{shuffle: {waitForWorkers: Disabled}}",
    "recycle: {maxPerHour: 2.5%, strategy: {maxSurge: 25%}}",
    "recycle: {maxPerHour: 0, strategy: {maxSurge: 3}}",
    "recycle: {memory: {soft: 80.5%, hard: 100%, for: 5m}}",
    "{recycle: {memory: {for: 5m}}, workerGroups: [{name: g, recycle: {memory: {soft: 80%}}}]}",
    "recycle: {tasks: {jitter: 100%}}",
    "recycle: {failures: {patterns: ['*CUDA error*', 'OSError(28, *)', '*(a|b)*', '* $x ^y*']}}",
    "disruption: {budgets: [], windows: []}",
    "workerGroups: [{name: g}, {name: h, recycle: {}}]",
    "{recycle: {tasks: {max: 9, exact: true}}, disruption: {budgets: [{workers: 0,"
    " reasons: [Lifetime]}, {workers: 1%}]}}",
    "disruption: {windows: [{schedule: '*/5 0-6 1,15 * MON-FRI', duration: 2h}]}",
    "disruption: {windows: [{schedule: 0 0 29 2 *, duration: 744h}]}",
    "recycle: {lifetime: {max: 87600h}, minAge: 525600m}",
    "{mode: , recycle: {memory: }, workerGroups: [{name: g, maxReplicas: }]}",
    "scheduler: {relief: {prefixes: Disabled, pickling: Shared}}",
    "scheduler: {config: {distributed: {scheduler: {worker-ttl: 10m, worker-saturation: 1.5},"
    " logging: {distributed.scheduler: debug}, comm: {compression: None}},"
    " distributed.scheduler.blocked-handlers: [a, {b: [1]}], jobqueue: {}}}",
]


def schema_of(crd: str) -> dict[str, Any]:
    """Of a spec, as the CRD has it."""
    (version,) = yaml.safe_load((ROOT / f"manifests/crds/{crd}.yaml").read_text())["spec"][
        "versions"
    ]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def changed(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at a path; `drop`: without it."""
    if not path:
        return value
    head, *rest = path
    copy = node.copy()
    if value == "drop" and not rest:
        del copy[head]
    else:
        copy[head] = changed(node[head], tuple(rest), value)
    return copy


def spec(written: str) -> dict[str, Any]:
    return {**LEAST, **yaml.safe_load(written)}
