"""Which model a session runs, and what that means for its KV cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import attrs
import xxhash

from ..errors import DeclinedError, ModelError, StartCommandError
from ..model.files import WEIGHT_SUFFIXES, list_model
from ..model.fingerprint import fingerprint
from ..model.geometry import Geometry, read_geometry
from ..model.source import ModelSource, find_config, read_config
from ..model.weights import Weights, estimate_weights, weigh
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


def _model_directory(session: Session, start: EngineStart) -> PurePosixPath:
    """The model's directory in the container."""
    if start.arguments.model is not None:
        base = session.service.model_path if session.service else PurePosixPath("/home/work")
        return base / start.arguments.model
    if session.service is not None:
        return session.service.model_path
    models = [m for m in session.mounts if m.is_model]
    if len(models) != 1:
        raise DeclinedError(
            "the session has no model folder"
            if not models
            else "the session has several model folders and no start command that names one"
        )
    return models[0].container_path


def _locate_model(session: Session, inside: PurePosixPath) -> Located:
    """Where the model's directory lies on this host."""
    located = session.locate(inside)
    if located is None or not located.path.is_dir():
        raise DeclinedError(
            f"the model {str(inside)!r} is not in a folder mounted into the session"
        )
    return located


def _known_model(session: Session, inside: PurePosixPath) -> ModelSource | None:
    """What is known of a model whose files are not on this host. None: its files are read."""
    mount = session.mount_at(inside)
    return mount.known_model if mount and mount.container_path == inside else None


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


def _described(
    config: Mapping[str, Any],
    weights: Weights,
    fingerprint: str,
    config_name: str,
    path: PurePosixPath,
    start: EngineStart,
) -> Model:
    """The model as the engine is told to run it."""
    changed = _overridden(config, start.arguments.hf_overrides)
    geometry = read_geometry(
        changed,
        file=config_name,
        dtype=start.arguments.dtype,
        kv_cache_dtype=start.arguments.kv_cache_dtype,
    )
    return Model(
        geometry, weights, fingerprint, config_name, path, read_widths(changed, config_name)
    )


def read_model(session: Session, start: EngineStart) -> Model:
    """Reads the model through this host's path of its folder.

    Raises:
        DeclinedError: the session has no model folder.
        ModelError: the model is not readable or not of a kind that is covered.
    """
    inside = _model_directory(session, start)
    if (known := _known_model(session, inside)) is not None:
        weights = known.weights or estimate_weights(known.config, known.file)
        # No session has such a fingerprint; two models that are known as the same have the same.
        written = json.dumps([known.name, known.config], sort_keys=True, default=str)
        stand_in = f"unknown {xxhash.xxh3_128_hexdigest(written.encode())}"
        return _described(known.config, weights, stand_in, known.file, inside, start)
    located = _locate_model(session, inside)
    files = list_model(located.root, located.path)
    found = weigh(files)
    if found is None:
        # Without them nothing tells one fine-tune of a model from another.
        raise ModelError(
            "the model folder has no weight files "
            f"({', '.join('*' + s for s in WEIGHT_SUFFIXES)}) and no index that states their size"
        )
    config = find_config(located.path)
    content = read_config(located.root, config)
    return _described(content, found, fingerprint(files), config.name, inside, start)
