"""The model that a person means: a directory, a configuration file, or a name of the catalog."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ..errors import ModelError
from .catalog import find_in_catalog
from .config import read_json
from .files import ModelFiles, list_model
from .weights import Weights, weigh

#: Where a model's directory says what it is, in the order in which engines look.
CONFIG_FILES = ("config.json", "params.json")


@attrs.frozen
class ModelSource:
    """A model's configuration, and where it comes from."""

    name: str
    config: Mapping[str, Any]
    file: str
    """The configuration file's name, for messages."""
    origin: str
    """Where the figures come from: a path or an address."""
    weights: Weights | None = None
    """None: there are no weight files to look at."""
    files: ModelFiles | None = None


def find_config(directory: Path) -> Path:
    """The configuration file of a model's directory.

    Raises:
        ModelError: there is none.
    """
    for name in CONFIG_FILES:
        if os.path.lexists(directory / name):
            return directory / name
    raise ModelError(f"the model folder has neither {' nor '.join(CONFIG_FILES)}")


def open_model(argument: str) -> ModelSource:
    """Reads what a command line names.

    Args:
        argument: a directory, a configuration file, or a name of the catalog.

    Raises:
        ModelError: it is none of them, or cannot be read.
    """
    path = Path(argument)
    if not argument or not os.path.lexists(path):
        known = find_in_catalog(argument)
        return ModelSource(known.name, known.config, f"{known.name} in the catalog", known.source)
    # Who gives a path on a command line may read all that it links to.
    root = Path("/")
    config = find_config(path) if path.is_dir() else path
    content = read_json(root, config)
    files = list_model(root, config.parent) if config.name in CONFIG_FILES else None
    return ModelSource(
        name=path.resolve().name,
        config=content,
        file=config.name,
        origin=str(path),
        weights=weigh(files) if files else None,
        files=files if files and files.weights else None,
    )
