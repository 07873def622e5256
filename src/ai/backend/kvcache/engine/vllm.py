"""Reads how vLLM is really started, with vLLM's own precedence.

A later argument wins over an earlier one, the command line over the file that ``--config`` names,
that file over vLLM's defaults (vLLM, utils/argparse_utils.py, FlexibleArgumentParser).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..errors import StartCommandError

#: Options whose value is read, by every spelling vLLM accepts (after "_" became "-").
_VALUE_OPTIONS: Mapping[str, str] = {
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
    "--served-model-name": "served_model_name",
    "-pp": "pipeline_parallel",
    "--tensor-parallel-size": "tensor_parallel",
    "-tp": "tensor_parallel",
}

#: Options that change what the layers compute or which layers there are, and so what a cached
#: block means.
_VALUE_CHANGING_OPTIONS = frozenset({
    "--hf-overrides",
    "--load-format",
    "--quantization",
    "-q",
    "--rope-scaling",
    "--rope-theta",
    "--speculative-config",
    "-sc",
})

#: Options without a value, each with its opposite (``--no-…``), and vLLM's defaults.
_FLAGS: Mapping[str, bool] = {
    "calculate-kv-scales": False,
    "enable-lora": False,
    "enable-prefix-caching": True,
    "enable-sleep-mode": False,
}

#: Options that already say where KV cache goes; next to them nothing is added.
_CONNECTOR_OPTIONS = frozenset({
    "--kv-offloading-backend",
    "--kv-offloading-size",
    "--kv-transfer-config",
})

#: Backend.AI turns these into arguments of the model command, in this order, before
#: VLLM_EXTRA_ARGS (ai.backend.agent.legacy_inference_env).
_ARGUMENTS_BY_ENVIRONMENT: Mapping[str, str] = {
    "VLLM_QUANTIZATION": "--quantization",
    "VLLM_TP_SIZE": "--tensor-parallel-size",
    "VLLM_PP_SIZE": "--pipeline-parallel-size",
}

EXTRA_ARGS = "VLLM_EXTRA_ARGS"

#: vLLM, utils/argparse_utils.py and engine/arg_utils.py, human_readable_int.
_MULTIPLIERS: Mapping[str, int] = {
    "": 1,
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip


@attrs.frozen
class EngineArguments:
    """What vLLM was told, as far as the KV cache depends on it. None: not said."""

    model: str | None
    served_model_name: str | None
    """What clients call it; the first of several. None: as the model itself."""
    config_file: str | None
    ignored_config: str | None
    """A ``--config=FILE``: vLLM looks for the option and its value apart and ignores this form."""
    tensor_parallel: int | None
    pipeline_parallel: int
    decode_context_parallel: int
    max_model_len: int | None
    gpu_memory_utilization: str | None
    dtype: str
    kv_cache_dtype: str
    value_changes: Mapping[str, str]
    """Arguments that change what is computed, such as rope or quantization overrides."""
    connector: str | None
    """The option by which the user already configured a KV connector or offloading."""
    block_size: int | None
    data_parallel: int
    hf_overrides: str | None
    """JSON that changes the model's configuration."""
    lora: bool
    prefix_caching: bool
    sleep_mode: bool
    computes_kv_scales: bool
    """Scales of an fp8 cache are computed from the first requests of each start."""

    @property
    def speculates(self) -> bool:
        """Whether a draft model runs beside."""
        options = {option.partition(".")[0] for option in self.value_changes}
        return not options.isdisjoint(("--speculative-config", "-sc"))


def environment_arguments(environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The arguments that Backend.AI makes of VLLM_* variables: (single options, extra arguments).

    Raises:
        StartCommandError: VLLM_EXTRA_ARGS has unbalanced quotes.
    """
    options = [
        token
        for name, option in _ARGUMENTS_BY_ENVIRONMENT.items()
        if environ.get(name)
        for token in (option, environ[name])
    ]
    try:
        return options, shlex.split(environ.get(EXTRA_ARGS, ""))
    except ValueError as e:
        raise StartCommandError(f"{EXTRA_ARGS} has unbalanced quotes: {e}") from e


def arguments_of_config(config: Mapping[str, Any]) -> list[str]:
    """A vLLM config file's content as vLLM turns it into arguments; nested values stay opaque."""
    arguments: list[str] = []
    for key, value in config.items():
        if value is False or value == []:
            continue
        arguments.append(f"--{key}")
        if value is not True:
            arguments.append(str(value))
    return arguments


def _option_and_value(token: str) -> tuple[str, str | None]:
    option, equals, value = token.partition("=")
    return option.replace("_", "-"), value if equals else None


def _number(option: str, value: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)", value)
    number = float(match[1]) * _MULTIPLIERS[match[2]] if match else 0
    if number < 1:
        raise StartCommandError(f"{option} {value!r} is not a positive number")
    return int(number)


def _optional_number(option: str, value: str | None) -> int | None:
    return None if value is None else _number(option, value)


def _max_model_len(value: str | None) -> int | None:
    # "auto" and -1 let vLLM choose a length that fits; the model's own is the bound.
    return None if value in (None, "auto", "-1") else _number("--max-model-len", value)


def _utilization(value: str | None) -> str | None:
    if value is None:
        return None
    try:
        valid = 0 < float(value) <= 1
    except ValueError:
        valid = False
    if not valid:
        raise StartCommandError(f"--gpu-memory-utilization {value!r} is not between 0 and 1")
    return value


def read_arguments(arguments: Sequence[str]) -> EngineArguments:
    """Reads vLLM's arguments, those of a config file first.

    Raises:
        StartCommandError: an option lacks its value, or the value cannot be understood.
    """
    values: dict[str, str] = {}
    changes: dict[str, str] = {}
    connector: str | None = None
    ignored_config: str | None = None
    flags = dict(_FLAGS)
    if arguments and not arguments[0].startswith("-"):
        values["model"] = arguments[0]
    for index, token in enumerate(arguments):
        if not token.startswith("-"):
            continue
        option, value = _option_and_value(token)
        if option == "--config" and value is not None:
            ignored_config = token
            continue
        if value is None and index + 1 < len(arguments):
            value = arguments[index + 1]
        if name := _VALUE_OPTIONS.get(option):
            if value is None:
                raise StartCommandError(f"{option} lacks its value")
            values[name] = value
        if (whole := option.partition(".")[0]) in _VALUE_CHANGING_OPTIONS:
            changes[option] = value or ""
        elif whole in _CONNECTOR_OPTIONS:
            connector = whole
        elif (flag := option.removeprefix("--").removeprefix("no-")) in flags:
            flags[flag] = not option.startswith("--no-")
    return EngineArguments(
        model=values.get("model"),
        served_model_name=values.get("served_model_name"),
        config_file=values.get("config"),
        ignored_config=ignored_config,
        tensor_parallel=_optional_number("--tensor-parallel-size", values.get("tensor_parallel")),
        pipeline_parallel=_number("--pipeline-parallel-size", values.get("pipeline_parallel", "1")),
        decode_context_parallel=_number(
            "--decode-context-parallel-size", values.get("decode_context_parallel", "1")
        ),
        max_model_len=_max_model_len(values.get("max_model_len")),
        gpu_memory_utilization=_utilization(values.get("gpu_memory_utilization")),
        dtype=values.get("dtype", "auto"),
        kv_cache_dtype=values.get("kv_cache_dtype", "auto"),
        value_changes=changes,
        connector=connector,
        block_size=_optional_number("--block-size", values.get("block_size")),
        data_parallel=_number("--data-parallel-size", values.get("data_parallel", "1")),
        hf_overrides=values.get("hf_overrides"),
        lora=flags["enable-lora"],
        prefix_caching=flags["enable-prefix-caching"],
        sleep_mode=flags["enable-sleep-mode"],
        computes_kv_scales=flags["calculate-kv-scales"],
    )
