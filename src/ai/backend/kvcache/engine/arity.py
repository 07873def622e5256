"""How many values vLLM's options take: what tells a model from the value of an option.

Read from the parsers of vLLM 0.20.2, 0.32.0 and 0.33.0. An option that is not known counts as one
with a value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Beginnings of options without a value.
_FLAG = re.compile(r"--(?:enable|disable|no)-.*")
_NO_FLAGS = frozenset({"--disable-access-log-for-endpoints"})

_FLAGS = frozenset({
    "--aggregate-engine-logging", "--allow-credentials", "--allow-deprecated-quantization",
    "--async-scheduling", "--calculate-kv-scales", "--cohere-is-reasoning-model",
    "--cudagraph-metrics", "--data-parallel-external-lb", "--data-parallel-hybrid-lb",
    "--data-parallel-multi-port-external-lb", "--dcp-q-replicate", "--enforce-eager",
    "--exclude-tools-when-tool-choice-none", "--fail-on-environ-validation",
    "--fully-sharded-loras", "--grpc", "--headless", "--help", "--interleave-mm-strings",
    "--jit-monitor-verbose", "--kv-cache-metrics", "--kv-sharing-fast-prefill",
    "--language-model-only", "--log-error-stack", "--long-prefill-token-threshold-adaptive",
    "--mm-device-do-normalize", "--mm-encoder-only", "--monokernel", "--numa-bind",
    "--ray-workers-use-nsight", "--return-sampling-mask", "--return-tokens-as-token-ids",
    "--scheduler-reserve-full-isl", "--skip-mm-profiling", "--skip-tokenizer-init",
    "--sleep-mode-offload-cudagraph", "--specialize-active-lora", "--swa-bounded-replay",
    "--tokens-only", "--trust-remote-code", "--trust-request-chat-template",
    "--trust-request-mm-kwargs", "--use-fp64-gumbel", "--use-replayssm", "--use-tqdm-on-load",
    "-dpe", "-dph", "-dpm", "-ep", "-h",
})  # fmt: skip

#: Options that take all words up to the next option.
_MANY = frozenset({
    "--allowed-media-domains", "--api-key", "--collect-detailed-traces", "--cpu-offload-params",
    "--cudagraph-capture-sizes", "--hf-token", "--ignore-patterns",
    "--kv-cache-dtype-skip-layers", "--logits-processors", "--lora-modules",
    "--lora-target-modules", "--numa-bind-cpus", "--numa-bind-nodes", "--offload-params",
    "--served-model-name", "--sleep-preserve-parameter-names",
})  # fmt: skip

#: What names the model, by the spellings of all programs.
_MODEL_OPTIONS = frozenset({"--model", "--model-path"})


def takes_value(option: str) -> bool:
    """Whether the word behind the option belongs to it."""
    option = option.replace("_", "-")
    if option in _FLAGS or "=" in option or re.fullmatch(r"-O.+", option):
        return False
    return option in _NO_FLAGS or not _FLAG.fullmatch(option)


def option_of(arguments: Sequence[str], place: int) -> str | None:
    """The option that the word at a place is a value of; None where it is none's."""
    at = place - 1
    while at >= 0 and not arguments[at].startswith("-"):
        at -= 1
    if at < 0 or not takes_value(arguments[at]):
        return None
    is_next = at == place - 1
    return arguments[at] if is_next or arguments[at].replace("_", "-") in _MANY else None


def positional_place(arguments: Sequence[str]) -> int | None:
    """The first argument that belongs to no option, as argparse finds it. It names the model."""
    at = 0
    while at < len(arguments):
        token = arguments[at]
        if not token.startswith("-"):
            return at
        at += 1
        if takes_value(token) and not _is_option(arguments[at : at + 1]):
            at += 1
            while token.replace("_", "-") in _MANY and not _is_option(arguments[at : at + 1]):
                at += 1
    return None


def _is_option(word: Sequence[str]) -> bool:
    """Whether no word is left, or one that cannot be a value. A negative number can."""
    return not word or (word[0].startswith("-") and not re.fullmatch(r"-[0-9.]+", word[0]))


def model_place(arguments: Sequence[str]) -> tuple[int, str] | None:
    """(the argument that names the model, what stands in front of the name in it)."""
    if (positional := positional_place(arguments)) is not None:
        return positional, ""
    for at, token in enumerate(arguments):
        option, equals, _ = token.partition("=")
        if option.replace("_", "-") not in _MODEL_OPTIONS:
            continue
        if equals:
            return at, f"{option}="
        if at + 1 < len(arguments):
            return at + 1, ""
    return None
