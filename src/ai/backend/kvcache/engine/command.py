"""Start commands as people write them: which of them are certain to run an engine, and with what.

A command is a list of words, or a shell with a line of text (``bash -c "vllm serve …"``), perhaps
behind launchers such as ``env`` and ``numactl``. Where it is not certain what runs, or with which
arguments, nothing is read and the reason is said.
"""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

import attrs

from ..errors import StartCommandError
from .arity import model_place, positional_place
from .expansion import Argument, expand
from .launchers import Launch, Program, find_launch, plain_name, skip_launchers
from .shell import Operator, Simple, Word, simple_commands, tokens_of
from .statements import Surroundings, assignments

__all__ = ["EngineCommand", "ListCommand", "Program", "ShellCommand", "find_engine"]

#: Shells by name → whether bash's own forms are certain to be understood.
_SHELLS: Mapping[str, bool] = {"ash": False, "bash": True, "dash": False, "sh": False}

#: Options of shells that change nothing of how the line is read.
_SHELL_FLAGS = frozenset("eilpuvx")
_SHELL_LONG_FLAGS = frozenset({"--login", "--noprofile", "--norc", "--verbose"})
_SHELL_OPTION_NAMES = frozenset({"errexit", "nounset", "pipefail", "verbose", "xtrace"})

#: Another engine in what follows the first one.
_ANOTHER_ENGINE = re.compile(r"\b(?:vllm|sglang)\s+serve\b|-m\s+(?:vllm|sglang|dynamo)\b")


@attrs.frozen
class EngineCommand(ABC):
    """A start command that is certain to run an engine."""

    launch: Launch
    own: tuple[Argument, ...]
    """The arguments in the command itself, each with the number of the word that it comes from."""
    appended: tuple[str, ...]
    """What Backend.AI puts behind the command."""
    environment: Mapping[str, str]
    """Variables that the command itself sets for the engine."""
    directory: PurePosixPath
    """The engine's current directory, from the one that the command is started in."""

    @property
    def program(self) -> Program:
        """What is run."""
        return self.launch.program

    @property
    def names_model(self) -> bool:
        """Whether the command itself says which model is served."""
        return self._model is not None

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What the engine is given."""
        return self.own

    @property
    def lost(self) -> tuple[str, ...]:
        """What Backend.AI puts behind the command and the engine is not given."""
        return ()

    @property
    def _texts(self) -> list[str]:
        return [argument.text for argument in self.own]

    @property
    def _model(self) -> tuple[int, str] | None:
        return model_place(self._texts)

    def with_arguments(self, added: Sequence[str], model: str | None = None) -> tuple[str, ...]:
        """The command with arguments added, everything else as it was.

        Args:
            added: put behind all others. With a ``--config`` among them, the user's own goes.
            model: what to serve in the place of the model that the command names.

        Raises:
            StartCommandError: what has to be replaced stands in a variable.
        """
        changes: dict[int, str | None] = {}
        front: str | None = None
        if "--config" in added:
            for place, text in enumerate(self._texts):
                if text == "--config":
                    for at in range(place, min(place + 2, len(self.own))):
                        changes[self._word_of(at)] = None
        if (found := self._model) is not None:
            place, before = found
            word = self._word_of(place)
            if model is not None:
                changes[word] = before + model
            if self.launch.has_subcommand and place == positional_place(self._texts) != 0:
                # With a config file, vLLM looks for the model in the first place only (vLLM,
                # utils/argparse_utils.py, _pull_args_from_config).
                front, changes[word] = changes.get(word) or self._texts[place], None
        return self._changed(changes, front, added)

    def _word_of(self, place: int) -> int:
        argument = self.own[place]
        if argument.word is None or not argument.is_whole:
            raise StartCommandError(
                f"{argument.text!r} comes from a variable that holds more; write it into the "
                "command itself"
            )
        return argument.word

    @abstractmethod
    def _changed(
        self, changes: Mapping[int, str | None], front: str | None, added: Sequence[str]
    ) -> tuple[str, ...]:
        """The command with words replaced (None: taken out) and others put around them."""


@attrs.frozen
class ListCommand(EngineCommand):
    """``vllm serve MODEL …``, as a list."""

    words: tuple[str, ...]

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return (*self.own, *map(Argument, self.appended))

    def _changed(
        self, changes: Mapping[int, str | None], front: str | None, added: Sequence[str]
    ) -> tuple[str, ...]:
        cut = self.launch.length
        own = [changes.get(i, word) for i, word in enumerate(self.words[cut:])]
        return (
            *self.words[:cut],
            *([] if front is None else [front]),
            *(word for word in own if word is not None),
            *added,
        )


@attrs.frozen
class ShellCommand(EngineCommand):
    """``bash -c "vllm serve MODEL …" …``."""

    shell: tuple[str, ...]
    """The words up to the line."""
    line: str
    words: tuple[Word, ...]
    """The words of the command in the line that runs the engine."""
    positional: tuple[str, ...]
    """What stands behind the line; the first is the shell's own name."""

    @property
    def lost(self) -> tuple[str, ...]:
        return () if re.search(r"\$\{?[@*]", self.line) else self.appended

    def _changed(
        self, changes: Mapping[int, str | None], front: str | None, added: Sequence[str]
    ) -> tuple[str, ...]:
        cut = self.launch.length
        parts: list[str] = []
        done = 0
        for index, word in enumerate(self.words):
            # What is taken out goes with the blanks in front of it.
            text = changes.get(index - cut, word.raw)
            gap = self.line[done : word.start]
            is_replaced = index >= cut and index - cut in changes
            if text is not None:
                parts += [gap, shlex.quote(text) if is_replaced else text]
            elif gap.strip(" \t\\\n"):
                parts.append(gap)
            if index == cut - 1 and front is not None:
                parts += [" ", shlex.quote(front)]
            done = word.end
        rest = self.line[done:]
        parts += [" ", shlex.join(added)] if added else []
        # A number in front of "<" or ">" would be taken for a file descriptor.
        parts += [" " if rest[:1] in ("<", ">") and added else "", rest]
        return (*self.shell, "".join(parts), *self.positional)


def _finds_its_model(command: EngineCommand) -> bool:
    """``vllm serve`` finds no model behind a config file unless one is named.

    The plugin tells vLLM by a config file (vLLM, utils/argparse_utils.py).
    """
    if command.program is not Program.VLLM or not command.launch.has_subcommand:
        return True
    return command.names_model or any(
        argument.text.partition("=")[0] == "--config" for argument in command.own
    )


def _shell_options(words: Sequence[str]) -> int:
    """How many words stand between a shell's name and its line.

    Raises:
        StartCommandError: the shell reads a script, or has an option that is not understood.
    """
    at, has_line = 1, False
    while at < len(words) and words[at][:1] in ("-", "+") and len(words[at]) > 1:
        option = words[at]
        at += 1
        if option in _SHELL_LONG_FLAGS:
            continue
        for letter in option[1:]:
            if letter == "o" and words[at : at + 1] and words[at] in _SHELL_OPTION_NAMES:
                at += 1
            elif letter == "c":
                has_line = True
            elif letter not in _SHELL_FLAGS:
                raise StartCommandError(f"what {words[0]} {option} does is not known")
    if not has_line:
        raise StartCommandError(f"{shlex.join(words[:2])[:80]} runs a script")
    if at >= len(words):
        raise StartCommandError(f"nothing stands behind {words[0]} -c")
    return at


def _launch_of(simple: Simple, surroundings: Surroundings) -> tuple[Launch | None, int]:
    """(how the command starts an engine, if it does; how many assignments stand in front)."""
    count = assignments(simple.words)
    texts: list[str] = []
    for index, word in enumerate(simple.words[count:]):
        arguments = expand(word, surroundings.variables, index)
        if len(arguments) != 1 or not arguments[0].is_certain or not arguments[0].is_whole:
            break
        texts.append(arguments[0].text)
    return find_launch(texts), count


def _refuse_company(simple: Simple, tokens: Sequence[Word | Operator], line: str) -> None:
    """Raises where the engine does not run alone and in the foreground."""
    end = simple.words[-1].end
    for token in tokens:
        if isinstance(token, Operator) and token.start >= end:
            if token.text == "&":
                raise StartCommandError("the engine runs in the background")
            if token.text in (";", "\n"):
                break
    if _ANOTHER_ENGINE.search(line[end:]):
        raise StartCommandError("it runs several engines")


def _shell_command(
    command: Sequence[str],
    at: int,
    assigned: Mapping[str, str],
    appended: Sequence[str],
    environ: Mapping[str, str],
) -> ShellCommand:
    place = at + _shell_options(command[at:])
    line, positional = command[place], tuple(command[place + 1 :])
    tokens = tokens_of(line, is_bash=_SHELLS[plain_name(command[at])])
    # Of what is appended, the first becomes the shell's name where nothing stands there yet.
    surroundings = Surroundings({**environ, **assigned}, [*positional, *appended][1:])
    for simple in simple_commands(tokens):
        surroundings.enter(simple)
        launch, count = _launch_of(simple, surroundings)
        if launch is None:
            surroundings.run(simple)
            continue
        _refuse_company(simple, tokens, line)
        if surroundings.directory is None:
            raise StartCommandError("it is not known in which directory the engine runs")
        words = simple.words[count:]
        return ShellCommand(
            launch=launch,
            own=tuple(
                argument
                for index, word in enumerate(words[launch.length :])
                for argument in expand(word, surroundings.variables, index)
            ),
            appended=tuple(appended),
            environment={
                **assigned,
                **surroundings.environment,
                **surroundings.own_environment(simple.words[:count]),
                **launch.environment,
            },
            directory=surroundings.directory,
            shell=tuple(command[:place]),
            line=line,
            words=words,
            positional=positional,
        )
    raise StartCommandError("it starts no engine that is known")


def find_engine(
    command: Sequence[str], appended: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> EngineCommand:
    """The command split at the engine's own arguments.

    Args:
        command: the words of a service's start command.
        appended: what Backend.AI puts behind them.
        environ: for the variables in it.

    Raises:
        StartCommandError: it is not certain what the command runs. The message says why, in words
            to follow "because".
    """
    if not command:
        raise StartCommandError("it is the image's own, which is not known here")
    found: EngineCommand
    if launch := find_launch(command):
        own = command[launch.length :]
        found = ListCommand(
            launch=launch,
            own=tuple(Argument(text, word=index) for index, text in enumerate(own)),
            appended=tuple(appended),
            environment=launch.environment,
            directory=PurePosixPath(),
            words=tuple(command),
        )
    else:
        at, assigned = skip_launchers(command)
        if at >= len(command) or plain_name(command[at]) not in _SHELLS:
            raise StartCommandError(_what_is_unknown(command[min(at, len(command) - 1) :]))
        found = _shell_command(command, at, assigned, appended, environ or {})
    if not _finds_its_model(found):
        raise StartCommandError("it names no model")
    return found


def _what_is_unknown(words: Sequence[str]) -> str:
    if re.search(r"\s", words[0]):
        return "it is one word with blanks in it, where each argument has to be a word of its own"
    name = " ".join([plain_name(words[0]), *words[1:3]]) if len(words) > 1 else words[0]
    return f"{name[:80]!r} is not the start of an engine that is known"
