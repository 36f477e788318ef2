"""The dashboard and the alert rules name metrics and labels that a broker exports."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from promql_parser import Expr

from tests.deploy.files import DEPLOY, ROOT, documents
from wheelmq.broker.metric_families import Families
from wheelmq.formats.certificate import DAY_MS
from wheelmq.testing.harness import BrokerHarness

FOLDER = DEPLOY / "observability"
DASHBOARD = json.loads((FOLDER / "grafana" / "dashboards" / "wheelmq.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
[[GROUP]] = [document["groups"] for document in documents(FOLDER / "alerts.yml")]
RULES: list[dict[str, Any]] = GROUP["rules"]
METRICS_PAGE = (ROOT / "docs" / "operations" / "metrics.md").read_text()
OF_PROMETHEUS = {"up": {"job", "instance"}}
"""Metrics of Prometheus itself, and their labels."""
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
TLS = (
    "tls_reloads",
    "tls_waiting",
    "tls_handshakes",
    "tls_failed_handshakes",
    "tls_late_handshakes",
    "tls_plain",
    "tls_rejected_plain",
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The names of all samples that a broker with a certificate exports, and their labels."""
    found: dict[str, set[str]] = {**OF_PROMETHEUS}
    with BrokerHarness(tmp_path_factory.mktemp("store")) as harness:
        figures = {"tls_certificate_expires_ms": harness.now_ms + DAY_MS, **dict.fromkeys(TLS, 0)}
        sources = dataclasses.replace(harness.broker.parts.metric_sources, shell_figures=lambda: figures)
        for family in Families(sources).all():
            labels = {*family.fixed_labels, *family.label_names, "job", "instance"}
            for suffix in SUFFIXES.get(family.kind, ("",)):
                found[family.name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Yield every expression of dashboard and rules, with its place."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m")


def parts_of(expression: Expr) -> Iterator[Any]:
    """Yield an expression and all expressions in it."""
    yield expression
    inner = [getattr(expression, name, None) for name in ("expr", "lhs", "rhs", "param", "vector_selector")]
    for part in [*inner, *getattr(expression, "args", ())]:
        if part is not None:
            yield from parts_of(part)


@pytest.mark.parametrize(("place", "text"), list(expressions()))
def test_an_expression_parses_and_names_real_metrics_and_labels(
    place: str, text: str, exported: dict[str, set[str]]
) -> None:
    parts = list(parts_of(promql_parser.parse(text)))
    selectors = [part for part in parts if isinstance(part, promql_parser.VectorSelector)]
    assert selectors, place
    for selector in selectors:
        assert selector.name in exported, f"{place}: {selector.name}"
        assert {matcher.name for matcher in selector.matchers.matchers} <= exported[selector.name]
    labels = set.union(*(exported[selector.name] for selector in selectors))
    grouped = {label for part in parts if isinstance(part, promql_parser.AggregateExpr) for label in grouping(part)}
    assert grouped <= labels, place


def grouping(aggregate: Any) -> list[str]:
    return [] if aggregate.modifier is None else list(aggregate.modifier.labels)


def test_the_parts_of_an_expression_are_found() -> None:
    text = 'topk(3, sum by (how) (rate(a_total{b="c"}[1m]))) > histogram_quantile(0.5, d_bucket)'
    selectors = [part for part in parts_of(promql_parser.parse(text)) if isinstance(part, promql_parser.VectorSelector)]
    assert [one.name for one in selectors] == ["a_total", "d_bucket"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_text_of_an_alert_names_labels_that_it_has(rule: dict[str, Any], exported: dict[str, set[str]]) -> None:
    [metric] = set(re.findall(r"\b(?:up|rocketmq_\w+|wheelmq_\w+)\b", rule["expr"]))
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= exported[metric]
    assert rule["labels"]["severity"] in ("page", "warn")


def test_there_is_an_alert_for_each_alarm_of_the_page() -> None:
    """An alarm without a metric is a line in a log."""
    alarms = METRICS_PAGE.partition("## Alarms")[2].partition("\n## ")[0]
    named = re.findall(r"^(?:\| |- \*\*)`(\w+)(?:\{[^`]*)?`", alarms, re.MULTILINE)
    rules = " ".join(rule["expr"] for rule in RULES)
    assert len(set(named)) == 14
    assert [name for name in named if not re.search(rf"\b{name}\b", rules)] == []


def test_legends_name_labels_that_their_expression_keeps(exported: dict[str, set[str]]) -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            expression = promql_parser.parse(target["expr"].replace("$__rate_interval", "1m"))
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            if isinstance(expression, promql_parser.VectorSelector):
                assert labels <= exported[expression.name or ""], panel["title"]
            else:
                kept = {label for part in parts_of(expression) if hasattr(part, "modifier") for label in grouping(part)}
                assert labels <= kept, panel["title"]


def test_panels_do_not_overlap() -> None:
    cells = [
        (panel["gridPos"]["y"] + y, panel["gridPos"]["x"] + x)
        for panel in DASHBOARD["panels"]
        for y in range(panel["gridPos"]["h"])
        for x in range(panel["gridPos"]["w"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_grafana_finds_the_dashboard_and_the_data_source() -> None:
    provisioning = FOLDER / "grafana" / "provisioning"
    [source] = documents(provisioning / "datasources" / "prometheus.yml")[0]["datasources"]
    [provider] = documents(provisioning / "dashboards" / "wheelmq.yml")[0]["providers"]
    assert source["url"] == "http://prometheus:9090"
    mounts = documents(DEPLOY / "compose.yaml")[0]["services"]["grafana"]["volumes"]
    assert any(mount.split(":")[1] == provider["options"]["path"] for mount in mounts)
    [variable] = [one for one in DASHBOARD["templating"]["list"] if one["name"] == "datasource"]
    assert variable["query"] == source["type"]
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in PANELS)


def test_prometheus_reads_the_rules() -> None:
    [config] = documents(FOLDER / "prometheus.yml")
    assert [(FOLDER / name).name for name in config["rule_files"]] == [Path(FOLDER / "alerts.yml").name]
    assert {job["job_name"] for job in config["scrape_configs"]} == {"wheelmq"}
