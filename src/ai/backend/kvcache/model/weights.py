"""How much memory a model's weights take, and how that is known.

Best is what the weights' index states, then the sizes of the files. Where there are no files at
all, the parameters are counted from the configuration; norms and biases are small and left out,
and so are the parts that are not text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from . import pattern
from .attention import heads_of, is_latent
from .config import read_json
from .defaults import ALIASES
from .dtypes import DTYPE_BYTES, compute_dtype
from .families import TIED
from .fields import Fields
from .files import INDEX_FILES, ModelFiles
from .quantization import quantization_of
from .recurrent import MAMBA_GROUPS, MAMBA_HEAD_DIM, MAMBA_HEADS, STATE_SIZE
from .text import layer_count, text_fields


@attrs.frozen
class Weights:
    """How much memory the weights of the whole model take, and how that is known."""

    total_bytes: int
    source: str


@attrs.frozen
class Parameters:
    """Parameters of the text model, by what quantization does to them."""

    embeddings: int = 0
    linear: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        return self.embeddings + self.linear + self.experts


def weigh(files: ModelFiles) -> Weights | None:
    """Bytes of the weights: what the index states, else the sizes of the weight files.

    Returns:
        None when there is neither.
    """
    names = {f.name for f in files.descriptions}
    for index in INDEX_FILES:
        if index in names:
            metadata = read_json(files.root, files.directory / index).get("metadata")
            total = metadata.get("total_size") if isinstance(metadata, dict) else None
            if isinstance(total, int) and not isinstance(total, bool) and total > 0:
                return Weights(total, f"metadata.total_size of {index}")
    # Mistral publishes the same weights a second time under this name.
    once = [f for f in files.weights if not f.name.startswith("consolidated")]
    counted = once or files.weights
    if counted:
        return Weights(sum(f.size for f in counted), f"sizes of {len(counted)} weight files")
    return None


#: Families whose feed-forward layers have two matrices; all others have a gate besides.
_WITHOUT_GATE = frozenset({
    "apertus", "bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "mpt", "nemotron",
    "nemotron_h", "opt", "phi", "starcoder2",
})  # fmt: skip

#: Families in which a layer is attention, a recurrence or a feed-forward layer, and nothing else.
_ONE_BLOCK = frozenset({"nemotron_h", "mamba", "mamba2", "falcon_mamba"})

#: Families in which a dense layer works beside the experts.
_DENSE_BESIDE_EXPERTS = frozenset({"gemma4_text", "llama4_text"})

#: Families whose attention has an output gate as large as its queries.
_GATED_ATTENTION = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})

_INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim")
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
_DENSE_FIRST = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
_SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_SHARED_SIZE = (
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
)


def _attention(fields: Fields, model_type: str, hidden: int, kind: str) -> int:
    if is_latent(fields):
        return _latent_attention(fields, hidden, fields.required("num_attention_heads"))
    heads = heads_of(fields, pattern.SLIDING if kind == pattern.SHARED else kind)
    asked = heads.asking * heads.key_dim * (2 if model_type in _GATED_ATTENTION else 1)
    # A layer that reads another's keys and values has none to make.
    kept = 0 if kind == pattern.SHARED else heads.kept * (heads.key_dim + heads.value_dim)
    return hidden * (asked + kept + heads.asking * heads.value_dim)


def _latent_attention(fields: Fields, hidden: int, heads: int) -> int:
    rank = fields.required("kv_lora_rank")
    rotary = fields.positive("qk_rope_head_dim") or 0
    plain = fields.positive("qk_nope_head_dim") or 0
    values = fields.positive("v_head_dim") or plain
    query_rank = fields.positive("q_lora_rank")
    asked = heads * (plain + rotary)
    queries = query_rank * (hidden + asked) if query_rank else hidden * asked
    total = queries + hidden * (rank + rotary) + rank * heads * (plain + values)
    total += heads * values * hidden
    if fields.has("index_topk"):
        index_heads = fields.required("index_n_heads")
        index_dim = fields.required("index_head_dim")
        total += (query_rank or hidden) * index_heads * index_dim
        total += hidden * (index_dim + index_heads)
    return total


def _recurrence(fields: Fields, hidden: int) -> int:
    """Parameters of a recurrent layer, from the largest of its matrices."""
    if fields.has("linear_num_value_heads"):
        keys = fields.required("linear_num_key_heads") * fields.required("linear_key_head_dim")
        value_heads = fields.required("linear_num_value_heads")
        values = value_heads * fields.required("linear_value_head_dim")
        return hidden * (2 * keys + 3 * values + 2 * value_heads)
    part = fields.part("linear_attn_config")
    if part is not None:
        inner = part.required("num_heads") * part.required("head_dim")
        return hidden * 4 * inner + 2 * part.required("head_dim") * (hidden + inner)
    if fields.has("conv_L_cache"):
        inner = fields.positive("conv_dim") or hidden
        return hidden * 4 * inner
    heads = fields.positive(*MAMBA_HEADS)
    if heads is not None:
        inner = heads * fields.required(*MAMBA_HEAD_DIM)
        groups = fields.positive(*MAMBA_GROUPS) or 1
        state = fields.required(*STATE_SIZE)
        return hidden * (3 * inner + 2 * groups * state + heads)
    expand = fields.positive("mamba_expand", "expand")
    if expand is not None:
        return 3 * hidden * expand * hidden
    # Lightning attention: queries, keys, values, a gate and the way out.
    return 5 * hidden * hidden


def _is_sparse(fields: Fields, model_type: str, layers: int) -> list[bool]:
    """Which layers have experts, where the model has any."""
    for field, marks in (
        ("mlp_layer_types", ("sparse",)),
        ("hybrid_override_pattern", ("E",)),
        ("moe_layer_freq", (1,)),
    ):
        value = fields.values.get(field)
        if isinstance(value, str | list) and len(value) == layers:
            return [mark in marks for mark in value]
    if model_type == "llama4_text":
        step = fields.positive("interleave_moe_layer_step") or 1
        return [(i + 1) % step == 0 for i in range(layers)]
    if fields.has("expert_layer_period"):
        period = fields.required("expert_layer_period")
        offset = fields.positive("expert_layer_offset") or 0
        return [i % period == offset for i in range(layers)]
    dense_first = fields.positive(*_DENSE_FIRST) or 0
    step = fields.positive("decoder_sparse_step") or 1
    dense = set(fields.integers("mlp_only_layers")) if fields.has("mlp_only_layers") else set()
    return [i >= dense_first and (i + 1) % step == 0 and i not in dense for i in range(layers)]


@attrs.frozen
class _FeedForward:
    """Parameters of one layer's feed-forward part, with experts and without."""

    dense: int
    shared: int
    experts: int


def _feed_forward(fields: Fields, model_type: str, hidden: int) -> _FeedForward:
    matrices = 2 if model_type in _WITHOUT_GATE else 3
    size = _size(fields, *_INTERMEDIATE) or 4 * hidden
    dense = matrices * hidden * (fields.positive("intermediate_size_mlp") or size)
    count = fields.positive(*_EXPERTS)
    if count is None:
        return _FeedForward(dense, 0, 0)
    expert_size = _size(fields, "moe_intermediate_size") or size
    shared_count = fields.positive(*_SHARED_EXPERTS) or 0
    shared_size = fields.positive(*_SHARED_SIZE) or shared_count * expert_size
    if model_type in _DENSE_BESIDE_EXPERTS:
        shared_size = size
    # Nemotron 3 and Kimi K3: experts work on a narrower vector, behind a projection.
    narrow = fields.positive("moe_latent_size", "routed_expert_hidden_size")
    projections = 2 * hidden * narrow if narrow else 0
    return _FeedForward(
        dense,
        matrices * hidden * shared_size + hidden * count + projections,
        matrices * (narrow or hidden) * expert_size * count,
    )


def _size(fields: Fields, *names: str) -> int | None:
    """A size of which some families give a list: one for each layer, or for each kind of token."""
    values = {
        name: value[0] if isinstance(value := fields.values.get(name), list) and value else value
        for name in names
    }
    return attrs.evolve(fields, values=values).positive(*names)


def count_parameters(config: Mapping[str, Any], file: str = "config.json") -> Parameters:
    """The parameters of the model that a configuration describes.

    Raises:
        ModelError: a field is missing or nonsense.
    """
    fields, outer = text_fields(config, file)
    model_type = str(fields.values["model_type"])
    layers = layer_count(fields)
    hidden = fields.required(*ALIASES["hidden"])
    vocabulary = fields.positive("vocab_size", "padded_vocab_size") or 0
    tied = outer.flag("tie_word_embeddings", fields.flag("tie_word_embeddings", model_type in TIED))
    # Gemma 3n and later: each layer has embeddings of its own, a gate and two projections.
    beside = fields.positive("hidden_size_per_layer_input") or 0
    per_layer = beside * (fields.positive("vocab_size_per_layer_input") or 0)
    feed_forward = _feed_forward(fields, model_type, hidden)
    kinds = pattern.layer_pattern(fields, model_type, layers)
    sparse = _is_sparse(fields, model_type, layers)
    recurrent = (pattern.LINEAR, pattern.MAMBA, pattern.CONVOLUTION)
    attention: dict[str, int] = {}
    linear = 3 * hidden * beside * layers
    experts = 0
    for kind, has_experts in zip(kinds, sparse, strict=True):
        if kind in recurrent or kind == pattern.HYBRID:
            linear += _recurrence(fields, hidden)
        if kind not in recurrent and kind != pattern.NOTHING:
            if kind not in attention:
                attention[kind] = _attention(fields, model_type, hidden, kind)
            linear += attention[kind]
        if model_type in _ONE_BLOCK and kind != pattern.NOTHING:
            continue
        if has_experts and feed_forward.experts:
            linear += feed_forward.shared
            experts += feed_forward.experts
        else:
            linear += feed_forward.dense
    return Parameters(
        embeddings=vocabulary * hidden * (1 if tied else 2) + per_layer * layers,
        linear=linear,
        experts=experts,
    )


def estimate_weights(config: Mapping[str, Any], file: str = "config.json") -> Weights:
    """Bytes of the weights, from the configuration alone.

    Raises:
        ModelError: a field is missing or nonsense.
    """
    fields, outer = text_fields(config, file)
    parameters = count_parameters(config, file)
    dtype = compute_dtype(fields, outer, "auto")
    plain = 8 * DTYPE_BYTES[dtype]
    stored = quantization_of(fields, outer, plain)
    bits = (
        parameters.embeddings * plain
        + parameters.linear * stored.linear_bits
        + parameters.experts * stored.expert_bits
    )
    return Weights(
        int(bits / 8),
        f"estimated from {file}: {parameters.total / 1e9:.1f} billion parameters, "
        f"{dtype}, {stored.name}",
    )
