from __future__ import annotations

import pytest

from ai.backend.kvcache.plan.masks import masked


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["vllm", "serve", "--api-key", "sk-1", "-tp", "8"], "vllm serve --api-key '***' -tp 8"),
        (["vllm", "serve", "--api-key=sk 1"], "vllm serve '--api-key=***'"),
        (["vllm", "--hf_token", "t", "--hf-token=t"], "vllm --hf_token '***' '--hf-token=***'"),
        (
            ["bash", "-c", "HF_TOKEN=t KEY='a b' exec vllm serve --api-key 'a b' --port 1"],
            "bash -c 'HF_TOKEN=*** KEY=*** exec vllm serve --api-key *** --port 1'",
        ),
        # The names of these only look like it.
        (
            ["vllm", "--max-num-batched-tokens", "8192", "--tokenizer", "x", "--enable-keys=1"],
            "vllm --max-num-batched-tokens 8192 --tokenizer x --enable-keys=1",
        ),
        (
            ["PYTHONHASHSEED=1", "--served-model-name", "m"],
            "PYTHONHASHSEED=1 --served-model-name m",
        ),
        ([], ""),
    ],
)
def test_values_that_are_called_secret(command: list[str], line: str) -> None:
    assert masked(command) == line
