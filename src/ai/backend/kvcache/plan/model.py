"""Which model a session runs, and what that means for its KV cache."""

from __future__ import annotations

from pathlib import PurePosixPath

import attrs

from ..errors import DeclinedError, ModelError
from ..model.config import read_json
from ..model.files import WEIGHT_SUFFIXES, list_model
from ..model.fingerprint import fingerprint
from ..model.geometry import Geometry, read_geometry
from ..model.source import find_config
from ..model.weights import Weights, weigh
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


def _locate_model(session: Session, start: EngineStart) -> Located:
    """Where the model's directory lies on this host."""
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
    return located


def read_model(session: Session, start: EngineStart) -> Model:
    """Reads the model through this host's path of its folder.

    Raises:
        DeclinedError: the session has no model folder.
        ModelError: the model is not readable or not of a kind that is covered.
    """
    located = _locate_model(session, start)
    files = list_model(located.root, located.path)
    weights = weigh(files) if files.weights else None
    if weights is None:
        # Without them nothing tells one fine-tune of a model from another.
        raise ModelError(
            f"the model folder has no weight files ({', '.join('*' + s for s in WEIGHT_SUFFIXES)})"
        )
    config = find_config(located.path)
    geometry = read_geometry(
        read_json(located.root, config),
        file=config.name,
        dtype=start.arguments.dtype,
        kv_cache_dtype=start.arguments.kv_cache_dtype,
    )
    return Model(geometry, weights, fingerprint(files), config.name)
