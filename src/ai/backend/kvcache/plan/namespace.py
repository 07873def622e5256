"""Which namespace a session uses: everything that a cached block's meaning depends on."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ..engine.adapter import EngineAdapter
from ..engine.command import Program
from ..engine.options import TABLES, Choice, Effect, described, option_table
from ..engine.versions import ENGINE_LABEL, LMCACHE_LABEL, Versions
from ..errors import DeclinedError
from ..folder.namespace import Namespace, namespace_of
from ..model.dtypes import DTYPE_BYTES
from ..model.geometry import Geometry
from ..model.parallel import Parallel
from ..policy.settings import Settings
from .model import Model
from .scope import owner_of
from .session import Image, Session
from .start import EngineStart

#: The package whose version the first of them says.
_ENGINE_PACKAGES: Mapping[Program, str] = {
    Program.VLLM: "vllm",
    Program.SGLANG: "sglang",
    Program.DYNAMO: "vllm",
}


def says_versions(image: Image) -> bool:
    """Whether the image's labels say all that its files could."""
    return {ENGINE_LABEL, LMCACHE_LABEL} <= image.labels.keys()


def versions_of(image: Image, program: Program) -> Versions:
    """The versions as the image's labels say them, else as they were found in it."""
    said = {
        package: image.labels[label]
        for package, label in (
            (_ENGINE_PACKAGES[program], ENGINE_LABEL),
            ("lmcache", LMCACHE_LABEL),
        )
        if label in image.labels
    }
    return attrs.evolve(image.found, packages={**image.found.packages, **said})


def _versions(session: Session, adapter: EngineAdapter, versions: Versions) -> dict[str, str]:
    """What wrote the blocks. An image that does not say is its own version."""
    known = {package: versions.packages.get(package) for package in adapter.packages}
    if None in known.values():
        return {"image": session.image.name}
    return {package: str(version) for package, version in known.items()}


#: Types of the cache that have one form, whatever the engine's backends: no scales lie beside them.
_PLAIN_TYPES = frozenset({*DTYPE_BYTES, "fp8", "fp8_e4m3", "fp8_e5m2", "int8"})


def _made_on(session: Session) -> dict[str, str | None]:
    """What an engine chooses kernels and layouts by: the GPU, and the packages that it finds."""
    gpu = None if session.gpus is None else session.gpus.model
    return {"gpu": gpu, "image": session.image.name}


def _depends_on_engine(adapter: EngineAdapter, geometry: Geometry) -> bool:
    """Whether a file's form follows from the GPU, from kernels and from layouts.

    In 8 bits and less, each backend for latent attention has a form of its own: to some "fp8" is
    ``fp8_ds_mla``, whose tokens have 656 bytes and not 576 (vLLM, v1/attention/backends/mla).
    """
    return (
        adapter.engine_bytes
        or geometry.dtype not in _PLAIN_TYPES
        or (geometry.is_latent and geometry.dtype not in DTYPE_BYTES)
    )


def _choices(
    environ: Mapping[str, str], start: EngineStart, adapter: EngineAdapter
) -> tuple[Choice, ...]:
    """What was given in arguments and variables, as far as it has an effect on blocks.

    Raises:
        DeclinedError: no blocks may be kept with it.
    """
    choices = list(start.arguments.choices)
    for package in adapter.packages:
        if package in TABLES:
            choices += option_table(package).chosen_in(environ)
    for choice in choices:
        if choice.effect is Effect.REFUSED:
            raise DeclinedError(f"{choice.name}: {choice.because}; remove it to have KV cache")
    return tuple(choices)


def _refuse_unknown_length(start: EngineStart) -> None:
    """
    Raises:
        DeclinedError: the engine is to choose the longest length, by which the model computes.
    """
    if start.arguments.fits_length:
        raise DeclinedError(
            "the engine is to choose the longest length of a context by itself, and this model "
            "computes otherwise with another one, so it is not known what its blocks mean; give "
            "--max-model-len a number"
        )


def session_namespace(
    session: Session,
    settings: Settings,
    start: EngineStart,
    model: Model,
    adapter: EngineAdapter,
    versions: Versions,
    parallel: Parallel,
) -> Namespace:
    """The namespace in which a session's blocks mean what they say.

    Raises:
        DeclinedError: it is not known whom the blocks are for, or what they mean.
    """
    geometry = model.geometry
    counting = {Effect.MEANING}
    if by_engine := _depends_on_engine(adapter, geometry):
        counting.add(Effect.BYTES)
    if model.watches_length:
        _refuse_unknown_length(start)
        counting.add(Effect.SOME_MODELS)
    choices = _choices(session.environ, start, adapter)
    return namespace_of({
        "weights": model.fingerprint,
        "layers": [
            [str(g.cache.kind), g.count, g.cache.heads, g.cache.head_bytes, g.cache.window]
            for g in geometry.groups
        ],
        "compute_dtype": geometry.compute_dtype,
        "kv_dtype": geometry.dtype,
        "choices": described(c for c in choices if c.effect in counting),
        "tensor_parallel": parallel.tensor,
        "pipeline_parallel": parallel.pipeline,
        "decode_context_parallel": parallel.decode_context,
        "engine": str(start.program),
        "versions": _versions(session, adapter, versions),
        "sharing": {
            "scope": str(settings.sharing),
            "owner": owner_of(session, settings.sharing),
        },
        "storage_format": adapter.storage_format(versions),
        "chunk_tokens": adapter.chunk_tokens,
        "hash_algorithm": adapter.hash_algorithm,
        "made_on": _made_on(session) if by_engine else None,
    })
