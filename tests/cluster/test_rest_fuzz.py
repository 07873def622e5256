"""Everything that the OpenAPI document allows, and much that it does not, to the real manager."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ai.backend.kvcache.manager.openapi import DOCUMENT
from ai.backend.kvcache.model.catalog import find_in_catalog

from .rest import BASE, Signed, ask

#: Settings are tried where no session is.
GROUP = "fuzzed"

MODEL = find_in_catalog("qwen3-8b")

VERSIONS = {"lmcache_version": "0.4.3", "vllm_version": "0.20.0"}

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def _schema(*, coverage: bool) -> Any:
    """
    Args:
        coverage: whether each border of each part is tried too, and not only what chance brings.
    """
    schema = schemathesis.openapi.from_dict(json.loads(json.dumps(DOCUMENT)))
    schema.config.update(base_url=BASE)
    schema.config.phases.coverage.enabled = coverage
    return schema


#: A policy has so many borders that all of them take minutes.
MANY_BORDERS = {"method": "PUT", "path": "/policy"}

few_borders = _schema(coverage=True).exclude(**MANY_BORDERS)
many_borders = _schema(coverage=False).include(**MANY_BORDERS)


@pytest.fixture(scope="module", autouse=True)
def unchanged_policy() -> Iterator[None]:
    yield
    answer = ask("admin", "PATCH", "/policy", {"patch": {"resource-groups": {GROUP: None}}})
    assert answer.status == 200


def _patch_a_group(body: dict[str, Any]) -> None:
    if "patch" in body:
        body["patch"] = {"resource-groups": {GROUP: body["patch"]}}


def _ask_for_what_there_is(body: dict[str, Any]) -> None:
    """By chance nobody finds a model's name or a version, and nothing behind them is reached."""
    if isinstance(body.get("model"), dict):
        body["model"] = {**MODEL.config, **body["model"]}
    elif isinstance(body.get("model"), str):
        body["model"] = MODEL.name
    body.update({
        key: version for key, version in VERSIONS.items() if isinstance(body.get(key), str)
    })


NARROWED: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "/policy": _patch_a_group,
    "/plan": _ask_for_what_there_is,
}


def check(case: Case[Any]) -> None:
    case.call_and_validate(auth=Signed("admin"), checks=CHECKS)


@few_borders.parametrize()  # type: ignore[untyped-decorator]
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_breaks_it(case: Case[Any]) -> None:
    narrow = NARROWED.get(case.path)
    if narrow is not None and isinstance(case.body, dict):
        narrow(case.body)
    check(case)


@many_borders.parametrize()  # type: ignore[untyped-decorator]
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_policy_breaks_it(case: Case[Any]) -> None:
    check(case)
