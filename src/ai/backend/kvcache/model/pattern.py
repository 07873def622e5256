"""Which layer of a model looks back in which way.

Families write it down in a dozen forms; all become one list of the names that ``layer_types`` uses,
with one name for each layer.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence

from .families import LAST_IS_FULL, PATTERN_NEEDED, PERIODS, WINDOW_OFF, WINDOW_UNUSED
from .fields import Fields

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
LINEAR = "linear_attention"
MAMBA = "mamba"
CONVOLUTION = "conv"
CROSS = "cross_attention"
SHARED = "shared"
NOTHING = "mlp"
HYBRID = "hybrid"
"""Attention and a recurrent layer side by side."""

#: Names in lists of layers, in the form used here.
_NAMES: Mapping[str, str] = {
    **{n: n for n in (FULL, SLIDING, CHUNKED, LINEAR, MAMBA, CONVOLUTION, CROSS, HYBRID)},
    "attention": FULL,
    "full": FULL,
    "global": FULL,
    "indexed_attention": FULL,
    "deepseek_sparse_attention": FULL,
    "sliding": SLIDING,
    "local": SLIDING,
    "mamba1": MAMBA,
    "mamba2": MAMBA,
    "moe": NOTHING,
    "mlp": NOTHING,
}

#: hybrid_override_pattern of Nemotron-H.
_LETTERS: Mapping[str, str] = {"M": MAMBA, "*": FULL, "-": NOTHING, "E": NOTHING}

#: sliding_window_pattern of EXAONE 4: local and global.
_LOCAL_GLOBAL: Mapping[str, str] = {"L": SLIDING, "G": FULL}


def _every(period: int, last: str, between: str, layers: int) -> list[str]:
    return [between if (i + 1) % period else last for i in range(layers)]


def _repeated(kinds: Sequence[str], layers: int) -> list[str]:
    return [kinds[i % len(kinds)] for i in range(layers)]


def _named(fields: Fields, field: str, layers: int) -> list[str]:
    kinds = []
    for name in fields.names(field):
        if name not in _NAMES:
            raise fields.error(
                field, f"names {reprlib.repr(name)}; known are {', '.join(sorted(_NAMES))}"
            )
        kinds.append(_NAMES[name])
    return kinds


def _letters(fields: Fields, field: str, layers: int) -> list[str]:
    text = fields.text(field) or ""
    unknown = set(text) - set(_LETTERS)
    if unknown:
        raise fields.error(field, f"has letters other than {''.join(_LETTERS)}")
    return [_LETTERS[letter] for letter in text]


def _zero_is(zero: str, other: str) -> Callable[[Fields, str, int], list[str]]:
    def read(fields: Fields, field: str, layers: int) -> list[str]:
        return [other if number else zero for number in fields.integers(field)]

    return read


def _indices_are(listed: str, other: str) -> Callable[[Fields, str, int], list[str]]:
    def read(fields: Fields, field: str, layers: int) -> list[str]:
        indices = set(fields.integers(field))
        outside = sorted(i for i in indices if not 0 <= i < layers)
        if outside:
            raise fields.error(field, f"names layer {outside[0]} of a model with {layers}")
        return [listed if i in indices else other for i in range(layers)]

    return read


def _kimi(fields: Fields, field: str, layers: int) -> list[str]:
    # Layers are counted from 1 here (Transformers, configuration_kimi_linear.py).
    part = fields.part(field)
    if part is None or not part.has("full_attn_layers"):
        return _repeated(PERIODS["kimi_linear"], layers)
    full = set(part.integers("full_attn_layers"))
    return [FULL if i + 1 in full else LINEAR for i in range(layers)]


def _jamba(fields: Fields, field: str, layers: int) -> list[str]:
    period = fields.required(field)
    offset = fields.positive("attn_layer_offset") or 0
    return [FULL if i % period == offset else MAMBA for i in range(layers)]


#: What vLLM runs by this architecture has recurrent layers behind the last whole group too
#: (model_executor/models/bailing_moe_linear.py, is_linear_layer); others have attention there
#: (bailing_moe_v3.py, _is_kda_layer, and the models' own code).
_RECURRENT_REST = "BailingMoeV2_5ForCausalLM"


def _groups(fields: Fields, field: str, layers: int) -> list[str]:
    size = fields.required(field)
    rest = LINEAR if _RECURRENT_REST in fields.architectures() else FULL
    grouped = _every(size, FULL, LINEAR, layers // size * size)
    return grouped + [rest] * (layers - len(grouped))


def _interval(fields: Fields, field: str, layers: int) -> list[str]:
    return _every(fields.required(field), FULL, LINEAR, layers)


def _window_pattern(fields: Fields, field: str, layers: int) -> list[str]:
    if isinstance(fields.values[field], str):
        text = fields.text(field) or ""
        if set(text) - set(_LOCAL_GLOBAL):
            raise fields.error(field, f"= {reprlib.repr(text)} has letters other than L and G")
        kinds = _repeated([_LOCAL_GLOBAL[letter] for letter in text], layers)
        # EXAONE 4 always ends in a layer that sees everything.
        return [*kinds[:-1], FULL]
    period = fields.positive(field)
    return [FULL] * layers if period is None else _every(period, FULL, SLIDING, layers)


#: The first of these fields that a file has says which layer is which.
_READERS: Mapping[str, Callable[[Fields, str, int], list[str]]] = {
    "layer_types": _named,
    "layers_block_type": _named,
    "hybrid_override_pattern": _letters,
    "attn_type_list": _zero_is(LINEAR, FULL),
    "hybrid_layer_pattern": _zero_is(FULL, SLIDING),
    "linear_attn_config": _kimi,
    "full_attn_idxs": _indices_are(FULL, CONVOLUTION),
    "attn_layer_indices": _indices_are(FULL, MAMBA),
    "hybrid_layer_ids": _indices_are(HYBRID, MAMBA),
    "cross_attention_layers": _indices_are(CROSS, FULL),
    "attn_layer_period": _jamba,
    "full_attention_interval": _interval,
    "layer_group_size": _groups,
    "sliding_window_pattern": _window_pattern,
    "_sliding_window_pattern": _window_pattern,
    "global_attn_every_n_layers": _window_pattern,
}


def _llama4(fields: Fields, layers: int) -> list[str] | None:
    # In Llama 4 the layers with rotary positions, marked 1, look back in chunks. Other families
    # have the field too and mean nothing else than positions.
    if not fields.has("attention_chunk_size") or not fields.values.get("no_rope_layers"):
        return None
    kinds = [CHUNKED if n else FULL for n in fields.integers("no_rope_layers")]
    return _of_length(fields, "no_rope_layers", kinds, layers)


def _of_length(fields: Fields, field: str, kinds: Sequence[str], layers: int) -> list[str]:
    if len(kinds) != layers:
        raise fields.error(field, f"describes {len(kinds)} layers, and the model has {layers}")
    return list(kinds)


def _window_in_use(fields: Fields, model_type: str) -> bool:
    """Whether the family's layers use a window at all."""
    if model_type in WINDOW_UNUSED:
        return False
    if not fields.flag("use_sliding_window", model_type not in WINDOW_OFF):
        return False
    # A list that names such layers and gives them no window is a contradiction, and told later.
    return fields.has("layer_types") or fields.positive("sliding_window") is not None


def _written(fields: Fields, model_type: str, layers: int) -> list[str]:
    for field, read in _READERS.items():
        if fields.has(field) and fields.values[field] != 0:
            return _of_length(fields, field, read(fields, field, layers), layers)
    if model_type == "llama4_text" and (kinds := _llama4(fields, layers)) is not None:
        return kinds
    if model_type in PATTERN_NEEDED:
        raise fields.error("layer_types", f"is missing, and layers of {model_type!r} differ")
    if model_type in PERIODS:
        return _repeated(PERIODS[model_type], layers)
    if fields.positive("sliding_window") is None:
        return [FULL] * layers
    # The first of these layers see everything (Transformers, configuration_qwen2.py).
    first = fields.positive("max_window_layers") or 0
    return [SLIDING if i >= first else FULL for i in range(layers)]


def layer_pattern(fields: Fields, model_type: str, layers: int) -> list[str]:
    """The kind of each layer, in the model's order.

    Raises:
        ModelError: the pattern is nonsense, or of another length than the model.
    """
    kinds = _written(fields, model_type, layers)
    if not _window_in_use(fields, model_type):
        kinds = [FULL if kind == SLIDING else kind for kind in kinds]
    if model_type in LAST_IS_FULL:
        kinds = [*kinds[:-1], FULL]
    shared = fields.positive("num_kv_shared_layers") or 0
    if shared >= layers:
        raise fields.error("num_kv_shared_layers", f"= {shared} leaves none of {layers} layers")
    return [SHARED if i >= layers - shared else kind for i, kind in enumerate(kinds)]
