"""Which namespace a session uses: everything that a cached block's meaning depends on."""

from __future__ import annotations

from ..engine.adapter import EngineAdapter
from ..engine.versions import Versions
from ..errors import DeclinedError
from ..folder.namespace import Namespace, namespace_of
from ..model.parallel import Parallel
from ..policy.settings import Settings, Sharing
from .model import Model
from .session import Image, Session
from .start import EngineStart

#: Image labels that say which engine is inside.
ENGINE_VERSION_LABEL = "ai.backend.kvcache.engine-version"
LMCACHE_VERSION_LABEL = "ai.backend.kvcache.lmcache-version"


def versions_of(image: Image) -> Versions:
    """The engine's versions as the image's labels say them, else as they were found in it."""
    return Versions(
        vllm=image.labels.get(ENGINE_VERSION_LABEL, image.found.vllm),
        lmcache=image.labels.get(LMCACHE_VERSION_LABEL, image.found.lmcache),
    )


def _versions(session: Session) -> dict[str, str]:
    """What wrote the blocks. An image that does not say is its own version."""
    versions = versions_of(session.image)
    if versions.vllm is None or versions.lmcache is None:
        return {"image": session.image.name}
    return {"engine": versions.vllm, "lmcache": versions.lmcache}


def _sharing(session: Session, sharing: Sharing) -> dict[str, str | None]:
    """Whom the blocks are for.

    Raises:
        DeclinedError: it is not known whose session this is.
    """
    owners = {
        Sharing.FOLDER: None,
        Sharing.PROJECT: session.project_id,
        Sharing.USER: session.user_id,
    }
    owner = owners[sharing]
    if owner is None and sharing is not Sharing.FOLDER:
        raise DeclinedError(
            f"the setting sharing = {sharing} needs to know the session's {sharing}, and this "
            "agent does not say it"
        )
    return {"scope": str(sharing), "owner": owner}


def session_namespace(
    session: Session,
    settings: Settings,
    start: EngineStart,
    model: Model,
    adapter: EngineAdapter,
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
        "engine": "vllm",
        "versions": _versions(session),
        "sharing": _sharing(session, settings.sharing),
        "storage_format": adapter.storage_format,
        "chunk_tokens": adapter.chunk_tokens,
        "hash_algorithm": adapter.hash_algorithm,
        "user_settings": {
            name: session.environ[name] for name in adapter.key_variables if name in session.environ
        },
    })
