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
    certain_arguments,
    connector_in,
    environment_arguments,
    extra_arguments,
    read_arguments,
    without_config,
)
from ..engine.command import EngineCommand, Program, find_engine
from ..engine.sglang import SGLANG
from ..engine.vllm import DYNAMO, VLLM
from ..errors import DeclinedError, StartCommandError
from ..model.parallel import Parallel
from ..policy.request import COMMAND
from .masks import masked_line
from .session import Service, Session

#: The kernel runner puts the model's path in this token's place (ai.backend.common.config).
_MODEL_PATH_TOKEN = "{model_path}"

#: Where a person's shell begins.
_INTERACTIVE_DIRECTORY = PurePosixPath("/home/work")

#: Where model services have their model, unless the user says another place.
_USUAL_MODEL = PurePosixPath("/models")

_MAX_CONFIG_BYTES = 2**20

_DIALECTS: Mapping[Program, Dialect] = {
    Program.VLLM: VLLM,
    Program.SGLANG: SGLANG,
    Program.DYNAMO: DYNAMO,
}


@attrs.frozen
class EngineStart:
    """The engine's start as the user wrote it."""

    command: EngineCommand
    arguments: EngineArguments
    directory: PurePosixPath
    """Where the engine's relative paths begin."""
    config: Mapping[str, Any] = attrs.field(factory=dict)
    """The content of the user's own config file."""

    @property
    def program(self) -> Program:
        """What is started."""
        return self.command.program

    @property
    def lost(self) -> tuple[str, ...]:
        """Arguments from variables that the command does not hand on to the engine."""
        return self.command.lost


@attrs.frozen
class ChangedStart:
    """What to put in the place of the user's."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


def _read_config(session: Session, directory: PurePosixPath, name: str) -> Mapping[str, Any]:
    located = session.locate(directory / name)
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


def _example(session: Session, model: PurePosixPath) -> str:
    """A start command that is understood, with one rank for each GPU of the session."""
    ranks = session.gpus.count if session.gpus else 1
    return f"vllm serve {shlex.quote(str(model))} --tensor-parallel-size {ranks}"


def _uncertain(session: Session, service: Service, why: str) -> DeclinedError:
    """Says why a start command is left alone, and what to write in its place."""
    texts = [*service.start_command, *(session.environ.get(name, "") for name in EXTRA_ARGUMENTS)]
    if (connector := connector_in(texts)) is not None:
        return DeclinedError(
            f"{connector} is already given, so the user's own KV configuration is left alone; "
            "remove it to let the plugin configure one"
        )
    model = _USUAL_MODEL if service.model_path == _INTERACTIVE_DIRECTORY else service.model_path
    return DeclinedError(
        f"it is not certain how the start command runs an engine, because {why}, so the session is "
        "left alone; let the start command itself run it, with all its options, such as: "
        f"{_example(session, model)}"
    )


def _service_of(session: Session) -> Service:
    """What is started, by Backend.AI or by a person.

    Raises:
        DeclinedError: nothing says what a person is going to start.
    """
    if session.service is not None:
        return session.service
    if line := session.environ.get(COMMAND):
        return Service(("bash", "-c", line), _INTERACTIVE_DIRECTORY)
    raise DeclinedError(
        "the session starts no engine by itself, and how one will be started in it is not known; "
        "say it in a variable of the session, with all its options, such as: "
        f"{COMMAND}={shlex.quote(_example(session, _USUAL_MODEL))}"
    )


def read_start(session: Session) -> EngineStart:
    """Reads the engine's start from all places that have a say in it.

    Raises:
        DeclinedError: it is not certain what is started, or with which arguments.
        StartCommandError: an argument cannot be understood.
    """
    service = _service_of(session)
    # To what a person starts, Backend.AI adds nothing.
    appended = environment_arguments(session.environ) if session.service else []
    try:
        command = find_engine(service.start_command, appended, session.environ)
        dialect = _DIALECTS[command.program]
        found = certain_arguments(command.arguments, dialect)
    except StartCommandError as e:
        raise _uncertain(session, service, masked_line(str(e))) from e
    written = [token.replace(_MODEL_PATH_TOKEN, str(service.model_path)) for token in found]
    directory = service.model_path / command.directory
    arguments = read_arguments(written, dialect)
    if arguments.config_file is None:
        return EngineStart(command, arguments, directory)
    config = _read_config(session, directory, arguments.config_file)
    written = _behind_model(written, arguments_of_config(config))
    return EngineStart(command, read_arguments(written, dialect), directory, config)


def with_own_environment(session: Session, start: EngineStart) -> Session:
    """The session with what the start command itself puts into the engine's environment.

    Backend.AI has read the variables of EXTRA_ARGUMENTS before the command runs.
    """
    own = {n: v for n, v in start.command.environment.items() if n not in EXTRA_ARGUMENTS}
    return attrs.evolve(session, environ={**session.environ, **own})


def parallel_of(start: EngineStart) -> tuple[Parallel, str]:
    """(how the model is divided over GPUs, where that comes from)."""
    told = start.arguments
    tensor, why = 1, "the engine's default"
    if told.tensor_parallel is not None:
        tensor, why = told.tensor_parallel, "as the engine is told"
    return Parallel(tensor, told.pipeline_parallel, told.decode_context_parallel), why


def change_start(
    session: Session,
    start: EngineStart,
    added: Sequence[str],
    model: str | None,
    run_by: PurePosixPath | None,
) -> ChangedStart:
    """The start command with arguments added.

    Where a config file of the plugin's is among them, the user's own is part of it, and the engine
    takes only one, so the user's ``--config`` is taken out wherever it stands.

    Args:
        session: whose environment may hold arguments too.
        start: the user's.
        added: put behind all others.
        model: what to serve in the place of the model that the command names. None: that one.
        run_by: a script of the plugin's that has to run the command.

    Raises:
        StartCommandError: what has to be replaced stands in a variable.
    """
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
