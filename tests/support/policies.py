"""Specs of policies that are refused, with the words that the API server and our parser share."""

from __future__ import annotations

from typing import Any


def rates(**change: Any) -> dict[str, Any]:
    return {"policies": [{"type": "Pods", "value": 4, "period": "15s", **change}]}


def group(**fields: Any) -> dict[str, Any]:
    return {"workerGroups": [{"name": "etl-gpu", **fields}]}


def schedule(**change: Any) -> dict[str, Any]:
    stock = {"cron": "0 8 * * 1-5", "duration": "10h", "minReplicas": 2}
    return {"schedules": [{**stock, **change}]}


#: What is added to `{clusterRef: {name: etl}, maxReplicas: 5}`; the field; and the sentence.
SCALING_NONSENSE: list[tuple[dict[str, Any], str, str]] = [
    (
        group(minReplicas=4, maxReplicas=3),
        "spec.workerGroups[0].minReplicas",
        "(4) must not be greater than maxReplicas (3): lower the one or raise the other",
    ),
    (
        group(minReplicas=1),
        "spec.workerGroups[0].minReplicas",
        "needs maxReplicas: a group without it is not scaled",
    ),
    (
        group(idleTimeout="1m"),
        "spec.workerGroups[0].idleTimeout",
        "needs maxReplicas: a group without it is not scaled",
    ),
    (
        group(priority=1),
        "spec.workerGroups[0].priority",
        "needs maxReplicas: a group without it is not scaled",
    ),
    (
        {
            "workerGroups": [
                {"name": "etl-gpu", "minReplicas": 3, "maxReplicas": 4},
                {"name": "etl-default", "minReplicas": 3, "maxReplicas": 3},
            ]
        },
        "spec.workerGroups",
        "the minReplicas of all groups (6) must not be more than spec.maxReplicas (5): lower them",
    ),
    (
        {"minReplicas": 1, "workerGroups": [{"name": "etl-default", "maxReplicas": 4}]},
        "spec.minReplicas",
        "must be that of the default group in spec.workerGroups: write it there",
    ),
    (
        {"behavior": {"scaleUp": {"stabilizationWindow": "61m"}}},
        "spec.behavior.scaleUp.stabilizationWindow",
        "must not be longer than 1h",
    ),
    (
        {"behavior": {"scaleDown": {"stabilizationWindow": "3601s"}}},
        "spec.behavior.scaleDown.stabilizationWindow",
        "must not be longer than 1h",
    ),
    (
        {"behavior": {"scaleUp": rates(period="0s")}},
        "spec.behavior.scaleUp.policies[0].period",
        "must be from 1s to 30m",
    ),
    (
        {"behavior": {"scaleDown": rates(period="31m")}},
        "spec.behavior.scaleDown.policies[0].period",
        "must be from 1s to 30m",
    ),
    (
        {"behavior": {"scaleUp": {"tolerance": "1.1"}}},
        "spec.behavior.scaleUp.tolerance",
        "must be a percentage from 0% to 100%, such as 10%, or a part of one in quotes",
    ),
    (
        {"behavior": {"scaleDown": {"tolerance": "100.5%"}}},
        "spec.behavior.scaleDown.tolerance",
        "must be a percentage from 0% to 100%, such as 10%, or a part of one in quotes",
    ),
    (schedule(duration="0s"), "spec.schedules[0].duration", "must be longer than 0s"),
    (
        schedule(workerGroup="etl-gpu"),
        "spec.schedules",
        "must be the default group, or one of spec.workerGroups with maxReplicas",
    ),
    (
        {**schedule(workerGroup="etl-gpu"), **group()},
        "spec.schedules",
        "must be the default group, or one of spec.workerGroups with maxReplicas",
    ),
    (
        schedule(minReplicas=6),
        "spec.schedules",
        "must not be greater than maxReplicas of its worker group",
    ),
    (
        {**schedule(workerGroup="etl-gpu", minReplicas=3), **group(maxReplicas=2)},
        "spec.schedules",
        "must not be greater than maxReplicas of its worker group",
    ),
    (
        {**schedule(), "workerGroups": [{"name": "etl-default", "maxReplicas": 1}]},
        "spec.schedules",
        "must not be greater than maxReplicas of its worker group",
    ),
    (
        {"idle": {"action": "ScaleToZero"}},
        "spec.idle.action",
        "needs idle.after or idle.noClientTimeout: when to do it",
    ),
    ({"idle": {"after": "0s"}}, "spec.idle.after", "must be longer than 0s"),
    (
        {"idle": {"noClientTimeout": "0m"}},
        "spec.idle.noClientTimeout",
        "must be longer than 0s",
    ),
    (
        {"fallback": {"behavior": "Replicas"}},
        "spec.fallback.replicas",
        "is required with fallback.behavior: Replicas",
    ),
    (
        {"fallback": {"replicas": 2}},
        "spec.fallback.replicas",
        "needs fallback.behavior: Replicas",
    ),
    (
        {"fallback": {"behavior": "Replicas", "replicas": 6}},
        "spec.fallback.replicas",
        "(6) must not be greater than spec.maxReplicas (5)",
    ),
    ({"unschedulableTimeout": "0s"}, "spec.unschedulableTimeout", "must be longer than 0s"),
    ({"shuffle": {"maxWait": "601s"}}, "spec.shuffle.maxWait", "must not be longer than 10m"),
]

#: The same, where each has words of its own for it; here the API server's.
SCALING_MISTAKES: list[tuple[dict[str, Any], list[str]]] = [
    ({"target": {"source": "Dask"}}, ["spec.target.source", '"StartupAware", "Scheduler"']),
    (group(maxReplicas=-1), ["spec.workerGroups[0].maxReplicas", "or equal to 0"]),
    (group(maxReplicas=3, priority=1001), ["workerGroups[0].priority", "or equal to 1000"]),
    (group(maxReplicas=3, priority=-1001), ["workerGroups[0].priority", "or equal to -1000"]),
    (group(maxReplicas=3, idleTimeout="5"), ["workerGroups.idleTimeout must be a duration"]),
    (
        {"workerGroups": [{"name": "g"}, {"name": "g", "maxReplicas": 2}]},
        ["spec.workerGroups[1]", "Duplicate value", "g"],
    ),
    ({"workerGroups": [{"name": f"g{i}"} for i in range(33)]}, ["spec.workerGroups", "at most 32"]),
    ({"behavior": {"scaleUp": {"selectPolicy": "Sum"}}}, ["selectPolicy", '"Max", "Min", "Disab']),
    ({"behavior": {"scaleUp": {"stabilizationWindow": 30}}}, ["stabilizationWindow", "string"]),
    ({"behavior": {"scaleUp": {"tolerance": 0.1}}}, ["scaleUp.tolerance", "string"]),
    ({"behavior": {"scaleUp": {"maxPending": 0}}}, ["scaleUp.maxPending", "or equal to 1"]),
    ({"behavior": {"scaleDown": {"maxPending": 1}}}, ["unknown field", "scaleDown.maxPending"]),
    ({"behavior": {"scaleDown": {"delayAfterScaleUp": "x"}}}, ["delayAfterScaleUp must be a dur"]),
    (
        {"behavior": {"scaleUp": {"delayAfterScaleUp": "1s"}}},
        ["unknown field", "delayAfterScaleUp"],
    ),
    ({"behavior": {"scaleUp": rates(type="Workers")}}, ["policies[0].type", '"Pods", "Percent"']),
    ({"behavior": {"scaleUp": rates(value=0)}}, ["policies[0].value", "or equal to 1"]),
    ({"behavior": {"scaleUp": rates(periodSeconds=5)}}, ["unknown field", "periodSeconds"]),
    (
        {"behavior": {"scaleUp": {"policies": rates()["policies"] * 17}}},
        ["behavior.scaleUp.policies", "at most 16"],
    ),
    ({"behavior": {"scaleUp": {"policies": [{"value": 1, "period": "1s"}]}}}, ["type", "Required"]),
    (
        {"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1}]}}},
        ["period", "Required"],
    ),
    (
        {"behavior": {"scaleUp": {"policies": [{"type": "Pods", "period": "1s"}]}}},
        ["value", "Requ"],
    ),
    (schedule(cron="daily"), ["schedules.cron must be five fields of cron"]),
    (schedule(cron=None), ["spec.schedules[0].cron", "Required"]),
    (schedule(duration=None), ["spec.schedules[0].duration", "Required"]),
    (schedule(minReplicas=None), ["spec.schedules[0].minReplicas", "Required"]),
    (schedule(minReplicas=0), ["spec.schedules[0].minReplicas", "or equal to 1"]),
    (schedule(timeZone=""), ["spec.schedules[0].timeZone"]),
    (schedule(workerGroup=3), ["spec.schedules[0].workerGroup", "string"]),
    ({"schedules": schedule()["schedules"] * 33}, ["spec.schedules", "at most 32"]),
    ({"idle": {"after": "soon"}}, ["idle.after must be a duration"]),
    ({"idle": {"after": "1h", "action": "Delete"}}, ["idle.action", '"Nothing", "ScaleToZero"']),
    ({"fallback": {"failureThreshold": 0}}, ["fallback.failureThreshold", "or equal to 1"]),
    ({"fallback": {"behavior": "LIFO"}}, ["fallback.behavior", '"Hold", "Replicas"']),
    ({"fallback": {"behavior": "Replicas", "replicas": -1}}, ["fallback.replicas", "equal to 0"]),
    ({"unschedulableTimeout": "x"}, ["spec.unschedulableTimeout must be a duration"]),
    ({"maxUnready": "101%"}, ["spec.maxUnready must be a percentage from 0% to 100%"]),
    ({"maxUnready": 45}, ["spec.maxUnready", "string"]),
    ({"shuffle": {"waitForWorkers": "Yes"}}, ["shuffle.waitForWorkers", '"Auto", "Disabled"']),
    ({"shuffle": {"maxWait": "-1s"}}, ["shuffle.maxWait must be a duration"]),
]

#: What both take, and read alike.
SCALING_TAKEN: list[dict[str, Any]] = [
    {
        "minReplicas": 1,
        "workerGroups": [
            {"name": "etl-gpu", "minReplicas": 1, "maxReplicas": 9, "idleTimeout": "10m"},
            {"name": "etl-big", "maxReplicas": 0, "priority": -3, "recycle": {"drift": False}},
            {"name": "etl-fixed", "recycle": {}},
        ],
        "schedules": [
            *schedule(workerGroup="")["schedules"],
            *schedule(workerGroup="etl-gpu", timeZone="Europe/Berlin")["schedules"],
            *schedule(workerGroup="etl-default", cron="*/5 0-6 1,15 * MON-FRI")["schedules"],
        ],
    },
    {"workerGroups": [{"name": "etl-default", "minReplicas": 2, "maxReplicas": 2}], **schedule()},
    {"minReplicas": 5, **group(minReplicas=8, maxReplicas=9)},
    {**schedule(workerGroup="etl-gpu", minReplicas=9), **group(maxReplicas=9)},
    {
        "behavior": {
            "scaleUp": {"stabilizationWindow": "0s", "selectPolicy": "Min", "tolerance": "0.1"},
            "scaleDown": {"stabilizationWindow": "1h", "tolerance": "2.5%", **rates(value=1)},
        }
    },
    {"behavior": {"scaleUp": {**rates(type="Percent", value=900), "maxPending": 1}}},
    {"behavior": {"scaleUp": {"tolerance": "1"}, "scaleDown": {"selectPolicy": "Disabled"}}},
    {"idle": {"noClientTimeout": "1h", "action": "DeleteCluster"}, "maxUnready": "100%"},
    {"idle": {"after": "1h"}, "fallback": {"behavior": "Replicas", "replicas": 0}},
    {"shuffle": {"maxWait": "0s"}, "unschedulableTimeout": "500ms", "maxUnready": "0%"},
    {"target": {"source": "Scheduler"}, "shuffle": {"waitForWorkers": "Disabled"}},
]
