from __future__ import annotations

import pytest

from ai.backend.kvcache.plan.masks import masked, masked_line, masked_settings, masked_words


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


def test_settings_at_any_depth() -> None:
    assert masked_settings({
        "api-key": ["sk-1", "sk-2"],
        "api_key": "sk-1",
        "seed": 7,
        "kv-transfer-config": {"kv_role": "kv_both", "extra": [{"HF_TOKEN": "hf-1"}]},
        "line": "--port 1 --api-key sk-1",
    }) == {
        "api-key": "***",
        "api_key": "***",
        "seed": 7,
        "kv-transfer-config": {"kv_role": "kv_both", "extra": [{"HF_TOKEN": "***"}]},
        "line": "--port 1 --api-key ***",
    }


def test_a_command_stays_a_list() -> None:
    command = ["vllm", "serve", "--api-key", "sk-1", "--port", "1"]
    assert masked_words(command) == ["vllm", "serve", "--api-key", "***", "--port", "1"]


def test_a_line() -> None:
    assert masked_line("HF_TOKEN=hf-1 vllm serve --api-key=sk-1") == (
        "HF_TOKEN=*** vllm serve --api-key=***"
    )
