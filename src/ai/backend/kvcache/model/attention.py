"""What attention layers keep of a token, by the fields that describe their heads."""

from __future__ import annotations

import attrs
from packaging.version import Version

from . import pattern
from .defaults import ALIASES
from .dtypes import KV_DTYPES, KvDtype
from .fields import Fields
from .layers import LayerCache, LayerKind

_QUERY_HEADS = ALIASES["heads"]
_KV_HEADS = ALIASES["kv_heads"]
_HEAD_DIM = ALIASES["head_dim"]
_HIDDEN = ALIASES["hidden"]

#: Fields about the heads of all layers without a window.
_OF_KINDS = ("global_head_dim", "num_global_key_value_heads")

#: Latent vectors with fp8 share a float32 scale among this many elements, and keep the rotary part
#: in 16 bits: 656 bytes for 512 + 64 (vLLM, v1/attention/backends/mla/flashmla_sparse.py).
_LATENT_SCALE_BLOCK = 128

#: The indexer's keys are fp8 with a float32 scale among this many elements
#: (vLLM, model_executor/models/deepseek_v2.py, Indexer).
_INDEX_SCALE_BLOCK = 128


#: The first vLLM of those read that keeps nothing for an indexer that is not asked; 0.22.0 keeps
#: its keys (model_executor/models/deepseek_v2.py).
_FIRST_SHARED_INDEXERS = Version("0.25.1")


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


def is_latent(fields: Fields) -> bool:
    """Whether attention keeps one compressed vector (MLA)."""
    return fields.positive("kv_lora_rank") is not None


def latent_caches(
    fields: Fields, dtype: str, layers: int, vllm: Version | None
) -> list[tuple[LayerCache, ...]]:
    """What each layer with latent attention keeps: its vector, and its indexer's keys if any.

    Args:
        fields: the model's.
        dtype: what is stored.
        layers: how many there are.
        vllm: the release that runs the model; None where it is not known.

    Raises:
        ModelError: a field is missing or nonsense.
    """
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
        head_bytes=index_dim + 4 * (index_dim // _INDEX_SCALE_BLOCK),
    )
    own = _layers_with_indexer(fields, layers)
    if vllm is not None and vllm < _FIRST_SHARED_INDEXERS:
        own = [True] * layers
    return [(latent, indexer) if has_one else (latent,) for has_one in own]


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
    if fields.positive("qk_nope_head_dim") is not None and not is_latent(fields):
        raise fields.error("kv_lora_rank", "is missing, and qk_nope_head_dim is given")
    if fields.flag("use_cla", False) and (fields.positive("cla_share_factor") or 1) > 1:
        raise fields.error("use_cla", "= true: layers share caches in a way that is not covered")
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


def of_layer(fields: Fields, layer: int) -> Fields:
    """The fields as they count for one layer.

    Transformers 5.19 writes what differs under ``per_layer_config``, by the layer's number, and
    then no field for layers of one kind, such as ``global_head_dim`` (integrations/heterogeneity,
    models/gemma4/configuration_gemma4.py).

    Raises:
        ModelError: what differs is no object, or the layer has no attention.
    """
    part = fields.part("per_layer_config")
    if part is None:
        return fields
    own = part.part(str(layer))
    values = {name: value for name, value in fields.values.items() if name not in _OF_KINDS}
    if own is None:
        return attrs.evolve(fields, values=values)
    if own.values.get("skip"):
        raise own.error("skip", "leaves a part of the layer out, which is not covered")
    return attrs.evolve(fields, values={**values, **own.values})


def attention_cache(fields: Fields, kind: str, stored: KvDtype) -> LayerCache:
    """A layer that keeps keys and values of the tokens it can see.

    Raises:
        ModelError: a field is missing, nonsense, or contradicts another.
    """
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
