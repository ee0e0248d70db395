"""Monitors, alerts and the dashboard: rendered, and checked by Prometheus' own promtool."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dask_adaptive.controller.metrics import _OF_CLUSTERS, Metrics
from support.kube_server import CHART, ROOT, built, ran, rendered

NAME = "r-dask-adaptive"
ALERTS = CHART / "files/alerts.yaml"
DASHBOARD = CHART / "files/dashboard.json"


@pytest.fixture(scope="module")
def promtool() -> str:
    return built("tests/chart/promtool.sh")


def run(*words: str) -> str:
    done = ran(*words)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def test_alerts_fire_when_they_should_and_only_then(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "check", "rules", str(ALERTS))
    run(promtool, "test", "rules", str(ROOT / "tests/chart/alerts_test.yaml"))


def test_each_alert_is_tested_and_says_what_to_do() -> None:
    tested = (ROOT / "tests/chart/alerts_test.yaml").read_text()
    for rule in _rules():
        fires = re.findall(rule["alert"], tested)
        assert len(fires) >= 2, f"{rule['alert']} is to be seen both silent and firing"
        assert {"summary", "description", "runbook_url"} == set(rule["annotations"])
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert f"\n### {rule['alert']}\n" in (ROOT / page).read_text()
        assert rule["alert"].lower() == anchor
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_alerts_and_dashboard_speak_of_metrics_that_there_are() -> None:
    there = set()
    for family in Metrics().registry.collect():
        there |= {family.name, f"{family.name}_total", f"{family.name}_bucket"}

    for text in (*(r["expr"] for r in _rules()), *_expressions()):
        asked = set(re.findall(r"dask_adaptive_\w+", text))
        assert asked, text
        assert asked <= there, f"{asked - there} in {text}"


def test_expressions_of_the_dashboard_are_promql(promtool: str, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{i}", "expr": re.sub(r"\$__rate_interval", "5m", text)}
        for i, text in enumerate(_expressions())
    ]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run(promtool, "check", "rules", str(file))


def test_gauges_of_clusters_are_those_of_who_leads() -> None:
    seen = set[str]()
    for text in (*(r["expr"] for r in _rules()), *_expressions()):
        of_clusters = set(re.findall(r"dask_adaptive_(\w+)", text)) & _OF_CLUSTERS.keys()
        if of_clusters and not re.search(r"changes\(", text):
            assert re.search(r"and on \(job, instance\) dask_adaptive_leader == 1", text), text
            assert re.search(r"(max|min) by \(", text), f"two may seem to lead: {text}"
            seen |= of_clusters
    assert {"workers", "group_replicas", "condition", "pinned_workers"} <= seen


def test_nothing_on_the_dashboard_is_counted_twice(promtool: str, tmp_path: Path) -> None:
    """Two seem to lead, and a third one is still there from before."""
    where = 'namespace="team",cluster="etl"'
    series = [
        (f'dask_adaptive_leader{{job="op",instance="{i}"}}', leads)
        for i, leads in (("a", 1), ("b", 1), ("c", 0))
    ]
    shown = {"workers": 'state="busy"', "group_replicas": 'group="g",what="desired"'}
    series += [
        (f'dask_adaptive_{name}{{{where},{labels},job="op",instance="{i}"}}', workers)
        for name, labels in shown.items()
        for i, workers in (("a", 5), ("b", 5), ("c", 90))
    ]
    checks = [
        {
            "expr": re.sub(r"\$\w+", ".*", text),
            "eval_time": "3m",
            "exp_samples": [{"labels": f"{{{shown[name].split(',')[-1]}}}", "value": 5}],
        }
        for name in shown
        for text in _expressions()
        if f"dask_adaptive_{name}{{" in text
    ]
    assert len(shown) == len(checks)
    inputs = [{"series": name, "values": f"{value}x5"} for name, value in series]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": checks}
    file = tmp_path / "dashboard.yaml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    run(promtool, "test", "rules", str(file))


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in _panels():
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


def test_nothing_of_it_is_there_unless_asked_for() -> None:
    kinds = {kind for kind, _ in rendered()}
    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    assert ("ConfigMap", f"{NAME}-dashboard") not in rendered()


def test_all_of_it_on_demand() -> None:
    on = "monitoring.{0}.enabled=true"
    sets = ",".join(on.format(w) for w in ("serviceMonitor", "alerts", "dashboard"))
    made = rendered("--set", f"{sets},monitoring.labels.release=prom")

    monitor = made["ServiceMonitor", NAME]
    selector = monitor["spec"]["selector"]["matchLabels"]
    assert selector.items() <= made["Service", f"{NAME}-metrics"]["metadata"]["labels"].items()
    assert "prom" == monitor["metadata"]["labels"]["release"]
    assert [True] == [e["honorLabels"] for e in monitor["spec"]["endpoints"]]  # `namespace` is ours
    assert yaml.safe_load(ALERTS.read_text()) == made["PrometheusRule", NAME]["spec"]
    dashboard = made["ConfigMap", f"{NAME}-dashboard"]
    assert "1" == dashboard["metadata"]["labels"]["grafana_dashboard"]
    assert json.loads(DASHBOARD.read_text()) == json.loads(dashboard["data"]["dask-adaptive.json"])


def test_a_pod_monitor_instead() -> None:
    made = rendered("--set", "monitoring.podMonitor.enabled=true")
    labels = made["Deployment", NAME]["spec"]["template"]["metadata"]["labels"]
    selector = made["PodMonitor", NAME]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= labels.items()


def _rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def _panels() -> list[dict[str, Any]]:
    return list(json.loads(DASHBOARD.read_text())["panels"])


def _expressions() -> Iterator[str]:
    for panel in _panels():
        yield from (target["expr"] for target in panel["targets"])
