"""What Transformers' configuration classes take where a file leaves a field out.

The question: `fields`, the names that matter. The answer: `defaults`, model type → field → value,
of all text models, and `text_types`, the model type of a part for text that does not state its own,
by the type of the whole. Needs Transformers and nothing else.
"""

# Linters run where none of the engine's packages is installed.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from answering import answer_question


def _defaults(configuration: type, names: frozenset[str]) -> dict[str, Any]:
    return {
        field.name: field.default
        for field in dataclasses.fields(configuration)
        if field.name in names and isinstance(field.default, int)
    }


def _text_type(configuration: type) -> str | None:
    """None: it has no part for text, or cannot be made from nothing."""
    try:
        whole = configuration()
        part = whole.get_text_config(decoder=True)
    except Exception:
        return None
    return None if part is whole else str(part.model_type)


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    names = frozenset(question["fields"])
    classes = {name: CONFIG_MAPPING[name] for name in CONFIG_MAPPING_NAMES}
    types = {name: _text_type(configuration) for name, configuration in classes.items()}
    return {
        "defaults": {name: _defaults(classes[name], names) for name in classes},
        "text_types": {name: text for name, text in types.items() if text is not None},
    }


if __name__ == "__main__":
    answer_question(answer)
