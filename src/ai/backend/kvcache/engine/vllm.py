"""What vLLM calls its options."""

from __future__ import annotations

from .arguments import Dialect

#: The file by which vLLM is told: the user's own config file with what an adapter adds.
CONFIG_FILE = "vllm.yaml"

#: The user's own alone, for a start that has to do without KV cache.
CONFIG_ALONE_FILE = "vllm-alone.yaml"

VLLM = Dialect(
    values={
        "--block-size": "block_size",
        "--config": "config",
        "--data-parallel-size": "data_parallel",
        "-dp": "data_parallel",
        "--decode-context-parallel-size": "decode_context_parallel",
        "-dcp": "decode_context_parallel",
        "--dtype": "dtype",
        "--gpu-memory-utilization": "gpu_memory_utilization",
        "--hf-overrides": "hf_overrides",
        "--kv-cache-dtype": "kv_cache_dtype",
        "--max-model-len": "max_model_len",
        "--model": "model",
        "--pipeline-parallel-size": "pipeline_parallel",
        "-pp": "pipeline_parallel",
        "--served-model-name": "served_model_name",
        "--tensor-parallel-size": "tensor_parallel",
        "-tp": "tensor_parallel",
    },
    value_changing=frozenset({
        "--hf-overrides",
        "--load-format",
        "--quantization",
        "-q",
        "--rope-scaling",
        "--rope-theta",
        "--speculative-config",
        "-sc",
    }),
    draft_options=frozenset({"--speculative-config", "-sc"}),
    flags={
        "--calculate-kv-scales": ("computes_kv_scales", True),
        "--no-calculate-kv-scales": ("computes_kv_scales", False),
        "--enable-lora": ("lora", True),
        "--no-enable-lora": ("lora", False),
        "--enable-prefix-caching": ("prefix_caching", True),
        "--no-enable-prefix-caching": ("prefix_caching", False),
        "--enable-sleep-mode": ("sleep_mode", True),
        "--no-enable-sleep-mode": ("sleep_mode", False),
    },
    connectors=frozenset({
        "--kv-offloading-backend",
        "--kv-offloading-size",
        "--kv-transfer-config",
    }),
    ignores_config_with_equals=True,
)
