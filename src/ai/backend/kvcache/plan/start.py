"""How a session's engine is going to be started, and how that start is changed.

A session's user may have configured the engine in four places: the start command, variables such
as VLLM_TP_SIZE, VLLM_EXTRA_ARGS and a config file. They are read together here, and written back
with ours added.
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
from ..engine.arguments import (
    EXTRA_ARGUMENTS,
    Dialect,
    EngineArguments,
    arguments_of_config,
    environment_arguments,
    extra_arguments,
    read_arguments,
)
from ..engine.command import EngineCommand, Program, find_engine, without_config
from ..engine.sglang import SGLANG
from ..engine.vllm import VLLM
from ..errors import StartCommandError
from ..model.parallel import Parallel
from .session import Session

#: The kernel runner puts the model's path in this token's place (ai.backend.common.config).
_MODEL_PATH_TOKEN = "{model_path}"

_MAX_CONFIG_BYTES = 2**20

#: The label by which an image says what it runs.
_ENGINE_LABEL = "ai.backend.kvcache.engine"

_DIALECTS: Mapping[Program, Dialect] = {
    Program.VLLM: VLLM,
    Program.SGLANG: SGLANG,
    Program.DYNAMO: VLLM,
}


@attrs.frozen
class EngineStart:
    """The engine's start as the user wrote it."""

    program: Program
    command: EngineCommand | None
    """None: it is not certain what the start command runs."""
    arguments: EngineArguments
    config: Mapping[str, Any]
    """The content of the user's own config file."""
    lost: tuple[str, ...] = ()
    """Arguments from variables that the command does not hand on to the engine."""


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
            f"--config {name} lies in no mounted folder, so it cannot be read here; put it into a "
            "mounted folder"
        )
    try:
        with os.fdopen(open_file(located.root, located.path), "rb") as file:
            config = yaml.safe_load(file.read(_MAX_CONFIG_BYTES))
    except OSError as e:
        raise StartCommandError(f"--config {name} cannot be read: {e.strerror}") from e
    except (yaml.YAMLError, RecursionError) as e:
        # Not the error's own words: they quote the file, and it may hold the engine's key.
        mark = e.problem_mark if isinstance(e, yaml.MarkedYAMLError) else None
        where = f" (line {mark.line + 1})" if mark else ""
        raise StartCommandError(f"--config {name} is not valid YAML{where}") from e
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise StartCommandError(f"--config {name} holds no mapping")
    return {str(key): value for key, value in config.items()}


def _behind_model(arguments: Sequence[str], inserted: Sequence[str]) -> list[str]:
    """Puts a config file's arguments where vLLM does: behind the model, before everything else."""
    cut = 1 if arguments and not arguments[0].startswith("-") else 0
    return [*arguments[:cut], *inserted, *arguments[cut:]]


def _program_of(session: Session, command: EngineCommand | None) -> Program:
    """What runs in the session, if anything that is known does."""
    if command is not None:
        return command.program
    # Somebody starts it by hand, or by a script.
    if (label := session.image.labels.get(_ENGINE_LABEL)) in list(Program):
        return Program(label)
    found = session.image.found.packages
    return Program.SGLANG if "sglang" in found and "vllm" not in found else Program.VLLM


def read_start(session: Session) -> EngineStart:
    """Reads the engine's start from all places that have a say in it.

    Raises:
        StartCommandError: something in it cannot be understood.
    """
    service = session.service
    command = find_engine(service.start_command) if service else None
    program = _program_of(session, command)
    dialect = _DIALECTS[program]
    appended = environment_arguments(session.environ)
    model_path = str(service.model_path) if service else _MODEL_PATH_TOKEN
    found = command.arguments(appended, session.environ) if command else appended
    lost = tuple(appended) if command and not command.takes_appended else ()
    written = [token.replace(_MODEL_PATH_TOKEN, model_path) for token in found]
    arguments = read_arguments(written, dialect)
    if arguments.config_file is None:
        return EngineStart(program, command, arguments, {}, lost)
    config = _read_config(session, arguments.config_file)
    arguments = read_arguments(_behind_model(written, arguments_of_config(config)), dialect)
    return EngineStart(program, command, arguments, config, lost)


def parallel_of(session: Session, start: EngineStart) -> tuple[Parallel, str]:
    """(how the model is divided over GPUs, where that comes from).

    It is what the engine was told; where nobody knows how it will be started, one rank per GPU.
    """
    told = start.arguments
    tensor, why = 1, "the engine's default"
    if told.tensor_parallel is not None:
        tensor, why = told.tensor_parallel, "as the engine is told"
    elif start.command is None and session.gpus:
        tensor = max(1, session.gpus.count // told.pipeline_parallel)
        why = "assumed, one rank per GPU: no start command says it"
    return Parallel(tensor, told.pipeline_parallel, told.decode_context_parallel), why


def change_start(
    session: Session,
    start: EngineStart,
    added: Sequence[str],
    model: str | None,
    run_by: PurePosixPath | None,
) -> ChangedStart | None:
    """The start command with arguments added.

    Where a config file of the plugin's is among them, the user's own is part of it, and the engine
    takes only one, so the user's ``--config`` is taken out wherever it stands.

    Args:
        session: whose environment may hold arguments too.
        start: the user's.
        added: put behind all others.
        model: what to serve in the place of the model that the command names. None: that one.
        run_by: a script of the plugin's that has to run the command.

    Returns:
        None where it is not certain what the command runs.
    """
    if start.command is None:
        return None
    command = start.command.with_arguments(added, model)
    environment: dict[str, str] = {}
    for variable in EXTRA_ARGUMENTS if "--config" in added else ():
        words = extra_arguments(session.environ, variable)
        if (kept := without_config(words)) != words:
            environment[variable] = shlex.join(kept)
    return ChangedStart(
        command=command if run_by is None else ("sh", str(run_by), *command),
        environment=environment,
    )
