"""What vLLM calls its options."""

from __future__ import annotations

import attrs

from .arguments import Dialect
from .options import option_table

#: The file by which vLLM is told: the user's own config file with what an adapter adds.
CONFIG_FILE = "vllm.yaml"

#: The user's own alone, for a start that has to do without KV cache.
CONFIG_ALONE_FILE = "vllm-alone.yaml"

VLLM = Dialect(
    values={
        "--attention-backend": "attention_backend",
        "--attention-config.backend": "attention_backend",
        "-ac.backend": "attention_backend",
        "--block-size": "block_size",
        "--config": "config",
        "--cpu-offload-gb": "cpu_offload_gb",
        "--data-parallel-size": "data_parallel",
        "-dp": "data_parallel",
        "--data-parallel-size-local": "data_parallel_local",
        "-dpl": "data_parallel_local",
        "--decode-context-parallel-size": "decode_context_parallel",
        "-dcp": "decode_context_parallel",
        "--dtype": "dtype",
        "--gpu-memory-utilization": "gpu_memory_utilization",
        "--hf-overrides": "hf_overrides",
        "--kv-cache-dtype": "kv_cache_dtype",
        "--kv-cache-memory-bytes": "kv_cache_memory_bytes",
        "--max-model-len": "max_model_len",
        "--max-num-batched-tokens": "max_num_batched_tokens",
        "--max-num-seqs": "max_num_seqs",
        "--model": "model",
        "--num-gpu-blocks-override": "num_gpu_blocks_override",
        "--pipeline-parallel-size": "pipeline_parallel",
        "-pp": "pipeline_parallel",
        "--prefill-context-parallel-size": "prefill_context_parallel",
        "-pcp": "prefill_context_parallel",
        "--served-model-name": "served_model_name",
        "--swap-space": "swap_space",
        "--tensor-parallel-size": "tensor_parallel",
        "-tp": "tensor_parallel",
    },
    table=option_table("vllm"),
    draft_options=frozenset({
        "--speculative-config",
        "-sc",
        "--spec-method",
        "--spec-model",
        "--spec-tokens",
    }),
    flags={
        "--calculate-kv-scales": ("computes_kv_scales", True),
        "--no-calculate-kv-scales": ("computes_kv_scales", False),
        "--enable-lora": ("lora", True),
        "--lora-modules": ("lora", True),
        "--no-enable-lora": ("lora", False),
        # From vLLM 0.33 on, each --enable- has a --disable- beside it.
        "--disable-lora": ("lora", False),
        "--disable-prefix-caching": ("prefix_caching", False),
        "--disable-prompt-embeds": ("enable_prompt_embeds", False),
        "--disable-sleep-mode": ("sleep_mode", False),
        "--enable-prompt-embeds": ("enable_prompt_embeds", True),
        "--no-enable-prompt-embeds": ("enable_prompt_embeds", False),
        "--enforce-eager": ("enforce_eager", True),
        "--no-enforce-eager": ("enforce_eager", False),
        "--enable-prefix-caching": ("prefix_caching", True),
        "--no-enable-prefix-caching": ("prefix_caching", False),
        "--enable-cumem-allocator": ("cumem_allocator", True),
        "--no-enable-cumem-allocator": ("cumem_allocator", False),
        "--language-model-only": ("text_only", True),
        "--no-language-model-only": ("text_only", False),
        "--enable-sleep-mode": ("sleep_mode", True),
        "--no-enable-sleep-mode": ("sleep_mode", False),
    },
    weights_changing=frozenset({
        "--cpu-offload-params",
        "--enable-expert-parallel",
        "--load-format",
        "--offload-backend",
        "--offload-group-size",
        "--offload-num-in-group",
        "--offload-params",
        "--offload-prefetch-step",
        "--quantization",
        "-q",
    }),
    memory_adding=frozenset({
        "--elastic-ep-max-dp-size",
        "--enable-elastic-ep",
        "--mm-ipc-gpu-memory-gb",
        "--enable-dbo",
        "--enable-eplb",
        "--kv-cache-dtype-skip-layers",
        "--ubatch-size",
    }),
    graph_changing=frozenset({
        "--compilation-config",
        "-cc",
        "--cudagraph-capture-sizes",
        "--max-cudagraph-capture-size",
        "--optimization-level",
        "--performance-mode",
        "-O",
        "-O0",
        "-O1",
        "-O2",
        "-O3",
    }),
    connectors=frozenset({
        "--kv-offloading-backend",
        "--kv-offloading-size",
        "--kv-transfer-config",
    }),
    other_nodes=frozenset({
        "--data-parallel-address",
        "-dpa",
        "--data-parallel-external-lb",
        "-dpe",
        "--data-parallel-hybrid-lb",
        "-dph",
        "--data-parallel-multi-port-external-lb",
        "-dpm",
        "--data-parallel-rank",
        "-dpn",
        "--data-parallel-start-rank",
        "-dpr",
        "--headless",
        "--nnodes",
        "-n",
    }),
    ignores_config_with_equals=True,
    attached=frozenset({"-n", "-q", "-r"}),
)

#: Dynamo's worker takes vLLM's options, and names its own way to keep KV cache besides.
DYNAMO = attrs.evolve(VLLM, connectors=VLLM.connectors | {"--connector"})
