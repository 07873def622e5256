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

MODELOPT_FILE = "hf_quant_config.json"


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


def is_model(directory: Path) -> bool:
    """Whether a directory describes a model."""
    return any(os.path.lexists(directory / name) for name in CONFIG_FILES)


def find_config(directory: Path) -> Path:
    """The configuration file of a model's directory.

    Raises:
        ModelError: there is none.
    """
    for name in CONFIG_FILES:
        if os.path.lexists(directory / name):
            return directory / name
    raise ModelError(f"the model folder has neither {' nor '.join(CONFIG_FILES)}")


def read_config(root: Path, path: Path) -> Mapping[str, Any]:
    """A model's configuration, with what ModelOpt writes beside it.

    As vLLM reads it (transformers_utils/config.py): checkpoints of older ModelOpt state their
    quantization, and that of the cache, in a file of its own.

    Args:
        root: the mounted folder that the files must lie in, links followed.
        path: the configuration.

    Raises:
        ModelError: a file cannot be read or holds no JSON object.
    """
    config = read_json(root, path)
    beside = path.with_name(MODELOPT_FILE)
    if config.get("quantization_config") is not None or not os.path.lexists(beside):
        return config
    return {
        **config,
        "quantization_config": {"quant_method": "modelopt", **read_json(root, beside)},
    }


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
    in_its_place = config.name in CONFIG_FILES
    content = read_config(root, config) if in_its_place else read_json(root, config)
    files = list_model(root, config.parent) if in_its_place else None
    return ModelSource(
        name=path.resolve().name,
        config=content,
        file=config.name,
        origin=str(path),
        weights=weigh(files) if files else None,
        files=files if files and files.weights else None,
    )
