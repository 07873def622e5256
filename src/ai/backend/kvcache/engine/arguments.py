"""Reads how an engine is really started, with the engine's own precedence.

A later argument wins over an earlier one, the command line over the file that ``--config`` names,
that file over the engine's defaults (vLLM, utils/argparse_utils.py, FlexibleArgumentParser; SGLang,
srt/server_args_config_parser.py).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..errors import StartCommandError
from .amounts import amount, fraction, utilization, whole_number
from .arity import option_of, positional_place
from .expansion import Argument
from .hf_overrides import Overrides
from .options import Choice, OptionTable

#: Options by which KV cache is already configured, whatever stands behind. SGLang's --hicache-io-…
#: and --hicache-mem-… say how blocks move and lie, and switch nothing on; the namespace has them.
_CONNECTOR = re.compile(
    r"--(?:kv-(?:transfer|connector|offload)|lmcache-|hicache-(?!io-|mem-)|"
    r"enable-(?:lmcache|hi(?:cache|era)))"
)

#: The same, and variables of the user's own, in a text that nobody can split into arguments.
_CONNECTOR_IN_TEXT = re.compile(
    rf"(?:{_CONNECTOR.pattern})[\w-]*|\b(?:LMCACHE_(?:CONFIG_FILE|USE_|LOCAL_|REMOTE_|GDS_)|"
    r"DYN_KVBM_|SGLANG_HICACHE_)\w*"
)

#: Backend.AI turns these into arguments of the model command, in this order and whatever engine it
#: runs, before the words of EXTRA_ARGUMENTS (ai.backend.agent.legacy_inference_env).
_ARGUMENTS_BY_ENVIRONMENT: Mapping[str, str] = {
    "VLLM_QUANTIZATION": "--quantization",
    "VLLM_TP_SIZE": "--tensor-parallel-size",
    "VLLM_PP_SIZE": "--pipeline-parallel-size",
    "SGLANG_QUANTIZATION": "--quantization",
    "SGLANG_TP_SIZE": "--tensor-parallel-size",
    "SGLANG_PP_SIZE": "--pipeline-parallel-size",
}

#: Shorter beginnings of options are not looked up: two dashes and two letters.
_SHORTEST_BEGINNING = 4

#: With these values an option of several nodes means one.
_ONE_NODE = frozenset({("--nnodes", "1"), ("-n", "1")})

EXTRA_ARGUMENTS = ("VLLM_EXTRA_ARGS", "SGLANG_EXTRA_ARGS")


@attrs.frozen
class Dialect:
    """What one engine calls its options."""

    values: Mapping[str, str]
    """Option → field of EngineArguments that holds its value. "_" in options counts as "-"."""
    table: OptionTable
    """All options, with what they change of cached blocks."""
    draft_options: frozenset[str]
    """The options that have a draft model run beside."""
    flags: Mapping[str, tuple[str, bool]]
    """Option whose presence says it all → the field it sets and to what. A field is False at first,
    prefix caching is True."""
    weights_changing: frozenset[str]
    """Options after which less of the weights may lie on a GPU than the checkpoint's size says."""
    memory_adding: frozenset[str]
    """Options after which the engine takes more of a GPU than can be said beforehand."""
    graph_changing: frozenset[str]
    """Options that change how many CUDA graphs there are, or how large."""
    connectors: frozenset[str]
    """Options that already say where KV cache goes; next to them nothing is added."""
    other_nodes: frozenset[str]
    """Options by which the engine is one of several that run on several nodes."""
    ignores_config_with_equals: bool
    """Whether ``--config=FILE`` is not noticed: option and value are looked for apart."""
    attached: frozenset[str] = frozenset()
    """Options of one letter, whose value may stand in the same word: ``-qfp8``."""

    def option(self, written: str) -> str:
        """The option that is meant: engines take the beginning of one, where it is no other's."""
        written = written.replace("_", "-")
        known = (
            *self.values,
            *self.table.options,
            *self.flags,
            *self.weights_changing,
            *self.memory_adding,
            *self.graph_changing,
            *self.connectors,
        )
        if written in known or not written.startswith("--") or len(written) < _SHORTEST_BEGINNING:
            return written
        meant = {option for option in known if option.startswith(written)}
        return meant.pop() if len(meant) == 1 else written

    def matters(self, written: str) -> bool:
        """Whether a value of the option, with a dot in it or not, has a part in any decision."""
        whole = self.option(written.partition(".")[0])
        return whole in self.values or not self.table.changes_nothing(whole)


@attrs.frozen
class EngineArguments:
    """What an engine was told, as far as the KV cache depends on it. None: not said."""

    model: str | None
    served_model_name: str | None
    """What clients call it; the first of several. None: as the model itself."""
    config_file: str | None
    ignored_config: str | None
    """A ``--config=FILE`` in a form that the engine ignores."""
    tensor_parallel: int | None
    pipeline_parallel: int
    decode_context_parallel: int
    max_model_len: int | None
    fits_length: bool
    """Whether the engine shortens the longest context to what its pool holds."""
    gpu_memory_utilization: str | None
    dtype: str
    kv_cache_dtype: str
    choices: tuple[Choice, ...]
    """What has an effect on cached blocks, such as rope or quantization overrides."""
    draft: Mapping[str, str]
    """What was said of a draft model, by option."""
    connector: str | None
    """The option by which the user already configured a KV connector or offloading."""
    block_size: int | None
    data_parallel: int
    hf_overrides: Mapping[str, Any]
    """What changes the model's configuration, in levels as the configuration has them."""
    lora: bool
    prefix_caching: bool
    sleep_mode: bool
    computes_kv_scales: bool
    """Scales of an fp8 cache are computed from the first requests of each start."""
    prefill_context_parallel: int = 1
    kv_cache_memory_bytes: int | None = None
    """Of each GPU, for the pool: vLLM ignores the utilization then (vLLM, config/cache.py)."""
    num_gpu_blocks_override: int | None = None
    """How many blocks the pool has, whatever was measured."""
    cpu_offload_gb: float = 0.0
    """GiB of weights of each GPU that stay in host memory."""
    swap_space: float | None = None
    """GiB of host memory of each GPU for swapped blocks; vLLM has no such option from 0.18 on."""
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    enforce_eager: bool = False
    """Whether CUDA graphs are off."""
    weights_changes: tuple[str, ...] = ()
    memory_additions: tuple[str, ...] = ()
    graph_changes: tuple[str, ...] = ()
    """The options of these kinds that were given."""
    enable_prompt_embeds: bool = False
    attention_backend: str | None = None
    other_nodes: str | None = None
    """The option by which the engine runs on several nodes."""
    cumem_allocator: bool = False
    """Whether GPU memory is allocated so that sleep mode can take it away."""
    text_only: bool = False
    """Whether a multimodal model takes text alone."""

    @property
    def speculates(self) -> bool:
        """Whether a draft model runs beside."""
        return bool(self.draft)


def extra_arguments(environ: Mapping[str, str], variable: str) -> list[str]:
    """The words of one of EXTRA_ARGUMENTS.

    Raises:
        StartCommandError: it has unbalanced quotes.
    """
    try:
        return shlex.split(environ.get(variable, ""))
    except ValueError as e:
        raise StartCommandError(f"{variable} has unbalanced quotes: {e}") from e


def without_config(arguments: Sequence[str]) -> list[str]:
    """The arguments less every ``--config FILE``."""
    kept: list[str] = []
    tokens = iter(arguments)
    for token in tokens:
        if token == "--config":
            next(tokens, None)
        else:
            kept.append(token)
    return kept


def environment_arguments(environ: Mapping[str, str]) -> list[str]:
    """The arguments that Backend.AI makes of variables and puts behind the start command.

    Raises:
        StartCommandError: extra arguments have unbalanced quotes.
    """
    options = [
        token
        for name, option in _ARGUMENTS_BY_ENVIRONMENT.items()
        if environ.get(name)
        for token in (option, environ[name])
    ]
    return options + [w for name in EXTRA_ARGUMENTS for w in extra_arguments(environ, name)]


def connector_in(texts: Sequence[str]) -> str | None:
    """The name by which a command that cannot be read already configures KV cache."""
    for text in texts:
        # Options have "-" or "_" between their words.
        for readable in (text, text.replace("_", "-")):
            if found := _CONNECTOR_IN_TEXT.search(readable):
                return found[0]
    return None


def arguments_of_config(config: Mapping[str, Any]) -> list[str]:
    """A config file's content as vLLM turns it into arguments (load_config_file).

    vLLM before 0.29 drops ``false``, later ones look for an option that begins with ``--no-``. Read
    as the later ones do it, prefix caching counts as off where it may be on, and no more.
    """
    arguments: list[str] = []
    for key, value in config.items():
        if value is False:
            arguments.append(f"--no-{key}")
        elif value is True:
            arguments.append(f"--{key}")
        elif isinstance(value, list):
            arguments += [f"--{key}", *map(str, value)] if value else []
        elif isinstance(value, dict):
            arguments += [f"--{key}", json.dumps(value, default=str)]
        else:
            arguments += [f"--{key}", str(value)]
    return arguments


def certain_arguments(arguments: Sequence[Argument], dialect: Dialect) -> list[str]:
    """The arguments as text, where what is not known of them has a part in no decision.

    Raises:
        StartCommandError: a part that is not known could be an option, or the value of one that
            matters. The message says which, in words to follow "because".
    """
    texts: list[str] = []
    for place, argument in enumerate(arguments):
        option, equals, _ = argument.text.partition("=")
        if argument.is_certain and argument.text.isspace():
            raise StartCommandError(
                "an argument is nothing but blanks, as a backslash in front of a blank makes one"
            )
        if not argument.is_certain:
            if not (equals and re.fullmatch(r"--[A-Za-z][\w.-]*", option)):
                option = option_of([a.text for a in arguments], place) or ""
            if not option or dialect.matters(option):
                raise StartCommandError(f"it is not known what {argument.text[:80]} is")
        texts.append(argument.text)
    return texts


class _Values:
    """The last value of each field, and by which option it was given."""

    def __init__(self) -> None:
        self._given: dict[str, tuple[str, str]] = {}

    def give(self, field: str, option: str, value: str) -> None:
        self._given[field] = option, value

    def text(self, field: str) -> str | None:
        return self._given[field][1] if field in self._given else None

    def option(self, field: str) -> str:
        return self._given[field][0] if field in self._given else field

    def number(self, field: str) -> int | None:
        if field not in self._given:
            return None
        return whole_number(*self._given[field])

    def amount(self, field: str) -> int | None:
        return amount(*self._given[field]) if field in self._given else None

    def fraction(self, field: str) -> float | None:
        return fraction(*self._given[field]) if field in self._given else None

    def fits(self, field: str) -> bool:
        """Whether the engine may choose a length that fits; the model's own is the bound."""
        return (self.text(field) or "").strip().lower() in ("auto", "-1")

    def length(self, field: str) -> int | None:
        return None if self.fits(field) else self.amount(field)


def read_arguments(arguments: Sequence[str], dialect: Dialect) -> EngineArguments:
    """Reads an engine's arguments, those of a config file first.

    Raises:
        StartCommandError: an option lacks its value, or the value cannot be understood.
    """
    values = _Values()
    draft: dict[str, str] = {}
    connector: str | None = None
    ignored_config: str | None = None
    flags = {"prefix_caching": True}
    other_nodes: str | None = None
    overrides = Overrides()
    given: set[str] = set()
    for index, token in enumerate(arguments):
        if not token.startswith("-"):
            continue
        if token[:2] in dialect.attached and token[2:] and token[2] != "=":
            written, equals, rest = token[:2], "=", token[2:]
        else:
            written, equals, rest = token.partition("=")
        whole, dot, inner = written.partition(".")
        whole = dialect.option(whole)
        option = f"{whole}{dot}{inner}"
        value = rest if equals else None
        given.add(whole)
        if option == "--config" and value is not None and dialect.ignores_config_with_equals:
            ignored_config = token
            continue
        if value is None and index + 1 < len(arguments):
            value = arguments[index + 1]
        if field := dialect.values.get(whole):
            if value is None:
                raise StartCommandError(f"{option} lacks its value")
            if field == "hf_overrides":
                overrides.give(inner, value)
            elif not dot:
                values.give(field, option, value)
        if whole in dialect.draft_options:
            draft[option] = value or ""
        elif whole in dialect.connectors or _CONNECTOR.match(whole):
            connector = whole
        elif whole in dialect.other_nodes and (whole, value) not in _ONE_NODE:
            other_nodes = whole
        elif option in dialect.flags:
            field, state = dialect.flags[option]
            flags[field] = state
    if (positional := positional_place(arguments)) is not None:
        values.give("model", "the model", arguments[positional])
    data_parallel = values.number("data_parallel") or 1
    if (values.number("data_parallel_local") or data_parallel) != data_parallel:
        other_nodes = values.option("data_parallel_local")
    return EngineArguments(
        model=values.text("model"),
        served_model_name=values.text("served_model_name"),
        config_file=values.text("config"),
        ignored_config=ignored_config,
        tensor_parallel=values.number("tensor_parallel"),
        pipeline_parallel=values.number("pipeline_parallel") or 1,
        decode_context_parallel=values.number("decode_context_parallel") or 1,
        max_model_len=values.length("max_model_len"),
        fits_length=values.fits("max_model_len"),
        gpu_memory_utilization=utilization(
            values.option("gpu_memory_utilization"), values.text("gpu_memory_utilization")
        ),
        dtype=values.text("dtype") or "auto",
        kv_cache_dtype=values.text("kv_cache_dtype") or "auto",
        choices=dialect.table.chosen(arguments),
        draft=draft,
        connector=connector,
        block_size=values.number("block_size"),
        data_parallel=data_parallel,
        hf_overrides=overrides.merged,
        lora=flags.get("lora", False),
        prefix_caching=flags["prefix_caching"],
        sleep_mode=flags.get("sleep_mode", False),
        computes_kv_scales=flags.get("computes_kv_scales", False),
        prefill_context_parallel=values.number("prefill_context_parallel") or 1,
        kv_cache_memory_bytes=values.amount("kv_cache_memory_bytes"),
        num_gpu_blocks_override=values.number("num_gpu_blocks_override"),
        cpu_offload_gb=values.fraction("cpu_offload_gb") or 0.0,
        swap_space=values.fraction("swap_space"),
        max_num_batched_tokens=values.amount("max_num_batched_tokens"),
        max_num_seqs=values.number("max_num_seqs"),
        enforce_eager=flags.get("enforce_eager", False),
        weights_changes=tuple(sorted(given & dialect.weights_changing)),
        memory_additions=tuple(sorted(given & dialect.memory_adding)),
        graph_changes=tuple(sorted(given & dialect.graph_changing)),
        enable_prompt_embeds=flags.get("enable_prompt_embeds", False),
        attention_backend=values.text("attention_backend"),
        other_nodes=other_nodes,
        cumem_allocator=flags.get("cumem_allocator", False),
        text_only=flags.get("text_only", False),
    )
