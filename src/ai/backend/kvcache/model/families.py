"""What is known of model families beyond the fields of their ``config.json``.

Published files leave out what their implementation takes for granted. The figures are the defaults
of the configuration classes of Transformers 5.19 (models/*/configuration_*.py) and were compared
with the caches that vLLM 0.32 builds. Families not named here are computed from the usual fields,
with a warning, or refused where a field says that there is more to them (certainty.py).
"""

from __future__ import annotations

from collections.abc import Mapping

#: Families whose fields say everything, or all but what the tables below and ``defaults.json`` say.
KNOWN = frozenset({
    "afmoe", "apertus", "aquila", "arcee", "aria_text", "baichuan", "bailing_hybrid",
    "bailing_moe", "bailing_moe_linear", "bamba", "bloom", "chatglm", "cohere", "cohere2",
    "cohere2_moe", "cwm", "dbrx", "deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32",
    "dots1", "emu3_text_model", "ernie4_5", "ernie4_5_moe", "ernie4_5_vl_moe_text", "exaone",
    "exaone4", "exaone4_5_text", "exaone_moe", "falcon", "falcon_h1", "falcon_mamba",
    "flex_olmo", "gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text",
    "gemma4_unified_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm4v_moe_text",
    "glm4v_text", "glm_moe_dsa", "glm_ocr_text", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neox",
    "gpt_oss", "gptj", "granite", "granite_swa", "granitemoe", "granitemoe_swa",
    "granitemoehybrid", "granitemoeshared", "hunyuan_v1_dense", "hunyuan_v1_moe",
    "hunyuan_vl_text", "hy_v3", "hyperclovax", "internlm", "internlm2", "internlm3",
    "iquestcoder", "iquestloopcoder", "jais2", "jamba", "kimi_k2", "kimi_linear", "laguna",
    "lfm2", "lfm2_moe", "llama", "llama4_text", "mamba", "mamba2", "mellum", "mimo", "mimo_v2",
    "mimo_v2_flash", "minicpm", "minicpmo", "minicpmv", "minimax", "minimax_m2",
    "minimax_text_01", "ministral3", "mistral", "mixtral", "mllama_text_model", "molmo", "mpt",
    "nemotron", "nemotron_h", "olmo", "olmo2", "olmo3", "olmoe", "opt", "orion", "ouro",
    "paddleocr_vl_text", "persimmon", "phi", "phi3", "phi3_v", "phi4mm", "phimoe", "qwen",
    "qwen2", "qwen2_5_omni_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl",
    "qwen2_vl_text", "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_asr_text", "qwen3_moe",
    "qwen3_next", "qwen3_omni_moe_text", "qwen3_vl_moe_text", "qwen3_vl_text", "seed_oss",
    "smollm3", "solar", "solar_open", "stablelm", "stablelm_epoch", "starcoder2", "step3_text",
    "telechat", "vaultgemma", "xverse", "zamba2",
})  # fmt: skip

_ENCODER = "is an encoder, which keeps nothing of a context"
_ENCODER_DECODER = "has an encoder beside its decoder"
_NOT_RUN = "has recurrent layers that the engines do not run"
_RECURRENT = "has recurrent layers that are not described here"
_SPARSE = "indexes or compresses blocks of tokens"
_LOOPS = "runs its layers several times"
_LATENT = "has latent projections that are not described here"

#: Families whose caches have a form that is not computed here, and what that is.
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "albert", "bert", "camembert", "clip", "deberta", "deberta-v2", "distilbert", "electra",
            "modernbert", "mpnet", "new", "nomic_bert", "roberta", "siglip", "xlm-roberta",
        ),
        _ENCODER,
    ),
    **dict.fromkeys(
        (
            "bart", "cohere_asr", "florence2", "mbart", "mt5", "nemotron_parse", "t5", "umt5",
            "whisper",
        ),
        _ENCODER_DECODER,
    ),
    **dict.fromkeys(("recurrent_gemma", "rwkv", "rwkv6", "rwkv7"), _NOT_RUN),
    **dict.fromkeys(
        ("alice_ai", "glm5_next", "glm5_next_text", "inkling_text", "olmo_hybrid", "plamo2",
         "qwen4_exp", "qwen4_exp_text"),
        _RECURRENT,
    ),
    **dict.fromkeys(
        ("deepseek_v4", "deepseek_v41", "hy_v4", "minimax_m3", "minimax_m3_text",
         "minimax_m3_vl", "minimax_m3_vl_text", "step5", "step5_vl"),
        _SPARSE,
    ),
    **dict.fromkeys(("dory", "hrm_text"), _LOOPS),
    **dict.fromkeys(("axk1", "minicpm3", "pangu_ultra_moe", "sarvam_mla"), _LATENT),
    "dots3_note": "has latent attention with windows",
    "RefinedWeb": "is Falcon in its first form; take its current configuration (falcon)",
    "RefinedWebModel": "is Falcon in its first form; take its current configuration (falcon)",
    "longcat_flash": "has two attention layers in each of its layers",
    "nemotron-nas": "has another attention in each of its layers",
    "step3p5": "has other heads in its layers with a window",
    "zamba": "repeats one attention layer among recurrent ones",
}  # fmt: skip

#: Layers by turns, where the file does not say which is which. As in ``layer_types``.
PERIODS: Mapping[str, tuple[str, ...]] = {
    "afmoe": (*["sliding_attention"] * 3, "full_attention"),
    "bamba": ("mamba",),
    "cohere2": (*["sliding_attention"] * 3, "full_attention"),
    "cohere2_moe": (*["sliding_attention"] * 3, "full_attention"),
    "cwm": ("full_attention", *["sliding_attention"] * 3),
    "exaone4": (*["sliding_attention"] * 3, "full_attention"),
    "exaone4_5_text": (*["sliding_attention"] * 3, "full_attention"),
    "exaone_moe": (*["sliding_attention"] * 3, "full_attention"),
    "gemma2": ("sliding_attention", "full_attention"),
    "gemma3_text": (*["sliding_attention"] * 5, "full_attention"),
    "gemma3n_text": (*["sliding_attention"] * 4, "full_attention"),
    "gemma4_text": (*["sliding_attention"] * 5, "full_attention"),
    "gemma4_unified_text": (*["sliding_attention"] * 5, "full_attention"),
    "gpt_oss": ("sliding_attention", "full_attention"),
    "granite_swa": ("full_attention", *["sliding_attention"] * 3),
    "granitemoe_swa": ("full_attention", *["sliding_attention"] * 3),
    "granitemoehybrid": ("mamba",),
    "kimi_linear": (*["linear_attention"] * 4, "full_attention"),
    "laguna": ("full_attention",),
    "llama4_text": (*["chunked_attention"] * 3, "full_attention"),
    "mellum": ("full_attention",),
    "minimax": ("full_attention", "linear_attention"),
    "olmo3": (*["sliding_attention"] * 3, "full_attention"),
    "qwen3_5_moe_text": (*["linear_attention"] * 3, "full_attention"),
    "qwen3_5_text": (*["linear_attention"] * 3, "full_attention"),
    "qwen3_next": (*["linear_attention"] * 3, "full_attention"),
    "vaultgemma": ("sliding_attention", "full_attention"),
    "falcon_h1": ("hybrid",),
    "falcon_mamba": ("mamba",),
    "mamba": ("mamba",),
    "mamba2": ("mamba",),
}

#: Families whose last layer sees everything, whatever its turn (Transformers,
#: models/gemma4/configuration_gemma4.py).
LAST_IS_FULL = frozenset({"gemma4_text", "gemma4_unified_text"})

#: Families with layers of several kinds whose file has to say which is which: without it every
#: layer would be taken for one that grows.
PATTERN_NEEDED = frozenset({
    "bailing_hybrid", "bailing_moe_linear", "mimo_v2", "mimo_v2_flash", "minimax_text_01",
    "nemotron_h", "zamba2",
})  # fmt: skip

#: Families that run each of their layers several times and keep a cache for each time: (the field
#: with how many times, the field with the window of all but the first; None: no window).
#: vLLM 0.33, model_executor/models/iquest_loopcoder.py; 0.20.2, ouro.py.
LOOPS: Mapping[str, tuple[str, str | None]] = {
    "iquestloopcoder": ("loop_num", "loop_window_size"),
    "ouro": ("total_ut_steps", None),
}

#: Families that have no window unless ``use_sliding_window`` says so.
WINDOW_OFF = frozenset({
    "minicpmo", "minicpmv", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl",
    "qwen2_vl_text", "qwen3", "qwen3_moe", "smollm3",
})  # fmt: skip

#: Families that carry a window's size in their files and do not use it.
WINDOW_UNUSED = frozenset({"phimoe", "llama4_text", "qwen3_5_text", "qwen3_5_moe_text"})

#: Families whose output projection is the embedding again unless the file says otherwise.
TIED = frozenset({
    "bloom", "cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "falcon", "falcon_mamba", "gemma",
    "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt2", "gpt_bigcode", "lfm2",
    "lfm2_moe", "mamba", "mpt", "opt", "smollm3", "starcoder2", "zamba2",
})  # fmt: skip
