"""Requests to the manager, signed as Backend.AI's client signs them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import attrs
import requests
from ai.backend.common.auth.utils import generate_signature
from yarl import URL

from devcluster import configuration, settings

BASE = f"{settings.manager_url()}/kvcache"

_API_VERSION = "v9.20250722"


@attrs.frozen
class Signed(requests.auth.AuthBase):
    """Signs for one of the cluster's users."""

    role: str

    def __call__(self, request: Any) -> Any:
        access_key, secret_key = configuration.CREDENTIALS[self.role]
        url, now = URL(request.url), datetime.now(UTC)
        # The manager reads the type without its parameters, and takes none for this one.
        content_type = request.headers.get("Content-Type", "application/octet-stream")
        headers, _ = generate_signature(
            method=request.method,
            version=_API_VERSION,
            endpoint=url,
            date=now,
            rel_url=request.path_url,
            content_type=content_type.partition(";")[0],
            access_key=access_key,
            secret_key=secret_key,
            hash_type="sha256",
        )
        request.headers.update({
            "Date": now.isoformat(),
            "X-BackendAI-Version": _API_VERSION,
            **headers,
        })
        return request


@attrs.frozen
class Answer:
    status: int
    body: Any

    @property
    def message(self) -> str:
        return str(self.body["msg"])


def ask(role: str | None, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
    """What the manager answers to a user; to nobody in particular where the role is None."""
    return ask_manager(role, method, f"/kvcache{path}", body)


def ask_manager(
    role: str | None, method: str, path: str, body: Mapping[str, Any] | None = None
) -> Answer:
    """The same at a path of the manager's own; without a body where it answers none."""
    auth = None if role is None else Signed(role)
    url = f"{settings.manager_url()}{path}"
    response = requests.request(method, url, json=body, auth=auth, timeout=30)
    return Answer(response.status_code, response.json() if response.content else None)
