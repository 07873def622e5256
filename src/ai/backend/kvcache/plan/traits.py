"""What a session has that decides whether versions work together."""

from __future__ import annotations

from ..engine.traits import Trait, Traits
from ..model.geometry import Geometry
from .model import Model
from .session import Session
from .start import EngineStart


def geometry_traits(geometry: Geometry) -> Traits:
    """The traits of a model."""
    found = {Trait.LATENT: geometry.is_latent}
    return frozenset(trait for trait, is_there in found.items() if is_there)


def traits_of(session: Session, start: EngineStart, model: Model) -> Traits:
    """The traits of a session."""
    found = {
        Trait.GPUS: session.gpus is not None,
        Trait.CONTEXT_PARALLEL: start.arguments.decode_context_parallel > 1,
        Trait.SLEEP_MODE: start.arguments.sleep_mode,
    }
    return geometry_traits(model.geometry) | {trait for trait, has in found.items() if has}
