"""The part of a model's configuration that describes the text model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from .defaults import ALIASES, left_out, text_type, with_defaults
from .fields import Fields
from .layers import MAX_LAYERS
from .mistral import as_hugging_face

#: Where multimodal models keep the description of the part that writes text.
TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")

#: What such parts for images, video and sound are called, beside the part that writes text.
_MEDIA_PARTS = (
    "vision",
    "visual",
    "image",
    "video",
    "audio",
    "speech",
    "vit_config",
    "mm_",
    "multimodal",
)

#: Architectures that vLLM serves as multimodal ones, and whose names do not end as others' do
#: (model_executor/models/registry.py, _MULTIMODAL_MODELS, of vLLM 0.15.0 to 0.33.0).
_MULTIMODAL = frozenset({
    "Alpamayo2Super", "Cheers", "DeepseekOCR2ForCausalLM", "DeepseekOCRForCausalLM",
    "DeepseekV41ForCausalLM", "DeepseekVLV2ForCausalLM", "DiffusionGemmaForBlockDiffusion",
    "Dots3NoteForCausalLM", "DotsOCRForCausalLM", "FuyuForCausalLM", "GLM4VForCausalLM",
    "H2OVLChatModel", "HCXVisionForCausalLM", "HCXVisionV2ForCausalLM", "HfMoondream",
    "InternVLChatModel", "Llama_Nemotron_Nano_VL", "MiDashengLMModel", "MiMoV2OmniForCausalLM",
    "MiniCPMO", "MiniCPMV", "MolmoForCausalLM", "Moondream3ForCausalLM",
    "MoonshotKimiaForCausalLM", "MossAudioModel", "NVLM_D", "NemotronH_Nano_Omni_Reasoning_V3",
    "NemotronH_Nano_VL_V2", "NemotronH_Omni_Reasoning_V3", "NemotronH_Super_Omni_Reasoning_V3",
    "OpenVLAForActionPrediction", "Ovis", "Ovis2_5", "Ovis2_6ForCausalLM",
    "Ovis2_6_MoeForCausalLM", "Phi3VForCausalLM", "Phi4ForCausalLMV", "Phi4MMForCausalLM",
    "Qwen2_5OmniModel", "Qwen3ASRRealtimeGeneration", "RadioMBartPrefixForCausalLM",
    "SkyworkR1VChatModel", "UltravoxModel", "UnlimitedOCRForCausalLM",
    "VoxtralRealtimeGeneration", "VoxtralStreamingGeneration",
})  # fmt: skip

#: All others are called so. One text model is too: ChatGLM of old.
_MULTIMODAL_SUFFIX = "ForConditionalGeneration"
_TEXT_IN_SPITE_OF_NAME = frozenset({"ChatGLMForConditionalGeneration"})


def text_fields(config: Mapping[str, Any], file: str = "config.json") -> tuple[Fields, Fields]:
    """(the part of a configuration that describes the text model, the whole of it).

    The part has the defaults of its model type where the file leaves a field out.

    Raises:
        ModelError: a part is no object.
    """
    outer = Fields(as_hugging_face(config, file), file)
    inner = outer
    model_type = outer.text("model_type") or ""
    while (part := _text_part(inner)) is not None:
        model_type = part.text("model_type") or text_type(model_type) or model_type
        inner = part
    values = {**with_defaults(inner.values, model_type), "model_type": model_type}
    # A part does not always repeat what implements the model.
    values["architectures"] = inner.architectures() or outer.architectures()
    # Of old families, some name their attention in a part of its own.
    attention = inner.part("attn_config")
    if attention is not None and attention.has("kv_n_heads"):
        values["kv_n_heads"] = attention.values["kv_n_heads"]
    return attrs.evolve(inner, values=values, assumed=left_out(inner.values, values)), outer


def _text_part(fields: Fields) -> Fields | None:
    whole_model = fields.positive(*ALIASES["layers"]) is not None
    for name in TEXT_PARTS:
        part = fields.part(name)
        # A part without any field has the defaults of its model type, unless the model is described
        # beside it.
        if part is not None and (part.values or not whole_model):
            return part
    return None


def is_multimodal(outer: Fields) -> bool:
    """Whether the model takes images, video or sound besides text.

    Args:
        outer: the whole configuration.

    Raises:
        ModelError: the list of architectures is no list of names.
    """
    if any(name.startswith(_MEDIA_PARTS) and value for name, value in outer.values.items()):
        return True
    return any(
        name in _MULTIMODAL
        or (name.endswith(_MULTIMODAL_SUFFIX) and name not in _TEXT_IN_SPITE_OF_NAME)
        for name in outer.architectures()
    )


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
        count = fields.required(*ALIASES["layers"])
    if count > MAX_LAYERS:
        raise fields.error("num_hidden_layers", f"= {count} is not a real model's")
    return count
