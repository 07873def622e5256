"""How a session's engine is going to be started, and how that start is changed.

A session's user may have configured vLLM in four places: the start command, VLLM_* variables,
VLLM_EXTRA_ARGS and a config file. They are read together here, and written back with ours added.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import attrs
import yaml

from ..beneath import open_file
from ..engine.command import VllmCommand, find_vllm, without_config
from ..engine.vllm import (
    EXTRA_ARGS,
    EngineArguments,
    arguments_of_config,
    environment_arguments,
    read_arguments,
)
from ..errors import StartCommandError
from ..model.parallel import Parallel
from .session import Session

#: The kernel runner puts the model's path in this token's place (ai.backend.common.config).
_MODEL_PATH_TOKEN = "{model_path}"

_MAX_CONFIG_BYTES = 2**20


@attrs.frozen
class EngineStart:
    """vLLM's start as the user wrote it."""

    command: VllmCommand | None
    """None: it is not certain that the start command runs vLLM."""
    arguments: EngineArguments
    config: Mapping[str, Any]
    """The content of the user's own config file."""
    lost: tuple[str, ...] = ()
    """Arguments from VLLM_* variables that the command does not hand on to vLLM."""


@attrs.frozen
class ChangedStart:
    """What to put in the place of the user's."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


def _read_config(session: Session, name: str) -> Mapping[str, Any]:
    service = session.service
    inside = (service.model_path if service else PurePosixPath("/home/work")) / name
    located = session.locate(inside)
    if located is None:
        raise StartCommandError(
            f"--config {name} lies in no mounted folder, so it cannot be merged with the plugin's, "
            "and vLLM takes only one; put it into a mounted folder"
        )
    try:
        with os.fdopen(open_file(located.root, located.path), "rb") as file:
            config = yaml.safe_load(file.read(_MAX_CONFIG_BYTES))
    except OSError as e:
        raise StartCommandError(f"--config {name} cannot be read: {e.strerror}") from e
    except (yaml.YAMLError, RecursionError) as e:
        raise StartCommandError(f"--config {name} is not valid YAML: {e}") from e
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise StartCommandError(f"--config {name} holds no mapping")
    return {str(key): value for key, value in config.items()}


def _behind_model(arguments: Sequence[str], inserted: Sequence[str]) -> list[str]:
    """Puts a config file's arguments where vLLM does: behind the model, before everything else."""
    cut = 1 if arguments and not arguments[0].startswith("-") else 0
    return [*arguments[:cut], *inserted, *arguments[cut:]]


def read_start(session: Session) -> EngineStart:
    """Reads the engine's start from all places that have a say in it.

    Raises:
        StartCommandError: something in it cannot be understood.
    """
    service = session.service
    command = find_vllm(service.start_command) if service else None
    options, extra = environment_arguments(session.environ)
    model_path = str(service.model_path) if service else _MODEL_PATH_TOKEN
    appended = (*options, *extra)
    found = command.arguments(appended, session.environ) if command else appended
    lost = appended if command and not command.takes_appended else ()
    written = [token.replace(_MODEL_PATH_TOKEN, model_path) for token in found]
    arguments = read_arguments(written)
    if arguments.config_file is None:
        return EngineStart(command, arguments, {}, lost)
    config = _read_config(session, arguments.config_file)
    arguments = read_arguments(_behind_model(written, arguments_of_config(config)))
    return EngineStart(command, arguments, config, lost)


def parallel_of(session: Session, start: EngineStart) -> tuple[Parallel, str]:
    """(how the model is divided over GPUs, where that comes from).

    It is what vLLM was told; where nobody knows how it will be started, one rank per GPU.
    """
    told = start.arguments
    tensor, why = 1, "vLLM's default"
    if told.tensor_parallel is not None:
        tensor, why = told.tensor_parallel, "as vLLM is told"
    elif start.command is None and session.gpus:
        tensor = max(1, session.gpus.count // told.pipeline_parallel)
        why = "assumed, one rank per GPU: no start command says it"
    return Parallel(tensor, told.pipeline_parallel, told.decode_context_parallel), why


def change_start(
    session: Session, command: VllmCommand, added: Sequence[str], model: str | None
) -> ChangedStart:
    """The start command with arguments added that name the plugin's config file.

    The user's own config file is part of the plugin's, and vLLM takes only one, so the user's
    ``--config`` is taken out wherever it stands.

    Args:
        session: whose environment may hold arguments too.
        command: the user's.
        added: put behind all others.
        model: what to serve in the place of the model that the command names. None: that one.
    """
    _, extra = environment_arguments(session.environ)
    kept = without_config(extra)
    return ChangedStart(
        command=command.with_arguments(added, model),
        environment={EXTRA_ARGS: shlex.join(kept)} if kept != extra else {},
    )
