"""The dashboard and the alert rules that operators load as they are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ai.backend.kvcache.metrics.indicators import INDICATORS, Unit

CONFIGS = Path(__file__).parents[2] / "configs"
DASHBOARD = CONFIGS / "grafana/kvcache.json"
ALERTS = CONFIGS / "prometheus/kvcache-alerts.yml"
ALERTS_TEST = CONFIGS / "prometheus/kvcache-alerts-test.yml"

MEANINGS = {indicator.key: indicator.meaning for indicator in INDICATORS}

#: What Grafana calls the units; "bytes" and "binBps" go in steps of 1,024.
GRAFANA_UNITS: Mapping[Unit, frozenset[str]] = {
    Unit.PERCENT: frozenset({"percent"}),
    Unit.TOKENS: frozenset({"short", "suffix: tokens/s"}),
    Unit.BYTES: frozenset({"bytes"}),
    Unit.BYTES_PER_SECOND: frozenset({"binBps"}),
    Unit.FILES: frozenset({"short"}),
    Unit.SECONDS: frozenset({"s"}),
    Unit.COUNT: frozenset({"short"}),
    Unit.PER_SECOND: frozenset({"cps"}),
    Unit.YES: frozenset({"bool_yes_no"}),
    Unit.CODE: frozenset({"short"}),
}

#: What the dashboard's variables may stand for.
VARIABLES = {"$__range": "6h", "$project": ".+", "$session": ".+"}


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def panels() -> list[dict[str, Any]]:
    """Without the rows' headings."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions(panel: Mapping[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    assert group["name"] == "kvcache"
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def figures(text: str) -> set[str]:
    """The figures that are named, those of patterns aside."""
    return set(re.findall(r'container_metric_name="([^"]*)"', text))


def promtool(*arguments: str | Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool: it comes with the Debian package prometheus")
    result = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


class TestAlerts:
    def test_rules_are_valid(self) -> None:
        promtool("check", "rules", ALERTS)

    def test_fire_when_they_should(self) -> None:
        promtool("test", "rules", ALERTS_TEST)

    def test_each_is_seen_firing_and_not_firing(self) -> None:
        seen = {
            (name, bool(test["exp_samples"]))
            for group in yaml.safe_load(ALERTS_TEST.read_text())["tests"]
            for test in group["promql_expr_test"]
            for name in re.findall(r'alertname="(\w+)"', test["expr"])
        }
        assert seen == {(rule["alert"], fires) for rule in alerts() for fires in (True, False)}

    def test_each_says_how_bad_it_is_and_what_to_do(self) -> None:
        for rule in alerts():
            assert rule["for"]
            assert rule["labels"]["severity"] in {"warning", "critical"}
            assert set(rule["annotations"]) == {"summary", "description"}

    def test_ask_for_figures_that_there_are(self) -> None:
        for rule in alerts():
            assert figures(rule["expr"]) <= set(MEANINGS)
            # The agent makes the other types up from the first value that it saw.
            assert rule["expr"].count("container_metric_name=") == rule["expr"].count(
                'value_type="current"'
            )


class TestDashboard:
    def test_links_and_bookmarks_stay(self) -> None:
        assert dashboard()["uid"] == "kvcache"

    def test_every_figure_is_on_it(self) -> None:
        shown = {key for panel in panels() for e in expressions(panel) for key in figures(e)}
        assert shown == set(MEANINGS)

    def test_asks_for_figures_that_there_are(self) -> None:
        patterns = re.findall(r'container_metric_name=~\\"([^"]*)\\"', DASHBOARD.read_text())
        assert set(patterns) == {"kvcache_.+"}
        for panel in panels():
            for expression in expressions(panel):
                assert set(re.findall(r"\b(\w+)\{", expression)) == {
                    "backendai_container_utilization"
                }
                assert expression.count("{") == expression.count('value_type="current"')

    def test_panels_are_explained_in_the_tables_words(self) -> None:
        for panel in panels():
            assert panel["title"]
            assert panel["description"]
            for expression in expressions(panel):
                for key in figures(expression):
                    assert f"- `{key}`: {MEANINGS[key]}\n" in f"{panel['description']}\n"

    def test_units_are_those_of_the_figures(self) -> None:
        units = {indicator.key: indicator.unit for indicator in INDICATORS}
        for panel in panels():
            unit = panel["fieldConfig"]["defaults"]["unit"]
            shown = {key for expression in expressions(panel) for key in figures(expression)}
            assert unit
            assert all(unit in GRAFANA_UNITS[units[key]] for key in shown), panel["title"]

    def test_ids_are_unique(self) -> None:
        ids = [panel["id"] for panel in dashboard()["panels"]]
        assert len(ids) == len(set(ids))

    def test_no_panel_covers_another(self) -> None:
        taken = [cell for panel in dashboard()["panels"] for cell in cells(panel["gridPos"])]
        assert len(taken) == len(set(taken))
        assert {x for x, _ in taken} == set(range(24))

    def test_has_its_views(self) -> None:
        rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]
        assert rows == ["Sessions", "Project", "Folder"]

    def test_data_source_can_be_chosen(self) -> None:
        variables = {v["name"]: v for v in dashboard()["templating"]["list"]}
        assert list(variables) == ["datasource", "project", "session"]
        assert variables["datasource"]["type"] == "datasource"
        sources = [
            part["datasource"]
            for panel in panels()
            for part in (panel, *panel["targets"], variables["project"], variables["session"])
        ]
        assert all(s == {"type": "prometheus", "uid": "${datasource}"} for s in sources)

    def test_queries_can_be_parsed(self, tmp_path: Path) -> None:
        rules = [
            {"record": f"panel:{panel['id']}:{number}", "expr": with_values(expression)}
            for panel in panels()
            for number, expression in enumerate(expressions(panel))
        ]
        assert not any("$" in rule["expr"] for rule in rules)
        file = tmp_path / "queries.yml"
        file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
        promtool("check", "rules", file)


def cells(position: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(position["x"], position["x"] + position["w"]):
        for y in range(position["y"], position["y"] + position["h"]):
            yield x, y


def with_values(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression
