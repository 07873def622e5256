"""Everything that the OpenAPI document allows, and much that it does not, to the real manager."""

from __future__ import annotations

import json
from collections.abc import Iterator
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

from .rest import BASE, Signed, ask

#: Settings are tried where no session is.
GROUP = "fuzzed"

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


def check(case: Case[Any]) -> None:
    case.call_and_validate(auth=Signed("admin"), checks=CHECKS)


@few_borders.parametrize()  # type: ignore[untyped-decorator]
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_breaks_it(case: Case[Any]) -> None:
    if case.method == "PATCH" and isinstance(case.body, dict) and "patch" in case.body:
        case.body["patch"] = {"resource-groups": {GROUP: case.body["patch"]}}
    check(case)


@many_borders.parametrize()  # type: ignore[untyped-decorator]
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_policy_breaks_it(case: Case[Any]) -> None:
    check(case)
