"""The routes as an OpenAPI 3.1 document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import __version__
from ..metrics.advice import Weight
from ..metrics.indicators import INDICATORS
from ..policy.describe import DESCRIPTIONS
from ..policy.policy import PROJECTS, RESOURCE_GROUPS
from .plan_routes import MAX_COUNT

type Schema = dict[str, Any]


def _object(properties: Mapping[str, Schema], *, required: Sequence[str] | None = None) -> Schema:
    """An object of these properties and no others; all are required where none are named."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _map(of: Schema) -> Schema:
    return {"type": "object", "additionalProperties": of}


def _said(schema: Schema, meaning: str) -> Schema:
    return {**schema, "description": meaning}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_ID: Schema = {"type": "string", "format": "uuid"}
_BYTES: Schema = {"type": "integer", "minimum": 0}
_BYTES_OR_NULL: Schema = {"type": ["integer", "null"], "minimum": 0}
_COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_COUNT}
_SIZE: Schema = {
    "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "examples": ["80GiB"]}]
}
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 256}
_SHARE: Schema = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "string", "examples": ["0.9"]},
    ]
}

_LEVEL: Schema = {
    "type": "object",
    "properties": {
        description.name: {
            "description": description.meaning,
            **({"enum": list(description.choices)} if description.choices else {}),
        }
        for description in DESCRIPTIONS
    },
    "additionalProperties": False,
}

_POLICY: Schema = {
    "type": "object",
    "description": "What docs/policy.md explains: settings of the site, and below them those of "
    "resource groups by name and of projects by id.",
    "properties": {
        **_LEVEL["properties"],
        RESOURCE_GROUPS: _map(_ref("Level")),
        PROJECTS: {**_map(_ref("Level")), "propertyNames": _ID},
    },
    "additionalProperties": False,
}

_STORED: Schema = _object({
    "version": _said(_TEXT, "A digest of the text that is stored."),
    "policy": _said(
        {"type": "object"},
        "As it is stored, whether it can be used or not; empty where it is no JSON object.",
    ),
    "problem": _said(_TEXT_OR_NULL, "Why it cannot be used. null: it can."),
    "settings": _list(
        _object({
            "name": _TEXT,
            "default": {"type": ["string", "integer", "null"]},
            "meaning": _TEXT,
            "choices": {"type": ["array", "null"], "items": _TEXT},
        })
    ),
})

_SESSION: Schema = _object({
    "id": _ID,
    "name": _TEXT_OR_NULL,
    "status": _TEXT,
    "user": _said(_TEXT, "The owner's e-mail address."),
    "project": _object({"id": _ID, "name": _TEXT}),
    "age_seconds": {"type": ["number", "null"], "minimum": 0},
    "figures": {
        "type": "object",
        "description": "What is not known is not there.",
        "properties": {i.key: {"type": "number", "description": i.meaning} for i in INDICATORS},
        "additionalProperties": False,
    },
    "advice": _said(
        _list(
            _object({
                "key": _TEXT,
                "weight": {"enum": [weight.name.lower() for weight in Weight]},
                "text": _TEXT,
            })
        ),
        "What to think of the figures. The weightiest is said alone.",
    ),
    "plan": {
        "anyOf": [
            {"type": "null"},
            _object({
                "kv_cache": {"type": "boolean"},
                "no_kv_cache_because": _TEXT_OR_NULL,
                "folder": _TEXT_OR_NULL,
                "engine": _TEXT_OR_NULL,
                "folder_cap_bytes": _BYTES_OR_NULL,
                "host_bytes": _BYTES_OR_NULL,
            }),
        ]
    },
})

_ASKED: Schema = _object(
    {
        "model": {
            "description": "A name of the catalog, or what the model's config.json holds.",
            "anyOf": [{**_NAME, "examples": ["qwen3-8b"]}, {"type": "object"}],
        },
        "gpus": {
            "description": "How many; below 1, a share of one.",
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_COUNT},
                {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                {"type": "string", "examples": ["8"]},
            ],
        },
        "gpu_memory": _SIZE,
        "tensor_parallel": _COUNT,
        "pipeline_parallel": _COUNT,
        "decode_context_parallel": _COUNT,
        "gpu_memory_utilization": _SHARE,
        "pin_utilization": {"type": "boolean"},
        "max_model_len": _COUNT,
        "kv_cache_dtype": _NAME,
        "weights": _SIZE,
        "overhead": _SIZE,
        "concurrent_transfers": {"type": "integer", "minimum": 1, "maximum": 64},
        "context": _COUNT,
        "chunk_size": {"type": "integer", "minimum": 1, "maximum": 2**20},
        "lmcache_version": _NAME,
        "vllm_version": _NAME,
    },
    required=("model",),
)

_PLAN: Schema = {
    "type": "object",
    "description": "What `backend.ai kvcache plan --format json` prints.",
    "properties": {
        "kv_cache": {"type": "boolean"},
        "reason": _said(_TEXT_OR_NULL, "Why there is none."),
        "way": _said(_TEXT_OR_NULL, "How the engine keeps KV cache."),
        "refused": _said(_map(_TEXT), "Each way that was not taken, and why not."),
        "namespace": _said({"type": "null"}, "It follows from a start command too."),
        "start_command": _said({"type": "null"}, "None is asked about."),
        **{name: {"type": "object"} for name in ("model", "geometry", "budget", "engine")},
    },
    "required": [
        *("kv_cache", "reason", "way", "refused", "namespace", "start_command"),
        *("model", "geometry", "budget", "engine"),
    ],
}

_PROBLEM: Schema = {
    "type": "object",
    "properties": {
        "type": _TEXT,
        "title": _TEXT,
        "error_code": _TEXT,
        "msg": _said(_TEXT, "What was wrong."),
    },
    "required": ["type", "title"],
}

_PROBLEMS: Mapping[str, str] = {
    "400": "Something in the request cannot be used; `msg` names it.",
    "401": "The request is not signed.",
    "403": "The user may not.",
    "404": "There is no such thing, or the user may not see it.",
    "409": "The stored policy is another or not usable, or the folder is in use.",
    "413": "The body is too large.",
    "503": "A part of the manager that is needed does not answer.",
}


def _operation(summary: str, answer: Schema, *problems: int, body: Schema | None = None) -> Schema:
    """One method of a path; that the request is not signed is among the problems of each."""
    operation: Schema = {
        "summary": summary,
        "responses": {
            "200": {"description": "OK", "content": {"application/json": {"schema": answer}}},
            **{
                code: {"$ref": f"#/components/responses/{code}"}
                for code in sorted({"400", "401", *map(str, problems)})
            },
        },
    }
    if body is not None:
        content = {"application/json": {"schema": body}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


#: Path below /kvcache → method → operation.
PATHS: Mapping[str, Mapping[str, Schema]] = {
    "/policy": {
        "get": _operation("The policy, and all settings. Superadmins.", _ref("Stored"), 403, 503),
        "put": _operation(
            "Another policy in the place of that version. Superadmins.",
            _ref("Stored"),
            403,
            409,
            413,
            503,
            body=_object({"version": {"type": "string", "maxLength": 64}, "policy": _POLICY}),
        ),
        "patch": _operation(
            "Changes to the policy (RFC 7396), whatever its version or of one version only. "
            "Superadmins.",
            _ref("Stored"),
            403,
            409,
            413,
            503,
            body=_object(
                {
                    "version": {"type": ["string", "null"], "minLength": 1, "maxLength": 64},
                    "patch": {"type": "object"},
                },
                required=("patch",),
            ),
        ),
    },
    "/sessions": {
        "get": _operation(
            "Running sessions with a plan or figures: the user's own, and those of others that "
            "they administer.",
            _object({"sessions": _list(_ref("Session"))}),
        ),
    },
    "/sessions/{session_id}/plan": {
        "get": {
            **_operation(
                "The plans of a session's kernels, the main one's first.",
                _object({"kernels": _map({"type": "object"})}),
                404,
            ),
            "parameters": [
                {"name": "session_id", "in": "path", "required": True, "schema": _TEXT},
            ],
        },
    },
    "/folders": {
        "get": _operation(
            "The KV folders of projects, and what lies in them; null where it is not known. "
            "Superadmins.",
            _object({
                "folders": _list(
                    _object({
                        "project": _object({"id": _ID, "name": _TEXT_OR_NULL}),
                        "place": _TEXT,
                        "provisioned": _said(
                            {"type": "boolean"},
                            "Whether nobody but agents reaches it. false: the policy names another "
                            "folder, which users may reach as Backend.AI lets them.",
                        ),
                        "cap_bytes": _BYTES_OR_NULL,
                        "used_bytes": _BYTES_OR_NULL,
                        "files": _BYTES_OR_NULL,
                    })
                )
            }),
            403,
            409,
            503,
        ),
        "post": _operation(
            "Makes the KV folder of a project that nobody but agents reaches, or finds it. The "
            "policy is not changed. Superadmins.",
            _object({
                "place": _said(_TEXT, "As the policy's `folder` names it."),
                "made": _said({"type": "boolean"}, "false: it was there already."),
            }),
            403,
            413,
            503,
            body=_object(
                {
                    "project": _ID,
                    "host": _said(
                        {"type": ["string", "null"], "examples": ["local:volume1"]},
                        "Where it is made. null: the manager's default storage host.",
                    ),
                },
                required=("project",),
            ),
        ),
    },
    "/folders/{host}/{project}": {
        "delete": {
            **_operation(
                "Removes that folder with all that lies in it. 409 while the policy names it, or "
                "a session of the project runs with KV cache. Superadmins.",
                _object({
                    "place": _TEXT,
                    "gone": _said(
                        {"type": "boolean"}, "false: the storage proxy goes on removing it."
                    ),
                }),
                403,
                404,
                409,
                503,
            ),
            "parameters": [
                {"name": "host", "in": "path", "required": True, "schema": _TEXT},
                {"name": "project", "in": "path", "required": True, "schema": _ID},
            ],
        },
    },
    "/projects": {
        "get": _operation(
            "Projects, the mode that applies to their sessions, and what the policy says of each. "
            "Superadmins.",
            _object({
                "projects": _list(
                    _object({
                        "id": _ID,
                        "name": _TEXT,
                        "domain": _TEXT,
                        "mode": {"enum": ["explicit", "auto", "off"]},
                        "said": _ref("Level"),
                    })
                )
            }),
            403,
            409,
            503,
        ),
    },
    "/plan": {
        "post": _operation(
            "What sessions of a model would get.", _ref("Plan"), 413, 503, body=_ASKED
        ),
    },
    "/ui": {
        "get": _operation("Which files are the WebUI's page now.", _object({"version": _TEXT})),
    },
    "/ui/{digest}/{name}": {
        "get": {
            "summary": "One of these files, such as page.js.",
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": _TEXT}
                for name in ("digest", "name")
            ],
            "responses": {
                "200": {
                    "description": "OK",
                    "content": {
                        kind: {"schema": {"type": "string"}}
                        for kind in ("text/javascript", "text/css")
                    },
                },
                **{code: {"$ref": f"#/components/responses/{code}"} for code in ("401", "404")},
            },
        },
    },
    "/openapi.json": {
        "get": _operation("This document.", {"type": "object"}),
    },
}

DOCUMENT: Schema = {
    "openapi": "3.1.0",
    "info": {
        "title": "Backend.AI KV cache",
        "version": __version__,
        "license": {"name": "LGPL-3.0-only", "identifier": "LGPL-3.0-only"},
    },
    "servers": [{"url": "/kvcache"}],
    "security": [{"backendai": []}],
    "paths": PATHS,
    "components": {
        "securitySchemes": {
            "backendai": {
                "type": "apiKey",
                "in": "header",
                "name": "Authorization",
                "description": "Signed as all requests to Backend.AI are; its client does it.",
            }
        },
        "schemas": {
            "Level": _LEVEL,
            "Stored": _STORED,
            "Session": _SESSION,
            "Plan": _PLAN,
            "Problem": _PROBLEM,
        },
        "responses": {
            code: {
                "description": meaning,
                "content": {"application/problem+json": {"schema": _ref("Problem")}},
            }
            for code, meaning in _PROBLEMS.items()
        },
    },
}
