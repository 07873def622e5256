"""Models that are known by name, so that a plan can be made before anything is downloaded.

``published/`` has one file for each: the fields of the published ``config.json`` that decide what
its KV cache and weights take, and where that file is published.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import attrs

from ..errors import ModelError


@attrs.frozen
class CatalogModel:
    """One model of the catalog."""

    name: str
    source: str
    """Address of the published config.json."""
    config: Mapping[str, Any]

    @property
    def repository(self) -> str:
        """Its name on Hugging Face, such as ``Qwen/Qwen3-32B``."""
        return self.source.removeprefix("https://huggingface.co/").partition("/blob/")[0]


@cache
def catalog() -> Mapping[str, CatalogModel]:
    """All models of the catalog by name, in the order of their names."""
    models = {}
    for entry in sorted(files(__package__).joinpath("published").iterdir(), key=lambda e: e.name):
        name, dot, suffix = entry.name.rpartition(".")
        if dot and suffix == "json":
            content = json.loads(entry.read_text("utf-8"))
            models[name] = CatalogModel(name, content["source"], content["config"])
    return models


def find_in_catalog(name: str) -> CatalogModel:
    """The model of that name, or of that name on Hugging Face.

    Raises:
        ModelError: there is none; the message names those that are spelled alike.
    """
    models = catalog()
    wanted = name.lower()
    for model in models.values():
        if wanted in (model.name, model.repository.lower()):
            return model
    alike = difflib.get_close_matches(wanted.rpartition("/")[2], models, n=3)
    hint = f"; did you mean {' or '.join(alike)}?" if alike else ""
    raise ModelError(
        f"{name!r} is no directory, no file and no model of the catalog{hint} "
        "(--list-models shows the catalog)"
    )
