"""Which namespace a session uses: everything that a cached block's meaning depends on."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ..engine.adapter import EngineAdapter
from ..engine.command import Program
from ..engine.versions import ENGINE_LABEL, LMCACHE_LABEL, Versions
from ..folder.namespace import Namespace, namespace_of
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
        DeclinedError: it is not known whom the blocks are for.
    """
    geometry = model.geometry
    return namespace_of({
        "weights": model.fingerprint,
        "layers": [
            [str(g.cache.kind), g.count, g.cache.heads, g.cache.head_bytes, g.cache.window]
            for g in geometry.groups
        ],
        "compute_dtype": geometry.compute_dtype,
        "kv_dtype": geometry.dtype,
        "value_changes": dict(start.arguments.value_changes),
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
        "user_settings": {
            name: session.environ[name] for name in adapter.key_variables if name in session.environ
        },
    })
