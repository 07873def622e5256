"""Which namespace a session uses: everything that a cached block's meaning depends on."""

from __future__ import annotations

from ..engine.adapter import EngineAdapter
from ..folder.namespace import Namespace, namespace_of
from ..model.parallel import Parallel
from .model import Model
from .session import Session
from .start import EngineStart

#: Image labels that say which engine is inside.
ENGINE_VERSION_LABEL = "ai.backend.kvcache.engine-version"
LMCACHE_VERSION_LABEL = "ai.backend.kvcache.lmcache-version"


def _versions(session: Session) -> dict[str, str]:
    """What wrote the blocks. An image that does not say is its own version."""
    labels = session.image.labels
    if ENGINE_VERSION_LABEL in labels and LMCACHE_VERSION_LABEL in labels:
        return {
            "engine": labels[ENGINE_VERSION_LABEL],
            "lmcache": labels[LMCACHE_VERSION_LABEL],
        }
    return {"image": session.image.name}


def session_namespace(
    session: Session, start: EngineStart, model: Model, adapter: EngineAdapter, parallel: Parallel
) -> Namespace:
    """The namespace in which a session's blocks mean what they say."""
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
        "engine": "vllm",
        "versions": _versions(session),
        "storage_format": adapter.storage_format,
        "chunk_tokens": adapter.chunk_tokens,
        "hash_algorithm": adapter.hash_algorithm,
        "user_settings": {
            name: session.environ[name] for name in adapter.key_variables if name in session.environ
        },
    })
