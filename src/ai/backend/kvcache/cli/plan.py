"""``plan``: what a model's sessions would get, before any session is started."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import yaml

from ..engine.versions import NEWEST
from ..errors import KVCacheError
from ..model.source import open_model
from ..plan.ask import sizing_request
from ..plan.sizing import ASSUMED_MEMORY_BYTES, Sizing, size
from ..policy.settings import DEFAULT_CONCURRENT_TRANSFERS
from ..sizes import gib
from .catalog_text import catalog_json, catalog_text
from .plan_text import sizing_text
from .types import COUNT, Gpus, InputError, Share, Size

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

#: Formats that are put to use as they are, so that they can be of one model only and hold nothing
#: but settings.
_SETTINGS = ("env", "yaml")


@click.command()
@click.argument("models", metavar="MODEL...", nargs=-1)
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
@click.option(
    "--format", "output", type=click.Choice(list(_FORMATS)), default="text", show_default=True
)
@click.option(
    "--list-models",
    is_flag=True,
    help="Show the models that are known by name, as text or JSON.",
)
def plan(
    models: tuple[str, ...],
    output: str,
    list_models: bool,
    **options: Any,
) -> None:
    """Say what sessions of MODEL would get: memory of each GPU, buffer, settings.

    MODEL is a model's directory, its config.json or params.json, or a name that --list-models
    shows. Sizes are written as 80GiB, 24g, 512MiB or plain bytes; all units are powers of 1024.

    Ends with 0 where KV cache is planned, with 1 where the plan says no, with 2 where something
    cannot be used.
    """
    if list_models:
        click.echo(catalog_json() if output == "json" else catalog_text())
        return
    if not models:
        raise click.UsageError("MODEL is missing; --list-models shows those known by name")
    if output in _SETTINGS and len(models) > 1:
        raise click.UsageError(f"--format {output} is for one model; {len(models)} are given")
    try:
        sizings = [size(sizing_request(open_model(model), **options)) for model in models]
    except KVCacheError as e:
        raise InputError(e) from e
    if text := _FORMATS[output](sizings):
        click.echo(text)
    if output in _SETTINGS:
        for note in (*sizings[0].geometry.warnings, *sizings[0].reasons):
            click.echo(f"# {note}", err=True)
    if any(sizing.budget is None for sizing in sizings):
        # Not ctx.exit(), whose status the backend.ai command loses.
        sys.exit(NOT_PLANNED)
