"""Which model a session runs, and what that means for its KV cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import attrs
from packaging.version import Version

from ..errors import DeclinedError, ModelError, StartCommandError
from ..model.files import WEIGHT_SUFFIXES, list_model
from ..model.fingerprint import fingerprint
from ..model.geometry import Geometry, read_geometry
from ..model.overrides import override
from ..model.source import find_config, read_config
from ..model.weights import Weights, weigh
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


def _changes(overrides: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    """What the arguments change of the model's configuration.

    Raises:
        StartCommandError: the overrides are no JSON object.
    """
    if not isinstance(overrides, str):
        return overrides or {}
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
    return changes


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
    described = override(read_config(located.root, config), _changes(start.arguments.hf_overrides))
    geometry = read_geometry(
        described,
        file=config.name,
        dtype=start.arguments.dtype,
        kv_cache_dtype=start.arguments.kv_cache_dtype,
        vllm=vllm,
    )
    _refuse_variables(session, geometry)
    widths = read_widths(described, config.name)
    return Model(geometry, weights, fingerprint(files), config.name, inside, widths)
