from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


#: Names by which people call secrets, and some of their beginnings.
NAMES = st.sampled_from([
    "api-key", "api_key", "API_KEY", "OPENAI_API_KEY", "hf_token", "hf-token", "HF_TOKEN", "key",
    "token", "AWS_SECRET_ACCESS_KEY", "aws_access_key_id", "db-password", "PASSWORD", "PGPASSWORD",
    "client_secret", "x-api-key", "apikey", "ssl-keyfile-password",
])  # fmt: skip

#: A secret that appears in no name, with characters that a shell and JSON make something of.
SECRETS = st.builds(
    lambda middle: f"qqq{middle}zzz",
    st.text(alphabet="abc012-_.+/ '\"\\$;|&{}", max_size=12),
)


def json_text(secret: str) -> str:
    return secret.replace("\\", "\\\\").replace('"', '\\"')


#: How a secret comes into a list of words.
FORMS: Mapping[str, Callable[[str, str], list[str]]] = {
    "option": lambda name, s: ["vllm", "serve", f"--{name}", s, "--port", "1"],
    "second value": lambda name, s: ["vllm", "serve", f"--{name}", "first", s],
    "with a sign": lambda name, s: ["vllm", "serve", f"--{name}={s}"],
    "variable": lambda name, s: ["docker", "run", "-e", f"{name}={s}", "image"],
    "env": lambda name, s: ["env", f"{name}={s}", "vllm", "serve"],
    "line": lambda name, s: ["bash", "-c", f"vllm serve --{name} {shlex.quote(s)} --port 1"],
    "second in a line": lambda name, s: ["bash", "-c", f"vllm --{name} a \\\n {shlex.quote(s)}"],
    "variable in a line": lambda name, s: ["bash", "-c", f"export {name}={shlex.quote(s)}; vllm"],
    "field": lambda name, s: ["vllm", f'--extra={{"a": 1, "{name}": "{json_text(s)}"}}'],
}


class TestNoSecretSurvives:
    @pytest.mark.parametrize("form", FORMS)
    @given(name=NAMES, secret=SECRETS)
    def test_any_form(self, form: str, name: str, secret: str) -> None:
        shown = masked(FORMS[form](name, secret))
        assert "qqq" not in shown
        assert "zzz" not in shown

    @pytest.mark.parametrize(
        "word",
        [
            "https://user:qqq@host/x",
            "https://qqq@huggingface.co/x",
            "https://host/x?a=1&token=qqq&b=2",
            "s3://key:qqq@bucket",
            "Authorization: Bearer qqq",
            "authorization: qqq",
            "x-api-key: qqq",
            "Bearer qqq",
            "hf_qqqqqqqqqqqqqqqqqqqq",
            "sk-qqqqqqqqqqqqqqqqqqqq",
            "https://host/x?X-Amz-Signature=qqq",
            "--api-key 'qqq",
            "--api-key $'a\\' qqq'",
            'API_KEY=\\"a qqq\\" vllm',
            '{\\"api_key\\": \\"qqq\\"}',
            '{"api_keys": ["a", "qqq"]}',
            "{'token': 'qqq'}",
        ],
    )
    def test_in_a_word_and_in_a_line(self, word: str) -> None:
        for command in (["curl", word], ["bash", "-c", f"curl -H {word}"], [f"--header={word}"]):
            assert "qqq" not in masked(command)

    @given(st.lists(st.text(max_size=30), max_size=5))
    def test_any_text_is_taken(self, words: list[str]) -> None:
        assert len(masked_words(words)) == len(words)
