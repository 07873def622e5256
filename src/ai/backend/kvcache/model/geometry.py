"""The shape of a model's KV cache: what a token of context costs, layer by layer."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs

from ..errors import ModelError
from . import pattern
from .dtypes import KV_DTYPES, LATENT_ONLY, KvDtype, compute_dtype, kv_dtype
from .families import DEFAULTS, KNOWN, REFUSED
from .fields import Fields
from .layers import MAX_LAYERS, LayerCache, LayerKind
from .mistral import as_hugging_face
from .parallel import GpuShare, Parallel, divide_layers
from .recurrent import recurrent_cache

#: Where multimodal models keep the description of the part that writes text.
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_QUERY_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = (
    "num_key_value_heads",
    "n_head_kv",
    "num_kv_heads",
    "n_kv_heads",
    "kv_n_heads",
    "multi_query_group_num",
    "num_attention_groups",
    "num_query_groups",
)
_HEAD_DIM = ("head_dim", "hidden_size_per_head", "kv_channels", "attention_head_dim")
_HIDDEN = ("hidden_size", "n_embd", "d_model")

#: The longest context, by every name that vLLM looks for; the smallest of them counts
#: (transformers_utils/model_arch_config_convertor.py, derive_max_model_len_and_key).
_MAX_LENGTH = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)

#: vLLM's assumption for a model that states no length.
_UNSTATED_LENGTH = 2048

#: Rotary scalings whose factor ``max_position_embeddings`` has in it already
#: (vLLM, config/model.py, _get_and_verify_max_len).
_SCALED_ALREADY = frozenset({
    "deepseek_llama_scaling", "deepseek_yarn", "llama3", "longrope", "su", "yarn",
})  # fmt: skip

#: Latent vectors with fp8 share a float32 scale among this many elements, and keep the rotary part
#: in 16 bits: 656 bytes for 512 + 64 (vLLM, v1/attention/backends/mla/flashmla_sparse.py).
_LATENT_SCALE_BLOCK = 128

#: The indexer's keys are fp8 with a float32 scale among this many elements
#: (vLLM, model_executor/models/deepseek_v2.py, Indexer).
_INDEX_SCALE_BLOCK = 128


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
    """Tokens: the longest context the model's own configuration allows."""
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
        return any(g.cache.window is not None for g in self.groups)

    @property
    def has_states(self) -> bool:
        """Whether some layers are recurrent."""
        return any(g.cache.state is not None for g in self.groups)

    def per_gpu(self, parallel: Parallel) -> GpuShare:
        """What one GPU holds.

        Raises:
            ModelError: the model cannot be divided so.
        """
        return divide_layers(self.layers, self.query_heads, parallel)


def text_fields(config: Mapping[str, Any], file: str = "config.json") -> tuple[Fields, Fields]:
    """(the part of a configuration that describes the text model, the whole of it).

    Raises:
        ModelError: a part is no object.
    """
    outer = Fields(as_hugging_face(config, file), file)
    inner = outer
    while (part := _text_part(inner)) is not None:
        inner = part
    model_type = inner.text("model_type") or outer.text("model_type") or ""
    values = {**DEFAULTS.get(model_type, {}), **inner.values, "model_type": model_type}
    # Of old families, some name their attention in a part of its own.
    attention = inner.part("attn_config")
    if attention is not None and attention.has("kv_n_heads"):
        values["kv_n_heads"] = attention.values["kv_n_heads"]
    return attrs.evolve(inner, values=values), outer


def _text_part(fields: Fields) -> Fields | None:
    for name in _TEXT_PARTS:
        part = fields.part(name)
        if part is not None and part.values:
            return part
    return None


def query_heads(fields: Fields) -> int | None:
    """How many heads ask; None where the model has no attention at all."""
    return fields.positive(*_QUERY_HEADS)


def kv_heads(fields: Fields, heads: int) -> int:
    """How many heads are kept: as many as ask, unless the file says otherwise.

    Raises:
        ModelError: the two contradict each other.
    """
    # Falcon's new decoders ignore the flag (vLLM, model_arch_config_convertor.py).
    if fields.flag("multi_query", False) and not fields.flag("new_decoder_architecture", False):
        return 1
    if not fields.flag("multi_query_attention", True):
        return heads
    kept = fields.positive(*_KV_HEADS) or heads
    if heads % kept:
        raise fields.error(
            "num_attention_heads", f"= {heads} is no multiple of num_key_value_heads = {kept}"
        )
    return kept


def head_dim(fields: Fields, heads: int) -> int:
    """Elements of one head's keys: as stated, else an equal part of the hidden size.

    Raises:
        ModelError: the hidden size cannot be divided so.
    """
    stated = fields.positive(*_HEAD_DIM)
    if stated is not None:
        return stated
    hidden = fields.required(*_HIDDEN)
    if hidden % heads:
        raise fields.error(
            "hidden_size",
            f"= {hidden} is no multiple of num_attention_heads = {heads}, and head_dim is missing",
        )
    return hidden // heads


def layer_count(fields: Fields) -> int:
    """How many layers the model has.

    Raises:
        ModelError: it does not say, or no model has that many.
    """
    # Nemotron-H counts its layers by listing them, and other fields may say something else.
    letters = fields.values.get("hybrid_override_pattern")
    listed = fields.values.get("layers_block_type")
    if isinstance(letters, str) and letters:
        count = len(letters)
    elif isinstance(listed, list) and not fields.has("num_hidden_layers"):
        count = len(listed)
    else:
        count = fields.required(*_LAYERS)
    if count > MAX_LAYERS:
        raise fields.error("num_hidden_layers", f"= {count} is not a real model's")
    return count


def is_latent(fields: Fields) -> bool:
    """Whether attention keeps one compressed vector (MLA)."""
    return fields.positive("kv_lora_rank") is not None


def _latent_caches(fields: Fields, dtype: str, layers: int) -> list[tuple[LayerCache, ...]]:
    rank = fields.required("kv_lora_rank")
    if not fields.has("qk_rope_head_dim"):
        raise fields.error("qk_rope_head_dim", "is missing, and kv_lora_rank is given")
    rotary = fields.positive("qk_rope_head_dim") or 0
    if dtype.startswith("fp8") and "per_token_head" not in dtype:
        size = rank + 4 * -(-rank // _LATENT_SCALE_BLOCK) + 2 * rotary
    elif dtype == "nvfp4_ds_mla":
        # vLLM, model_executor/layers/attention/mla_attention.py: 352 bytes for 512 + 64.
        size = KV_DTYPES[dtype].side_bytes(rank) + rotary
    else:
        stored = KV_DTYPES[dtype]
        # Per-token-head formats keep a pair of scales here too (mla_attention.py, customize_spec).
        size = stored.side_bytes(rank + rotary) + stored.scale_bytes
    latent = LayerCache(LayerKind.LATENT, heads=1, head_bytes=size)
    if not fields.has("index_topk"):
        return [(latent,)] * layers
    index_dim = fields.required("index_head_dim")
    indexer = LayerCache(
        LayerKind.INDEXER,
        heads=1,
        head_bytes=index_dim + 4 * -(-index_dim // _INDEX_SCALE_BLOCK),
    )
    return [(latent, indexer) if own else (latent,) for own in _layers_with_indexer(fields, layers)]


def _layers_with_indexer(fields: Fields, layers: int) -> list[bool]:
    """Which layers choose tokens themselves; the others take over an earlier layer's choice.

    As vLLM reads it: model_executor/models/deepseek_v2.py.
    """
    written = fields.text("index_topk_pattern")
    if written is not None:
        if len(written) != layers:
            raise fields.error(
                "index_topk_pattern", f"describes {len(written)} layers, and the model has {layers}"
            )
        return [letter != "S" for letter in written]
    frequency = fields.positive("index_topk_freq") or 1
    offset = fields.positive("index_skip_topk_offset") or 2
    return [max(i - offset + 1, 0) % frequency == 0 for i in range(layers)]


@attrs.frozen
class Heads:
    """The heads of one layer's attention."""

    asking: int
    kept: int
    key_dim: int
    value_dim: int


def heads_of(fields: Fields, kind: str) -> Heads:
    """The heads of a layer, which in some families depend on how it looks back.

    Args:
        fields: the model's.
        kind: a name of pattern.py.

    Raises:
        ModelError: a field is missing, nonsense, or contradicts another.
    """
    asking = fields.required(*_QUERY_HEADS)
    kept = kv_heads(fields, asking)
    keys = head_dim(fields, asking)
    values = fields.positive("v_head_dim") or keys
    if kind in (pattern.SLIDING, pattern.CHUNKED):
        # MiMo V2: layers with a window have heads of their own.
        kept = fields.positive("swa_num_key_value_heads") or kept
        keys = fields.positive("swa_head_dim") or keys
        return Heads(asking, kept, keys, fields.positive("swa_v_head_dim") or values)
    # Gemma 4: layers without a window have.
    keys = fields.positive("global_head_dim") or keys
    if fields.flag("attention_k_eq_v", False):
        kept = fields.positive("num_global_key_value_heads") or kept
    return Heads(asking, kept, keys, fields.positive("global_head_dim") or values)


def _attention_cache(fields: Fields, kind: str, stored: KvDtype) -> LayerCache:
    """A layer that keeps keys and values of the tokens it can see."""
    heads = heads_of(fields, kind)
    kept = heads.kept
    size = stored.side_bytes(heads.key_dim) + stored.side_bytes(heads.value_dim)
    if kind == pattern.FULL:
        return LayerCache(LayerKind.FULL, kept, size)
    if kind == pattern.CHUNKED:
        window = fields.positive("attention_chunk_size")
        if window is None:
            raise fields.error("attention_chunk_size", "is missing, and layers look back in chunks")
        return LayerCache(LayerKind.CHUNKED, kept, size, window)
    window = fields.positive("sliding_window")
    if window is None:
        raise fields.error("sliding_window", "is missing, and layers have a sliding window")
    return LayerCache(LayerKind.SLIDING, kept, size, window)


def _caches(
    fields: Fields, model_type: str, layers: int, computed: str, dtype: str
) -> tuple[tuple[LayerCache, ...], ...]:
    kinds = pattern.layer_pattern(fields, model_type, layers)
    made: dict[str, tuple[LayerCache, ...]] = {
        pattern.NOTHING: (),
        pattern.CROSS: (LayerCache(LayerKind.CROSS),),
        pattern.SHARED: (LayerCache(LayerKind.SHARED),),
    }
    latent = _latent_caches(fields, dtype, layers) if is_latent(fields) else None
    for kind in dict.fromkeys(kinds):
        if kind in (pattern.LINEAR, pattern.MAMBA, pattern.CONVOLUTION):
            made[kind] = (recurrent_cache(fields, model_type, computed),)
        elif kind == pattern.HYBRID:
            made[kind] = (
                _attention_cache(fields, pattern.FULL, KV_DTYPES[dtype]),
                recurrent_cache(fields, model_type, computed),
            )
        elif kind not in made and not (kind == pattern.FULL and latent):
            made[kind] = (_attention_cache(fields, kind, KV_DTYPES[dtype]),)
    return tuple(
        latent[i] if latent and kind == pattern.FULL else made[kind] for i, kind in enumerate(kinds)
    )


def _max_model_len(fields: Fields, outer: Fields, warnings: list[str]) -> int:
    lengths = [length for name in _MAX_LENGTH if (length := fields.positive(name)) is not None]
    if not lengths:
        warnings.append(
            f"{fields.file} states no longest context; {_UNSTATED_LENGTH} tokens are assumed, "
            "as vLLM does"
        )
        return _UNSTATED_LENGTH
    length = min(lengths)
    scaling = fields.part("rope_scaling") or fields.part("rope_parameters")
    if scaling is None:
        return length
    kind = scaling.values.get("rope_type", scaling.values.get("type", "default"))
    if kind == "longrope":
        return fields.positive("original_max_position_embeddings") or length
    factor = scaling.values.get("factor")
    model_type = str(outer.values.get("model_type"))
    if factor is None or kind in _SCALED_ALREADY or "gemma3" in model_type:
        return length
    if type(factor) not in (int, float) or not 0 < factor < 2**20:
        raise scaling.error("factor", f"= {reprlib.repr(factor)} is not a positive number")
    return int(length * factor)


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
) -> Geometry:
    """The geometry that a model's configuration describes.

    Args:
        config: the parsed ``config.json`` or Mistral's ``params.json``; the text part of a
            multimodal model is found by itself.
        file: the file's name, for messages.
        dtype: vLLM's ``--dtype``.
        kv_cache_dtype: vLLM's ``--kv-cache-dtype``.

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
    warnings: list[str] = []
    computed = compute_dtype(fields, outer, dtype)
    stored = kv_dtype(fields, outer, kv_cache_dtype, computed)
    if stored in LATENT_ONLY and not is_latent(fields):
        raise ModelError(f"kv-cache-dtype {stored!r} is for latent attention (MLA) alone")
    layers = _caches(fields, model_type, layer_count(fields), computed, stored)
    max_model_len = _max_model_len(fields, outer, warnings)
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
    )
    if model_type not in KNOWN:
        warnings.append(_assumption(model_type, geometry))
    return attrs.evolve(geometry, warnings=tuple(warnings))
