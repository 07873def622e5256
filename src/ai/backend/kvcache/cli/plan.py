"""``plan``: what a model's sessions would get, before any session is started."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import click
import yaml
from click.core import ParameterSource

from ..engine.versions import NEWEST
from ..engine.vllm import CONFIG_FILE
from ..errors import KVCacheError, ModelError
from ..model.source import ModelSource, open_model
from ..plan.ask import description, sizing_request
from ..plan.sizing import Sizing, size
from ..plan.sizing_request import ASSUMED_MEMORY_BYTES
from ..plan.trial import try_start
from ..policy.settings import DEFAULT_CONCURRENT_TRANSFERS
from ..sizes import gib
from .catalog_text import catalog_json, catalog_text
from .plan_text import settings_hint, sizing_text, trial_text
from .types import COUNT, Assignment, Gpus, InputError, Share, Size

NOT_PLANNED = 1


def _as_json(sizings: Sequence[Sizing]) -> str:
    plans = [sizing.to_json() for sizing in sizings]
    return json.dumps(plans[0] if len(plans) == 1 else plans, indent=2)


def _as_environment(sizings: Sequence[Sizing]) -> str:
    return "\n".join(f"{name}={value}" for name, value in sizings[0].environment.items())


def _as_yaml(sizings: Sequence[Sizing]) -> str:
    config = sizings[0].lmcache_config
    return yaml.safe_dump(dict(config), sort_keys=False).rstrip() if config else ""


_FORMATS: Mapping[str, Callable[[Sequence[Sizing]], str]] = {
    "text": lambda sizings: "\n\n".join(sizing_text(s) for s in sizings),
    "json": _as_json,
    "env": _as_environment,
    "yaml": _as_yaml,
}


def _engine_file(trial: Mapping[str, Any]) -> str:
    return str(trial["files"].get(CONFIG_FILE, "")).rstrip()


_TRIAL_FORMATS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "text": trial_text,
    "json": lambda trial: json.dumps(trial, indent=2),
    "env": lambda trial: "\n".join(f"{k}={v}" for k, v in trial["environment"].items()),
    "yaml": _engine_file,
}

#: Formats that are put to use as they are, so that they can be of one model only and hold nothing
#: but settings.
_SETTINGS = ("env", "yaml")

#: Options of plans without a start command → what the start command says in their place.
_SAID_BY_COMMAND: Mapping[str, str | None] = {
    "tensor_parallel": "--tensor-parallel-size",
    "pipeline_parallel": "--pipeline-parallel-size",
    "decode_context_parallel": "--decode-context-parallel-size",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "pin_utilization": "--gpu-memory-utilization",
    "max_model_len": "--max-model-len",
    "kv_cache_dtype": "--kv-cache-dtype",
    "overhead": None,
    "context": None,
    "chunk_size": None,
}

#: Options that say something about a session with a start command.
_OF_SESSION = (
    "env", "mem", "shmem", "image", "gpu_model", "model_path", "setting",
    "sglang_version", "kvbm_version",
)  # fmt: skip


def _option(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


class _WithStartCommand(click.Command):
    """Takes what stands behind the first ``--`` as it is, for the parameter ``command``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        try:
            left = super().parse_args(ctx, args[:cut])
        except click.NoSuchOption as e:
            hint = "options of a start command stand behind it, and it stands behind --"
            raise click.UsageError(f"{e.format_message()} ({hint})", ctx) from e
        ctx.params["command"] = tuple(args[cut + 1 :]) if cut < len(args) else None
        return left


@click.command(cls=_WithStartCommand)
@click.argument("models", metavar="MODEL... [-- START COMMAND]", nargs=-1)
@click.option("--tensor-parallel", type=COUNT, help="Ranks. [default: one for each GPU]")
@click.option("--pipeline-parallel", type=COUNT, default=1, show_default=True, help="Stages.")
@click.option(
    "--decode-context-parallel",
    type=COUNT,
    default=1,
    show_default=True,
    help="Ranks that share one context.",
)
@click.option(
    "--gpu-memory",
    type=Size(),
    help=f"Memory of one GPU. [default: {gib(ASSUMED_MEMORY_BYTES)}, assumed]",
)
@click.option("--gpus", type=Gpus(), help="How many; below 1, a share of one.")
@click.option(
    "--gpu-memory-utilization",
    type=Share(),
    help="vLLM's share of a GPU without KV cache. [default: 0.92; 0.9 before vLLM 0.20]",
)
@click.option("--pin-utilization", is_flag=True, help="Leave that share as it is.")
@click.option("--max-model-len", type=COUNT, help="Longest context. [default: the model's]")
@click.option(
    "--kv-cache-dtype", default="auto", show_default=True, help="As vLLM's: auto, fp8, ..."
)
@click.option(
    "--weights", type=Size(), help="Of the whole model. [default: of its files, or estimated]"
)
@click.option(
    "--overhead",
    type=Size(),
    help="Of one GPU: activations, CUDA graphs, communication. [default: estimated]",
)
@click.option(
    "--concurrent-transfers",
    type=click.IntRange(1, 64),
    default=DEFAULT_CONCURRENT_TRANSFERS,
    show_default=True,
    help="Contexts that the buffer stages at the same time.",
)
@click.option(
    "--context", type=COUNT, help="Length of the contexts counted. [default: the longest]"
)
@click.option(
    "--chunk-size", type=click.IntRange(1, 2**20), default=256, show_default=True, help="Tokens."
)
@click.option("--lmcache-version", default=NEWEST["lmcache"], show_default=True)
@click.option("--vllm-version", default=NEWEST["vllm"], show_default=True)
@click.option("--sglang-version", help="Of the image, for a start command.")
@click.option("--kvbm-version", help="Of the image, for a start command.")
@click.option(
    "--env",
    type=Assignment(),
    multiple=True,
    help="A variable of the session, for a start command. May be repeated.",
)
@click.option("--image", metavar="NAME", help="The session's image, by its whole name.")
@click.option("--gpu-model", metavar="NAME", help="What nvidia-smi calls the GPUs.")
@click.option("--mem", type=Size(), help="Host memory of the session, for a start command.")
@click.option("--shmem", type=Size(), help="Size of its /dev/shm. [default: left to the plugin]")
@click.option(
    "--model-path",
    metavar="PATH",
    help="Where MODEL lies in the session. [default: where the start command says, else /models]",
)
@click.option(
    "--setting",
    type=Assignment(),
    multiple=True,
    help="What the policy says, such as connector=lmcache-mp. May be repeated.",
)
@click.option(
    "--format", "output", type=click.Choice(list(_FORMATS)), default="text", show_default=True
)
@click.option(
    "--list-models",
    is_flag=True,
    help="Show the models that are known by name, as text or JSON.",
)
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    models: tuple[str, ...],
    command: tuple[str, ...] | None,
    output: str,
    list_models: bool,
    **options: Any,
) -> None:
    """Say what sessions of MODEL would get: memory of each GPU, buffer, settings.

    MODEL is a model's directory, its config.json or params.json, or a name that --list-models
    shows. Sizes are written as 80GiB, 24g, 512MiB or plain bytes; all units are powers of 1024.

    With a start command behind --, say everything that a session with this command would get:
    which way, which namespace, what the engine is told, and which ways were refused and why.
    Versions are those of the image; "none" says that it does not have the package.

    Ends with 0 where KV cache is planned, with 1 where the plan says no, with 2 where something
    cannot be used.
    """
    if list_models:
        click.echo(catalog_json() if output == "json" else catalog_text())
        return
    if not models:
        raise click.UsageError("MODEL is missing; --list-models shows those known by name")
    said = {
        name: value
        for name, value in options.items()
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    try:
        is_planned = (
            _plan_figures(models, output, said)
            if command is None
            else _plan_command(models, command, output, said)
        )
    except KVCacheError as e:
        raise InputError(e) from e
    if not is_planned:
        # Not ctx.exit(), whose status the backend.ai command loses.
        sys.exit(NOT_PLANNED)


def _echo(text: str, notes: Collection[str]) -> None:
    """A plan as it was asked for; notes beside settings that are put to use as they are."""
    if text:
        click.echo(text)
    for note in notes:
        click.echo(f"# {note}", err=True)


def _open(model: str, models: Sequence[str]) -> ModelSource:
    try:
        return open_model(model)
    except ModelError as e:
        if model == models[0]:
            raise
        raise ModelError(f"{e}; a start command stands behind --") from e


def _plan_figures(models: Sequence[str], output: str, said: Mapping[str, Any]) -> bool:
    """Plans from figures alone; whether KV cache is planned for all models."""
    if strange := [name for name in _OF_SESSION if name in said]:
        raise click.UsageError(
            f"{_option(strange[0])} is for a start command; write one behind --, as in "
            "-- vllm serve /models"
        )
    if said.get("gpus") == 0:
        raise click.UsageError(
            "--gpus 0 is for a start command: without one, the memory of GPUs is divided"
        )
    if output in _SETTINGS and len(models) > 1:
        raise click.UsageError(f"--format {output} is for one model; {len(models)} are given")
    sizings = [size(sizing_request(_open(model, models), **said)) for model in models]
    text = _FORMATS[output](sizings)
    notes: list[str] = []
    if output in _SETTINGS:
        (sizing,) = sizings
        notes = [*sizing.geometry.warnings, *sizing.reasons]
        if sizing.budget is not None and not text:
            notes.append(settings_hint(sizing))
    _echo(text, notes)
    return all(sizing.budget is not None for sizing in sizings)


def _plan_command(
    models: Sequence[str], command: tuple[str, ...], output: str, said: Mapping[str, Any]
) -> bool:
    """The plan of a session with this start command; whether it gets KV cache."""
    for name in said:
        if name in _SAID_BY_COMMAND:
            instead = _SAID_BY_COMMAND[name]
            raise click.UsageError(
                f"{_option(name)} is for plans without a start command"
                + (f"; write {instead} into the start command" if instead else "")
            )
    if len(models) > 1:
        raise click.UsageError(
            f"a start command is for one model; {len(models)} are given: {' '.join(models)}"
        )
    trial = try_start(description(models[0], command, **said)).to_json()
    notes = [trial["reason"]] if trial["reason"] else [*trial["plan"]["warnings"], *trial["notes"]]
    _echo(_TRIAL_FORMATS[output](trial), notes if output in _SETTINGS else ())
    return bool(trial["kv_cache"])
