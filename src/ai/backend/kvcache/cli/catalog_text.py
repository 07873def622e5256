"""The models that are known by name, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from packaging.version import Version

from ..engine.versions import NEWEST
from ..model.catalog import catalog
from ..model.geometry import read_geometry
from ..model.weights import count_parameters
from .table import table


def _entries() -> Iterator[dict[str, Any]]:
    for model in catalog().values():
        geometry = read_geometry(model.config, vllm=Version(NEWEST["vllm"]))
        yield {
            "name": model.name,
            "parameters": count_parameters(model.config).total,
            "kv_bytes_per_token": geometry.bytes_per_token,
            "max_model_len": geometry.max_model_len,
            "source": model.source,
        }


def catalog_json() -> str:
    """A list of objects."""
    return json.dumps(list(_entries()), indent=2)


def catalog_text() -> str:
    """A table."""
    rows = [["MODEL", "PARAMETERS", "BYTES/TOKEN", "MAX TOKENS", "SOURCE"]]
    rows += [
        [
            entry["name"],
            f"{entry['parameters'] / 1e9:,.1f} B",
            f"{entry['kv_bytes_per_token']:,}",
            f"{entry['max_model_len']:,}",
            entry["source"],
        ]
        for entry in _entries()
    ]
    return table(rows, text=(0, 4))
