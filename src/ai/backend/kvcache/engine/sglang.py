"""What SGLang calls its options."""

from __future__ import annotations

from .arguments import Dialect
from .options import option_table

SGLANG = Dialect(
    values={
        "--attention-backend": "attention_backend",
        "--config": "config",
        "--context-length": "max_model_len",
        "--data-parallel-size": "data_parallel",
        "--dcp-size": "decode_context_parallel",
        "--decode-context-parallel-size": "decode_context_parallel",
        "--dp-size": "data_parallel",
        "--dtype": "dtype",
        "--json-model-override-args": "hf_overrides",
        "--kv-cache-dtype": "kv_cache_dtype",
        "--model": "model",
        "--model-path": "model",
        "--page-size": "block_size",
        "--pipeline-parallel-size": "pipeline_parallel",
        "--pp-size": "pipeline_parallel",
        "--served-model-name": "served_model_name",
        "--tensor-parallel-size": "tensor_parallel",
        "--tp-size": "tensor_parallel",
    },
    table=option_table("sglang"),
    draft_options=frozenset({
        "--speculative-algorithm",
        "--speculative-draft-model",
        "--speculative-draft-model-path",
    }),
    flags={
        "--disable-cuda-graph": ("enforce_eager", True),
        "--disable-radix-cache": ("prefix_caching", False),
        "--enable-lora": ("lora", True),
        "--lora-paths": ("lora", True),
    },
    weights_changing=frozenset({"--cpu-offload-gb", "--quantization"}),
    memory_adding=frozenset(),
    graph_changing=frozenset({"--cuda-graph-bs", "--cuda-graph-max-bs"}),
    connectors=frozenset({
        "--enable-hicache",
        "--enable-hierarchical-cache",
        "--enable-lmcache",
        "--hicache-storage-backend",
    }),
    other_nodes=frozenset({"--nnodes"}),
    ignores_config_with_equals=True,
)
