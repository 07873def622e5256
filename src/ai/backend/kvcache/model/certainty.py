"""Whether the fields of a family that is not known say for certain what its layers keep.

A plain model is described by its numbers of layers, heads and elements. Families that do more, such
as recurrent layers, windows, shared or indexed caches, say so in fields of their own. A field with
such a name in the file of a family that nobody has looked at means that the plain reading may be
wrong, and a wrong plan is worse than none.
"""

from __future__ import annotations

import re
import reprlib

from .attention import is_latent, query_heads
from .defaults import ALIASES, has_defaults
from .fields import Fields

#: What the names of such fields have in them, and what they are about.
_TELLING = (
    (r"block_types?$|layers_block|block_configs|hybrid|layer_group|every_n", "kinds of layers"),
    (r"_pattern$|_period$|interval|layers?_(idx|ids|indices)", "kinds of layers"),
    (r"attn_type|attention_types?$|(full|linear)_att", "kinds of layers"),
    (r"^linear_|lightning|mamba|ssm|d_state|state_size|recurr|rwkv", "recurrent layers"),
    (r"delta|kda|gla_|retention", "recurrent layers"),
    (r"conv_(kernel|dim|size|l_cache)|short_conv|d_conv", "recurrent layers"),
    (r"window|sliding|chunk_size|^swa_|^global_", "windows"),
    (r"^index_|indexer|sparse_att|sparse_config|attn_sparse|compress", "sparse attention"),
    (r"lora_rank|nope_head_dim|rope_head_dim|latent_att|^mla", "latent attention"),
    (r"kv_shar|shared?_kv|shared_layers|share_q|cross_layer|cla_|_cla$", "shared caches"),
    (r"cross_att|encoder", "an encoder"),
    (r"loop|ut_steps|recursion", "layers that run several times"),
    (r"per_layer|sink|memory_tokens", "layers that differ"),
    (r"^v_head_dim$|qk_head_dim|key_dim|value_dim", "unequal keys and values"),
)  # fmt: skip

#: Experts and feed-forward layers keep nothing.
_HARMLESS = re.compile(r"^(moe|mlp|expert|router|num_experts|n_shared|num_shared_experts)")

#: Read as vLLM reads them in every family, where they name nothing but these.
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


def _is_harmless(fields: Fields, name: str) -> bool:
    if _HARMLESS.match(name):
        return True
    windows_off = not fields.flag("use_sliding_window", True)
    if name in ("sliding_window", "max_window_layers", "use_sliding_window"):
        # With the window off, or with a list of the layers that have it, nothing is left to guess.
        return windows_off or fields.has("layer_types")
    return False


def refuse_uncertain(fields: Fields, model_type: str) -> None:
    """Some fields show that a family has caches of a form that is not known.

    Args:
        fields: the part that describes the text model of a family that is not known.
        model_type: the family.

    Raises:
        ModelError: these do; the message names the field.
    """
    family = f"model_type {reprlib.repr(model_type)} is not known"
    for name, value in fields.values.items():
        if not value or _is_harmless(fields, name):
            continue
        for pattern, about in _TELLING:
            if re.search(pattern, name.lower()):
                raise fields.error(
                    name, f"is about {about}, and {family}, so what its layers keep is not certain"
                )
    if fields.has("layer_types"):
        others = sorted(set(fields.names("layer_types")) - _LAYER_TYPES)
        if others:
            raise fields.error(
                "layer_types",
                f"names {reprlib.repr(others[0])}, and {family}, so what its layers keep is not "
                "certain",
            )
    if query_heads(fields) is None:
        raise fields.error("num_attention_heads", f"is missing, and {family}")


def refuse_unknown_defaults(fields: Fields, model_type: str) -> None:
    """A nested part may leave out what nobody knows the default of.

    Transformers writes nested parts without the fields that have their default value.

    Args:
        fields: the part that describes the text model.
        model_type: its family.

    Raises:
        ModelError: it does; the message names the field.
    """
    if not fields.path or has_defaults(model_type) or is_latent(fields):
        return
    for names in (ALIASES["kv_heads"], ALIASES["head_dim"]):
        if fields.positive(*names) is None:
            raise fields.error(
                names[0], f"is missing, and its default in model_type {model_type!r} is not known"
            )
