from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import schemathesis

from ai.backend.kvcache.manager.openapi import DOCUMENT, PATHS
from ai.backend.kvcache.manager.routes import ROUTES
from ai.backend.kvcache.metrics.indicators import INDICATORS
from ai.backend.kvcache.model.source import open_model
from ai.backend.kvcache.plan.ask import sizing_request
from ai.backend.kvcache.plan.sizing import size
from ai.backend.kvcache.policy.settings import SETTINGS, Mode

SCHEMAS = DOCUMENT["components"]["schemas"]


def body_of(method: str, path: str) -> dict[str, Any]:
    content = PATHS[path][method]["requestBody"]["content"]["application/json"]
    schema: dict[str, Any] = content["schema"]
    return schema


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_is_valid() -> None:
    schemathesis.openapi.from_dict(json.loads(json.dumps(DOCUMENT))).validate()


def test_has_the_routes_and_no_others() -> None:
    routes = [(method.lower(), path) for method, path, _ in ROUTES]
    assert routes == [(method, path) for path, methods in PATHS.items() for method in methods]


def test_whatever_is_referred_to_is_there_and_used() -> None:
    found = set(references(DOCUMENT))
    there = {
        f"#/components/{kind}/{name}"
        for kind in ("schemas", "responses")
        for name in DOCUMENT["components"][kind]
    }
    assert found == there


def test_has_all_settings() -> None:
    assert list(SCHEMAS["Level"]["properties"]) == list(SETTINGS)
    policy = body_of("put", "/policy")["properties"]["policy"]
    assert list(policy["properties"]) == [*SETTINGS, "resource-groups", "projects"]


def test_has_all_figures() -> None:
    figures = SCHEMAS["Session"]["properties"]["figures"]["properties"]
    assert list(figures) == [indicator.key for indicator in INDICATORS]


def test_has_all_modes() -> None:
    answer = PATHS["/projects"]["get"]["responses"]["200"]["content"]["application/json"]
    project = answer["schema"]["properties"]["projects"]["items"]
    assert project["properties"]["mode"]["enum"] == list(map(str, Mode))


def test_has_all_options_of_a_plan() -> None:
    options = body_of("post", "/plan")["properties"]
    assert list(options) == list(inspect.signature(sizing_request).parameters)


def test_has_the_parts_of_a_plan() -> None:
    plan = size(sizing_request(open_model("qwen3-8b"))).to_json()
    assert list(plan) == SCHEMAS["Plan"]["required"]


def test_the_table_of_the_documentation_has_the_routes() -> None:
    text = (Path(__file__).parents[3] / "docs/api.md").read_text()
    found = re.findall(r"^\| `([A-Z]+) /kvcache(/\S+)` \|", text, re.MULTILINE)
    assert found == [(method, path) for method, path, _ in ROUTES]
