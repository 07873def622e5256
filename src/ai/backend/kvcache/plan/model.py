"""Which model a session runs, and what that means for its KV cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import attrs
import xxhash
from packaging.version import Version

from ..errors import DeclinedError, ModelError
from ..model.files import WEIGHT_SUFFIXES, list_model
from ..model.fingerprint import fingerprint
from ..model.geometry import Geometry, read_geometry
from ..model.overrides import override
from ..model.source import ModelSource, find_config, read_config
from ..model.watched import watches_length
from ..model.weights import Weights, estimate_weights, weigh
from ..model.widths import Widths, read_widths
from .session import Located, Session
from .start import EngineStart

#: vLLM, envs.py and transformers_utils/model_arch_config_convertor.py, get_head_size.
_NO_LATENT = "VLLM_MLA_DISABLE"


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
    watches_length: bool = False
    """Whether its layers compute otherwise with another longest length of a context."""


def _model_directory(session: Session, start: EngineStart) -> PurePosixPath:
    """The model's directory in the container."""
    if start.arguments.model is not None:
        return start.directory / start.arguments.model
    if session.service is not None:
        return session.service.model_path
    raise DeclinedError("the session is no model service")


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


def _refuse_variables(session: Session, geometry: Geometry) -> None:
    """A variable changes what vLLM keeps for latent attention.

    Raises:
        DeclinedError: the session has it.
    """
    value = session.environ.get(_NO_LATENT, "0").strip().lower()
    if geometry.is_latent and value not in ("", "0", "false"):
        raise DeclinedError(
            f"{_NO_LATENT} makes vLLM keep keys and values of every head for a model with latent "
            "attention, which is not covered; remove the variable"
        )


def _described(
    session: Session,
    config: Mapping[str, Any],
    weights: Weights,
    fingerprint: str,
    config_name: str,
    path: PurePosixPath,
    start: EngineStart,
    vllm: Version | None,
) -> Model:
    """The model as the engine is told to run it."""
    changed = override(config, start.arguments.hf_overrides)
    geometry = read_geometry(
        changed,
        file=config_name,
        dtype=start.arguments.dtype,
        kv_cache_dtype=start.arguments.kv_cache_dtype,
        vllm=vllm,
    )
    _refuse_variables(session, geometry)
    return Model(
        geometry,
        weights,
        fingerprint,
        config_name,
        path,
        read_widths(changed, config_name),
        watches_length(changed),
    )


def read_model(session: Session, start: EngineStart, vllm: Version | None) -> Model:
    """Reads the model through this host's path of its folder.

    Args:
        session: which one.
        start: how its engine is started.
        vllm: the release in its image; None where it is not known, or another engine runs.

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
        return _described(session, known.config, weights, stand_in, known.file, inside, start, vllm)
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
    marks = fingerprint(files)
    return _described(session, content, found, marks, config.name, inside, start, vllm)
