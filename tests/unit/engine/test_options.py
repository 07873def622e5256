from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ai.backend.kvcache.engine.options import (
    TABLES,
    Choice,
    Effect,
    OptionTable,
    described,
    option_table,
)

#: What the parsers of these versions have (tests/engine/parsers/*_options.py).
CAPTURED = {
    "vllm": ("0.20.2", "0.32.0", "0.33.0"),
    "sglang": ("0.5.15", "0.5.23"),
}
RELEASES = [(package, version) for package, versions in CAPTURED.items() for version in versions]

VLLM = option_table("vllm")
SGLANG = option_table("sglang")


def captured(data: Path, package: str, version: str) -> Mapping[str, Any]:
    content: Mapping[str, Any] = json.loads(
        (data / f"options/{package}-{version}.json").read_text()
    )
    assert content["version"] == version
    return content


def given(table: OptionTable, *arguments: str) -> dict[str, str]:
    return {choice.name: choice.value for choice in table.chosen(arguments)}


@pytest.mark.parametrize(("package", "version"), RELEASES)
class TestEveryOption:
    def test_is_classified_in_all_spellings(self, data: Path, package: str, version: str) -> None:
        table = option_table(package)
        options = captured(data, package, version)["options"]
        assert len(options) > 200
        unknown = [name for names in options for name in names.split() if name not in table.options]
        assert unknown == []

    def test_has_one_meaning_in_all_spellings(self, data: Path, package: str, version: str) -> None:
        table = option_table(package)
        for names in captured(data, package, version)["options"]:
            known = {table.options[name][0] for name in names.split()}
            assert len(known) == 1, names

    def test_takes_as_many_words_as_the_table_says(
        self, data: Path, package: str, version: str
    ) -> None:
        table = option_table(package)
        for names, values in captured(data, package, version)["options"].items():
            known, _ = table.options[names.split()[0]]
            assert (known.values == "none") is (values == "none"), names
            if package == "vllm" or known.effect not in (Effect.NOTHING, Effect.ELSEWHERE):
                assert known.values == values.replace("optional", "one"), names

    def test_variable_is_classified(self, data: Path, package: str, version: str) -> None:
        table = option_table(package)
        variables = captured(data, package, version)["variables"]
        assert [name for name in variables if name not in table.variables] == []


@pytest.mark.parametrize("package", TABLES)
def test_every_row_has_a_reason(package: str) -> None:
    table = option_table(package)
    rows = [*(known for known, _ in table.options.values()), *table.variables.values()]
    assert all(len(known.because) > 5 for known in rows)


def test_no_table() -> None:
    with pytest.raises(KeyError):
        option_table("../vllm")


class TestSpellings:
    """What is the same to the engine is the same here."""

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--quantization", "fp8"],
            ["--quantization=fp8"],
            ["-q", "fp8"],
            ["-q=fp8"],
            ["-qfp8"],
            ["-q", "awq", "--quantization", "fp8"],
            ["--port", "8000", "--quantization", "fp8", "--enforce-eager"],
        ],
    )
    def test_of_an_option(self, arguments: list[str]) -> None:
        assert given(VLLM, *arguments) == {"--quantization": "fp8"}

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--kv-cache-dtype-skip-layers", "0", "1"],
            ["--kv_cache_dtype_skip_layers", "0", "1"],
            ["--kv-cache-dtype-skip", "0", "1"],
            ["--kv-cache-dtype-skip-layers", "5", "--kv-cache-dtype-skip-layers", "0", "1"],
        ],
    )
    def test_of_an_option_with_several_values(self, arguments: list[str]) -> None:
        (choice,) = VLLM.chosen(arguments)
        assert choice.name == "--kv-cache-dtype-skip-layers"
        assert given(VLLM, *arguments) == given(VLLM, "--kv-cache-dtype-skip-layers", "0", "1")
        assert given(VLLM, *arguments) != given(VLLM, "--kv-cache-dtype-skip-layers", "0", "2")
        assert given(VLLM, *arguments) != given(VLLM, "--kv-cache-dtype-skip-layers", "0")

    @pytest.mark.parametrize(
        ("arguments", "value"),
        [
            (["--enable-prompt-embeds"], "true"),
            (["--enable-prompt-embeds", "/models"], "true"),
            (["--enable_prompt_embeds"], "true"),
            (["--no-enable-prompt-embeds"], "false"),
            (["--disable-prompt-embeds"], "false"),
            (["--enable-prompt-embeds", "--no-enable-prompt-embeds"], "false"),
        ],
    )
    def test_of_a_flag(self, arguments: list[str], value: str) -> None:
        assert given(VLLM, *arguments) == {"--enable-prompt-embeds": value}

    def test_flag_whose_name_begins_with_disable(self) -> None:
        assert given(VLLM, "--disable-sliding-window") == {"--disable-sliding-window": "true"}
        assert given(VLLM, "--no-disable-sliding-window") == {"--disable-sliding-window": "false"}
        assert given(VLLM, "--enable-sliding-window") == {"--disable-sliding-window": "false"}

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--attention-backend", "FLASHINFER"],
            ["--attention-config.backend", "FLASHINFER"],
            ["-ac.backend", "FLASHINFER"],
            ["-ac.backend=FLASHINFER"],
            ["--attention_config.backend=FLASHINFER"],
            ["--attention-config", '{"backend": "FLASHINFER"}'],
            ["-ac", '{"backend":"FLASHINFER"}'],
        ],
    )
    def test_of_one_field_of_json(self, arguments: list[str]) -> None:
        (choice,) = VLLM.chosen(arguments)
        assert (choice.name, choice.value) == ("--attention-backend", "FLASHINFER")
        assert choice.effect is Effect.BYTES

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--spec-method", "ngram", "--spec-tokens", "3"],
            ["--speculative-config.method", "ngram", "-sc.num_speculative_tokens=3"],
            ["-sc", '{"num_speculative_tokens": 3, "method": "ngram"}'],
            ['--speculative-config={ \n"method":"ngram", "num_speculative_tokens":3}'],
        ],
    )
    def test_of_speculation(self, arguments: list[str]) -> None:
        assert given(VLLM, *arguments) == {"--spec-method": "ngram", "--spec-tokens": "3"}

    def test_nested_fields(self) -> None:
        flat = given(VLLM, "--hf-overrides.text_config.rope_theta", "5", "--hf-overrides.x", "[1]")
        assert flat == given(VLLM, "--hf-overrides", '{"x":[1],"text_config":{"rope_theta":5}}')
        assert flat != given(VLLM, "--hf-overrides", '{"x":[1],"text_config":{"rope_theta":6}}')

    def test_fields_that_are_lists(self) -> None:
        def ranks(*arguments: str) -> dict[str, str]:
            return given(VLLM, *arguments)

        both = ranks("--hf-overrides.x+", "1", "--hf-overrides.x+", "2")
        assert both == ranks("--hf-overrides.x+=1,2")
        assert both != ranks("--hf-overrides.x+", "2")

    def test_json_beside_its_own_fields_is_neither_alone(self) -> None:
        # vLLM takes the fields alone then, and which versions do is not known.
        whole, field = ["-sc", '{"method":"ngram","model":"m"}'], ["-sc.method", "ngram"]
        readings = [given(VLLM, *a) for a in (whole, field, [*whole, *field])]
        assert all(a != b for i, a in enumerate(readings) for b in readings[:i])

    def test_one_choice_in_two_ways(self) -> None:
        both = ["--spec-method", "ngram", "-sc.method", "suffix"]
        found = [described(VLLM.chosen(a)) for a in (both, both[:2], both[2:])]
        assert found == [
            {"--spec-method": ["ngram", "suffix"]},
            {"--spec-method": "ngram"},
            {"--spec-method": "suffix"},
        ]

    def test_one_value_with_a_blank_is_not_two(self) -> None:
        option = "--kv-cache-dtype-skip-layers"
        assert given(VLLM, option, "0 1") != given(VLLM, option, "0", "1")

    @pytest.mark.parametrize(
        "arguments",
        [["--tp", "8"], ["--tp-size=8"], ["--tensor-parallel-size", "8"], ["--ep", "8"]],
    )
    def test_sglang(self, arguments: list[str]) -> None:
        assert given(SGLANG, *arguments) == {}

    def test_sglangs_memory_layout(self) -> None:
        assert given(SGLANG, "--hicache-mem-lay", "page_first", "--hicache-io-backend=direct") == {
            "--hicache-mem-layout": "page_first",
            "--hicache-io-backend": "direct",
        }


class TestUnknown:
    """What nobody has classified counts."""

    def test_option(self) -> None:
        (choice,) = VLLM.chosen(["/models", "--from-the-future", "x", "--port", "1"])
        assert (choice.name, choice.effect) == ("--from-the-future", Effect.MEANING)
        others = [["--from-the-future", "y"], ["--from-the-future=x"], ["--from-the-future"]]
        assert all(VLLM.chosen(a)[0].value != choice.value for a in others)

    def test_all_that_was_said_of_it(self) -> None:
        twice = given(VLLM, "--new", "1", "--new", "2")
        assert twice != given(VLLM, "--new", "2")
        assert given(VLLM, "--new.x", "1") != given(VLLM, "--new.y", "1")

    def test_beginning_of_several(self) -> None:
        # --quantization and --quantization-config
        assert "--quant" in given(VLLM, "--quant", "fp8")
        # --max-num-seqs, --max-num-batched-tokens and others, none of which changes anything
        assert given(VLLM, "--max-num", "8") == {}

    @pytest.mark.parametrize("token", ["-1", "-0.5", "-1e-5", "-", "--"])
    def test_value_that_looks_like_an_option(self, token: str) -> None:
        assert set(given(VLLM, "--rope-theta", token)) == {"--rope-theta"}

    def test_variable(self) -> None:
        choices = VLLM.chosen_in({"VLLM_OF_THE_FUTURE": "1", "HOME": "/", "SGLANG_X": "1"})
        assert [(c.name, c.effect) for c in choices] == [("VLLM_OF_THE_FUTURE", Effect.MEANING)]

    def test_variable_of_lmcache(self) -> None:
        (choice,) = option_table("lmcache").chosen_in({"LMCACHE_NEW": "1", "LMCACHE_LOG_LEVEL": ""})
        assert choice.name == "LMCACHE_NEW"


SECRET = "hf_hunter2secret"


class TestSecrets:
    """What is chosen is stored in the folder and shown to others."""

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--api-key", SECRET],
            ["--api-key", "other", SECRET],
            [f"--api_key={SECRET}"],
            ["--hf-token", SECRET],
            ["--new-api-key", SECRET],
            [f"--new={SECRET}"],
            [f"--new.{SECRET}", "1"],
            [f"-p{SECRET}"],
            [f"--{SECRET}/x"],
            [f"-- {SECRET}"],
            ["--model-loader-extra-config", json.dumps({"secret_key": SECRET})],
            ["--model-loader-extra-config.s3_secret", SECRET],
            ["--speculative-config.model", f"https://user:{SECRET}@host/model"],
            ["--spec-model", f"https://user:{SECRET}@host/model"],
            ["--hf-overrides", f"{{{SECRET}"],
        ],
    )
    def test_of_arguments(self, arguments: list[str]) -> None:
        for table in (VLLM, SGLANG):
            assert SECRET not in str(table.chosen(arguments))

    @pytest.mark.parametrize(
        "name", ["VLLM_API_KEY", "VLLM_NEW_KEY", "LMCACHE_EXTRA_CONFIG", "SGLANG_NEW_TOKEN"]
    )
    def test_of_variables(self, name: str) -> None:
        for package in TABLES:
            found = option_table(package).chosen_in({name: json.dumps({"key": SECRET})})
            assert SECRET not in str(found)

    def test_a_hash_tells_values_apart(self) -> None:
        def value(text: str) -> str:
            (choice,) = VLLM.chosen(["--new", text])
            return choice.value

        assert value("a") != value("b")
        assert value("a") == value("a")
        assert len(value("a")) == len("sha256:") + 32


class TestEffects:
    def effect(self, table: OptionTable, name: str) -> Effect:
        return table.options[name][0].effect

    @pytest.mark.parametrize(
        ("name", "effect"),
        [
            ("--hf-config-path", Effect.REFUSED),
            ("--tokenizer", Effect.MEANING),
            ("--revision", Effect.MEANING),
            ("--code-revision", Effect.MEANING),
            ("--quantization-param-path", Effect.MEANING),
            ("--model-impl", Effect.MEANING),
            ("--mamba-cache-dtype", Effect.MEANING),
            ("--prefix-caching-hash-algo", Effect.MEANING),
            ("--mm-processor-kwargs", Effect.MEANING),
            ("--hf-overrides", Effect.MEANING),
            ("--kv-cache-metrics", Effect.NOTHING),
            ("--enable-expert-parallel", Effect.NOTHING),
            ("--logits-processors", Effect.NOTHING),
            ("--block-size", Effect.BYTES),
            ("--max-model-len", Effect.SOME_MODELS),
            ("--tensor-parallel-size", Effect.ELSEWHERE),
            ("--weight-transfer-config", Effect.REFUSED),
        ],
    )
    def test_of_vllms_options(self, name: str, effect: Effect) -> None:
        assert self.effect(VLLM, name) is effect

    @pytest.mark.parametrize(
        ("variable", "effect"),
        [
            ("VLLM_PP_LAYER_PARTITION", Effect.MEANING),
            ("VLLM_USE_V1", Effect.MEANING),
            ("VLLM_KV_CACHE_LAYOUT", Effect.BYTES),
            ("VLLM_ATTENTION_BACKEND", Effect.BYTES),
            ("VLLM_USE_V2_MODEL_RUNNER", Effect.BYTES),
            ("VLLM_LOGGING_LEVEL", Effect.NOTHING),
        ],
    )
    def test_of_vllms_variables(self, variable: str, effect: Effect) -> None:
        assert VLLM.variables[variable].effect is effect

    def test_reason_comes_along(self) -> None:
        (choice,) = VLLM.chosen(["--weight-transfer-config", "{}"])
        assert choice == Choice(
            "--weight-transfer-config",
            choice.value,
            Effect.REFUSED,
            "weights are exchanged while the engine runs, and blocks of earlier weights would be "
            "answered from",
        )
