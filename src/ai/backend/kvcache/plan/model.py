"""Which model a session runs, and what that means for its KV cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import attrs

from ..errors import DeclinedError, ModelError, StartCommandError
from ..model.files import WEIGHT_SUFFIXES, list_model
from ..model.fingerprint import fingerprint
from ..model.geometry import Geometry, read_geometry
from ..model.source import find_config, read_config
from ..model.weights import Weights, weigh
from ..model.widths import Widths, read_widths
from .session import Located, Session
from .start import EngineStart


@attrs.frozen
class Model:
    """A model as far as KV cache is concerned."""

    geometry: Geometry
    weights: Weights
    fingerprint: str
    config_name: str
    """The file that describes it."""
    path: PurePosixPath
    """Its directory in the container."""
    widths: Widths = attrs.field(factory=Widths)


def _locate_model(session: Session, start: EngineStart) -> tuple[PurePosixPath, Located]:
    """(the model's directory in the container, where it lies on this host)."""
    if start.arguments.model is not None:
        base = session.service.model_path if session.service else PurePosixPath("/home/work")
        inside = base / start.arguments.model
    elif session.service is not None:
        inside = session.service.model_path
    else:
        models = [m for m in session.mounts if m.is_model]
        if len(models) != 1:
            raise DeclinedError(
                "the session has no model folder"
                if not models
                else "the session has several model folders and no start command that names one"
            )
        inside = models[0].container_path
    located = session.locate(inside)
    if located is None or not located.path.is_dir():
        raise DeclinedError(
            f"the model {str(inside)!r} is not in a folder mounted into the session"
        )
    return inside, located


def _overridden(config: Mapping[str, Any], overrides: str | None) -> Mapping[str, Any]:
    """The configuration as vLLM changes it before it builds the model."""
    if overrides is None:
        return config
    try:
        changes = json.loads(overrides)
    except (ValueError, RecursionError) as e:
        raise StartCommandError(
            f"the overrides of the model's configuration ({overrides[:40]}) are not valid JSON: {e}"
        ) from e
    if not isinstance(changes, dict):
        raise StartCommandError(
            f"the overrides of the model's configuration ({overrides[:40]}) are no JSON object"
        )
    merged = dict(config)
    for name, value in changes.items():
        old = config.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = {**old, **value}
        merged[name] = value
    return merged


def read_model(session: Session, start: EngineStart) -> Model:
    """Reads the model through this host's path of its folder.

    Raises:
        DeclinedError: the session has no model folder.
        ModelError: the model is not readable or not of a kind that is covered.
    """
    inside, located = _locate_model(session, start)
    files = list_model(located.root, located.path)
    weights = weigh(files)
    if weights is None:
        # Without them nothing tells one fine-tune of a model from another.
        raise ModelError(
            "the model folder has no weight files "
            f"({', '.join('*' + s for s in WEIGHT_SUFFIXES)}) and no index that states their size"
        )
    config = find_config(located.path)
    described = _overridden(read_config(located.root, config), start.arguments.hf_overrides)
    geometry = read_geometry(
        described,
        file=config.name,
        dtype=start.arguments.dtype,
        kv_cache_dtype=start.arguments.kv_cache_dtype,
    )
    widths = read_widths(described, config.name)
    return Model(geometry, weights, fingerprint(files), config.name, inside, widths)
