"""The shape of a model's KV cache: what a token of context costs, layer by layer."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs
from packaging.version import Version

from ..errors import ModelError
from . import pattern
from .attention import attention_cache, is_latent, latent_caches, of_layer, query_heads
from .certainty import refuse_uncertain, refuse_unknown_defaults
from .dtypes import KV_DTYPES, LATENT_ONLY, compute_dtype, kv_dtype
from .families import KNOWN, LOOPS, REFUSED
from .fields import Fields
from .layers import LayerCache, LayerKind
from .length import longest_contexts
from .parallel import GpuShare, Parallel, divide_layers
from .recurrent import recurrent_cache
from .text import is_multimodal, layer_count, text_fields

#: vLLM's assumption for a model that states no length.
_UNSTATED_LENGTH = 2048


@attrs.frozen
class LayerGroup:
    """Layers that keep the same. Bytes are those of all of them, counted once."""

    cache: LayerCache
    count: int

    @property
    def bytes_per_token(self) -> int:
        return self.count * self.cache.bytes_per_token

    @property
    def constant_bytes(self) -> int:
        return self.count * self.cache.constant_bytes


@attrs.frozen
class Geometry:
    """The KV cache of one model, before it is divided over GPUs."""

    model_type: str
    layers: tuple[tuple[LayerCache, ...], ...]
    """Of each layer, in the model's order, what it keeps."""
    query_heads: int | None
    """None: the model has no attention."""
    compute_dtype: str
    """What the layers compute in."""
    dtype: str
    """What keys and values are stored as."""
    max_model_len: int
    """Tokens: the longest context that the model's own configuration allows. Where vLLM's versions
    differ and the version is not known, the longest that one of them allows: a plan for a longer
    context than the engine takes wastes memory, and one for a shorter context keeps the engine from
    starting."""
    is_multimodal: bool = False
    """Whether the model takes images, video or sound besides text."""
    warnings: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[LayerGroup, ...]:
        """The layers by what they keep, in the order in which they first appear."""
        counts = Counter(cache for layer in self.layers for cache in layer)
        return tuple(LayerGroup(cache, count) for cache, count in counts.items())

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one more token above all windows: the layers that grow, each byte once."""
        return sum(g.bytes_per_token for g in self.groups if g.cache.grows)

    @property
    def bytes_per_token_no_hybrid(self) -> int:
        """The same where layers with a window keep every token too."""
        return sum(g.bytes_per_token for g in self.groups)

    @property
    def constant_bytes_per_sequence(self) -> int:
        """Bytes of a sequence that do not grow: full windows and recurrent states."""
        return sum(g.constant_bytes for g in self.groups)

    @property
    def has_windows(self) -> bool:
        """Whether some layers look back at the last tokens only."""
        return any(g.cache.window is not None for g in self.groups)

    @property
    def has_states(self) -> bool:
        """Whether some layers are recurrent."""
        return any(g.cache.state is not None for g in self.groups)

    @property
    def is_latent(self) -> bool:
        """Whether layers keep one compressed vector of a token for all heads (MLA)."""
        return any(g.cache.kind is LayerKind.LATENT for g in self.groups)

    @property
    def has_indexer(self) -> bool:
        """Whether sparse attention keeps keys of its own, by which it chooses tokens (DSA)."""
        return any(g.cache.kind is LayerKind.INDEXER for g in self.groups)

    @property
    def has_repeated_layers(self) -> bool:
        """Whether layers run several times and keep a cache for each time."""
        return any(
            sum(cache.kind is not LayerKind.INDEXER and cache.state is None for cache in layer) > 1
            for layer in self.layers
        )

    @property
    def has_unequal_heads(self) -> bool:
        """Whether some attention layers have another number of KV heads, or larger ones, than
        others. Keys of an indexer do not count: they are a cache of their own."""
        shapes = {
            (g.cache.heads, g.cache.head_bytes)
            for g in self.groups
            if g.cache.bytes_per_token and g.cache.kind is not LayerKind.INDEXER
        }
        return len(shapes) > 1

    def per_gpu(self, parallel: Parallel) -> GpuShare:
        """What one GPU holds.

        Raises:
            ModelError: the model cannot be divided so.
        """
        return divide_layers(self.layers, self.query_heads, parallel)


#: What layers keep that keep nothing of text.
_WITHOUT_TEXT: Mapping[str, tuple[LayerCache, ...]] = {
    pattern.NOTHING: (),
    pattern.CROSS: (LayerCache(LayerKind.CROSS),),
    pattern.SHARED: (LayerCache(LayerKind.SHARED),),
}


_RECURRENT = (pattern.LINEAR, pattern.MAMBA, pattern.CONVOLUTION)


def _caches(
    fields: Fields, model_type: str, computed: str, dtype: str, vllm: Version | None
) -> tuple[tuple[LayerCache, ...], ...]:
    layers = layer_count(fields)
    kinds = pattern.layer_pattern(fields, model_type, layers)
    latent = latent_caches(fields, dtype, layers, vllm) if is_latent(fields) else None

    def of_kind(layer: int, kind: str) -> tuple[LayerCache, ...]:
        if kind in _WITHOUT_TEXT:
            return _WITHOUT_TEXT[kind]
        if kind in _RECURRENT:
            return (recurrent_cache(fields, model_type, computed),)
        if kind == pattern.FULL and latent:
            return latent[layer]
        seen = pattern.FULL if kind == pattern.HYBRID else kind
        cache = attention_cache(of_layer(fields, layer), seen, KV_DTYPES[dtype])
        if kind == pattern.HYBRID:
            return cache, recurrent_cache(fields, model_type, computed)
        return cache, *_loops(fields, model_type, cache)

    return tuple(of_kind(layer, kind) for layer, kind in enumerate(kinds))


def _loops(fields: Fields, model_type: str, first: LayerCache) -> tuple[LayerCache, ...]:
    """What a layer keeps besides, where it runs several times."""
    if model_type not in LOOPS:
        return ()
    times, window = LOOPS[model_type]
    later = first
    if window is not None:
        later = attrs.evolve(first, kind=LayerKind.SLIDING, window=fields.required(window))
    return (later,) * (fields.required(times) - 1)


def _without_long_windows(
    layers: tuple[tuple[LayerCache, ...], ...], max_model_len: int
) -> tuple[tuple[LayerCache, ...], ...]:
    """A window as long as the longest context leaves nothing behind: the layer sees everything."""
    return tuple(
        tuple(
            attrs.evolve(cache, kind=LayerKind.FULL, window=None)
            if cache.window is not None and cache.window >= max_model_len
            else cache
            for cache in layer
        )
        for layer in layers
    )


def _longest(fields: Fields, vllm: Version | None, warnings: list[str]) -> int:
    """The longest context, and what there is to say of it."""
    lengths = longest_contexts(fields, vllm)
    if not lengths:
        warnings.append(
            f"{fields.file} states no longest context; {_UNSTATED_LENGTH} tokens are assumed, as "
            "vLLM does"
        )
        return _UNSTATED_LENGTH
    if len(lengths) > 1:
        warnings.append(
            f"the longest context is {lengths[0]} or {lengths[-1]} tokens, depending on the "
            "version of vLLM, which is not known; the longer one is counted. --max-model-len "
            "decides it"
        )
    return lengths[-1]


def _assumption(model_type: str, geometry: Geometry) -> str:
    parts = ", ".join(f"{g.count} {g.cache.kind}" for g in geometry.groups) or "no layers"
    return (
        f"model_type {reprlib.repr(model_type)} is not known; its fields were read as those of "
        f"known families: {parts}, {geometry.bytes_per_token} bytes a token"
    )


def read_geometry(
    config: Mapping[str, Any],
    *,
    file: str = "config.json",
    dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    vllm: Version | None = None,
) -> Geometry:
    """The geometry that a model's configuration describes.

    Args:
        config: the parsed ``config.json`` or Mistral's ``params.json``; the text part of a
            multimodal model is found by itself.
        file: the file's name, for messages.
        dtype: vLLM's ``--dtype``.
        kv_cache_dtype: vLLM's ``--kv-cache-dtype``.
        vllm: the release that will run the model; None where it is not known.

    Raises:
        ModelError: a field is missing, nonsense, or of a kind of model not covered.
    """
    fields, outer = text_fields(config, file)
    model_type = fields.text("model_type") if fields.values["model_type"] else None
    if model_type is None:
        raise fields.error("model_type", "is missing")
    for name in (model_type, outer.text("model_type")):
        if name is not None and name in REFUSED:
            raise fields.error(
                "model_type", f"= {name!r}: this family {REFUSED[name]}, which is not covered"
            )
    if outer.flag("is_encoder_decoder", False):
        raise outer.error("is_encoder_decoder", "= true: only decoders are covered")
    if model_type not in KNOWN:
        refuse_uncertain(fields, model_type)
    refuse_unknown_defaults(fields, model_type)
    warnings: list[str] = []
    if fields.assumed:
        said = ", ".join(f"{name} = {value}" for name, value in fields.assumed.items())
        warnings.append(
            f"{file} leaves fields out, and the defaults of model type {model_type!r} count, as in "
            f"vLLM: {said}"
        )
    computed = compute_dtype(fields, outer, dtype)
    stored = kv_dtype(fields, outer, kv_cache_dtype, computed)
    if stored in LATENT_ONLY and not is_latent(fields):
        raise ModelError(f"kv-cache-dtype {stored!r} is for latent attention (MLA) alone")
    layers = _caches(fields, model_type, computed, stored, vllm)
    max_model_len = _longest(fields, vllm, warnings)
    if is_latent(fields) and stored.startswith("fp8") and stored != "fp8_ds_mla":
        warnings.append(
            f"{stored} for latent attention is counted in vLLM's largest layout for it, "
            "fp8_ds_mla; which one vLLM uses depends on the GPU"
        )
    if any(cache.kind is LayerKind.CROSS for layer in layers for cache in layer):
        warnings.append("what cross-attention layers keep of images is not counted")
    geometry = Geometry(
        model_type=model_type,
        layers=_without_long_windows(layers, max_model_len),
        query_heads=query_heads(fields),
        compute_dtype=computed,
        dtype=stored,
        max_model_len=max_model_len,
        is_multimodal=is_multimodal(outer),
    )
    if model_type not in KNOWN:
        warnings.append(_assumption(model_type, geometry))
    return attrs.evolve(geometry, warnings=tuple(warnings))
