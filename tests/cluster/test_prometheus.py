"""The alert rules and the dashboard in a real Prometheus that scrapes the cluster's agent."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import settings
from devcluster.client import wait_until

CONFIGS = Path(__file__).parents[2] / "configs"
ALERTS = yaml.safe_load((CONFIGS / "prometheus/kvcache-alerts.yml").read_text())["groups"]
DASHBOARD = json.loads((CONFIGS / "grafana/kvcache.json").read_text())

#: What the dashboard's variables stand for when nothing is chosen.
_VARIABLES = {"$__range": "6h", "$project": ".+", "$session": ".+"}


def api(path: str, **arguments: str) -> Any:
    url = f"http://{settings.HOST}:{settings.PORTS['prometheus']}/api/v1/{path}"
    query = urllib.parse.urlencode(arguments)
    with urllib.request.urlopen(f"{url}?{query}", timeout=10) as response:
        answer = json.load(response)
    assert answer["status"] == "success"
    return answer["data"]


def test_alert_rules_are_evaluated() -> None:
    def evaluated() -> list[dict[str, Any]] | None:
        rules = [rule for group in api("rules")["groups"] for rule in group["rules"]]
        return rules if all(rule["health"] != "unknown" for rule in rules) else None

    rules = wait_until("All rules", evaluated, 60)
    assert [rule["name"] for rule in rules] == [
        rule["alert"] for group in ALERTS for rule in group["rules"]
    ]
    assert {rule["health"] for rule in rules} == {"ok"}


@pytest.mark.parametrize(
    "expression",
    [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())],
)
def test_dashboard_can_be_drawn(expression: str) -> None:
    for name, value in _VARIABLES.items():
        expression = expression.replace(name, value)
    api("query", query=expression)
