"""Start commands as people write them: which of them are certain to run an engine, and with what.

A command is a list of arguments, or a shell with a line of text (``bash -c "vllm serve …"``). Of a
line of text only the plain form is read: one command, perhaps behind ``exec`` and assignments, with
variables. Whatever could run something else, or run it differently, is not certain.
"""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import PurePosixPath

import attrs

_SHELLS = frozenset({"bash", "dash", "sh", "zsh"})

#: ``-c`` alone, or together with options that change nothing here.
_COMMAND_OPTION = re.compile(r"-[elux]*c")

#: Where several commands, substitutions or redirections begin, or a comment.
_NOT_PLAIN = re.compile(r"[`\n;|&<>()]|(?:^|\s)#")

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")

#: Whoever assigns these on the line wins over the environment that the plugin gives.
_OURS = re.compile(r"(?:(?:LMCACHE|SGLANG_HICACHE|DYN_KVBM)_\w+|PYTHONHASHSEED)=")

_VARIABLE = r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::-([^{}$]*))?\})"

#: What is replaced in a bare part and in one in double quotes, where fewer characters are escaped.
_IN_BARE = re.compile(rf"\\(.)|{_VARIABLE}")
_IN_QUOTES = re.compile(rf'\\([\\"$`])|{_VARIABLE}')

#: A word of a line, its quotes kept: quoted parts, escaped characters and everything else.
_WORD = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'\\])+""")

#: One part of a word: in single quotes, in double quotes, or bare.
_PART = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|((?:\\.|[^'"\\])+)""")

_POSITIONAL = frozenset({'"$@"', "$@", '"$*"', "$*"})


class Program(StrEnum):
    """What a start command runs."""

    VLLM = "vllm"
    SGLANG = "sglang"
    DYNAMO = "dynamo"
    """vLLM as a worker of NVIDIA Dynamo."""


#: The words that start a program, after which its own arguments come.
_STARTS: Mapping[tuple[str, ...], Program] = {
    ("vllm", "serve"): Program.VLLM,
    ("python", "-m", "vllm.entrypoints.openai.api_server"): Program.VLLM,
    ("sglang", "serve"): Program.SGLANG,
    ("python", "-m", "sglang.launch_server"): Program.SGLANG,
    ("python", "-m", "dynamo.vllm"): Program.DYNAMO,
}

#: What names the model, by the spellings of all programs.
_MODEL_OPTIONS = ("--model", "--model-path")


@attrs.frozen
class EngineCommand(ABC):
    """A start command that is certain to run an engine."""

    program: Program
    prefix: tuple[str, ...]
    """What starts it."""
    own: tuple[str, ...]
    """The arguments in the command itself."""

    @property
    def names_model(self) -> bool:
        """Whether the command itself says which model is served."""
        return _model_place(self.own) is not None

    @abstractmethod
    def arguments(self, appended: Sequence[str], environ: Mapping[str, str]) -> list[str]:
        """What the engine will be given.

        Args:
            appended: what Backend.AI puts behind the command.
            environ: for the variables in it; one that is not there stays as it is written.
        """

    @abstractmethod
    def with_arguments(self, added: Sequence[str], model: str | None = None) -> tuple[str, ...]:
        """The command with arguments added.

        Args:
            added: put behind all others. With a ``--config`` among them, the user's own goes.
            model: what to serve in the place of the model that the command names.
        """

    @property
    @abstractmethod
    def takes_appended(self) -> bool:
        """Whether what Backend.AI puts behind the command reaches the engine."""


@attrs.frozen
class ListCommand(EngineCommand):
    """``vllm serve MODEL …``, as a list."""

    takes_appended = True

    def arguments(self, appended: Sequence[str], environ: Mapping[str, str]) -> list[str]:
        return [*self.own, *appended]

    def with_arguments(self, added: Sequence[str], model: str | None = None) -> tuple[str, ...]:
        return (*self.prefix, *_changed(self.own, added, model), *added)


@attrs.frozen
class ShellCommand(EngineCommand):
    """``bash -c "vllm serve MODEL …" …``. Words are kept as they are written."""

    shell: tuple[str, ...]
    positional: tuple[str, ...]
    """What stands behind the line; the first is the shell's own name."""

    @property
    def takes_appended(self) -> bool:
        return any(word in _POSITIONAL for word in self.own)

    def arguments(self, appended: Sequence[str], environ: Mapping[str, str]) -> list[str]:
        # Of what is appended, the first becomes the shell's name where nothing stands there yet.
        behind = [*self.positional, *appended][1:]
        arguments: list[str] = []
        for word in self.own:
            arguments += behind if word in _POSITIONAL else expand(word, environ)
        return arguments

    def with_arguments(self, added: Sequence[str], model: str | None = None) -> tuple[str, ...]:
        words = (*self.prefix, *_changed(self.own, added, model), shlex.join(added))
        return (*self.shell, " ".join(words), *self.positional)


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


def _model_place(arguments: Sequence[str]) -> tuple[int, str] | None:
    """(the argument that names the model, what stands before the name in it)."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in _POSITIONAL:
        return 0, ""
    for index, token in enumerate(arguments):
        option, equals, _ = token.partition("=")
        if option.replace("_", "-") not in _MODEL_OPTIONS:
            continue
        if equals:
            return index, f"{option}="
        if index + 1 < len(arguments):
            return index + 1, ""
    return None


def _with_model(arguments: Sequence[str], model: str | None) -> list[str]:
    changed = list(arguments)
    if model is not None and (place := _model_place(arguments)) is not None:
        index, before = place
        changed[index] = before + model
    return changed


def _changed(own: Sequence[str], added: Sequence[str], model: str | None) -> list[str]:
    changed = _with_model(own, model)
    return without_config(changed) if "--config" in added else changed


def expand(word: str, environ: Mapping[str, str]) -> list[str]:
    """A word of a shell's line as the command is given it: quotes removed, variables filled in."""
    text = ""
    is_split = False

    def fill(match: re.Match[str]) -> str:
        escaped, name, braced, default = match.groups()
        if escaped is not None:
            return escaped
        value = environ.get(name or braced)
        if default is not None:
            return value or default
        return match[0] if value is None else value

    for single, double, bare in _PART.findall(word):
        if bare:
            text += _IN_BARE.sub(fill, bare)
            is_split = is_split or "$" in bare
        else:
            text += single or _IN_QUOTES.sub(fill, double)
    return text.split() if is_split else [text]


def _plain_name(word: str) -> str:
    """A program's name without its directory; any Python is ``python``."""
    name = PurePosixPath(word).name
    return "python" if re.fullmatch(r"python3?(\.\d+)?", name) else name


def _started(words: Sequence[str]) -> tuple[Program, int] | None:
    """(what the words start, how many of them come before its own arguments)."""
    for start, program in _STARTS.items():
        found = tuple(words[: len(start)])
        if found and (_plain_name(found[0]), *found[1:]) == start:
            return program, len(start)
    return None


def _finds_its_model(command: EngineCommand) -> bool:
    """``vllm serve`` with options before its model finds none once a config file is among them.

    The plugin tells vLLM by a config file (vLLM, utils/argparse_utils.py).
    """
    if command.program is not Program.VLLM or command.prefix[-1] != "serve":
        return True
    return bool(command.own) and (
        not command.own[0].startswith("-")
        or any(token.partition("=")[0] in ("--model", "--config") for token in command.own)
    )


def _words(line: str) -> list[str] | None:
    """The words of a line as they are written; None where a quote has no end."""
    words: list[str] = []
    position = 0
    while position < len(line):
        if line[position].isspace():
            position += 1
            continue
        word = _WORD.match(line, position)
        if word is None:
            return None
        words.append(word[0])
        position = word.end()
    return words


def _shell_command(command: Sequence[str]) -> ShellCommand | None:
    if len(command) < 3 or PurePosixPath(command[0]).name not in _SHELLS:
        return None
    if not _COMMAND_OPTION.fullmatch(command[1]):
        return None
    # A backslash at the end of a line goes on in the next one.
    line = command[2].replace("\\\n", " ").strip()
    if _NOT_PLAIN.search(re.sub(r"'[^']*'", "''", line)) or "$(" in line:
        return None
    words = _words(line)
    if words is None:
        return None
    start = 0
    while start < len(words) and (words[start] == "exec" or _ASSIGNMENT.match(words[start])):
        if _OURS.match(words[start]):
            return None
        start += 1
    if (started := _started(words[start:])) is None:
        return None
    program, length = started
    cut = start + length
    return ShellCommand(
        program=program,
        prefix=tuple(words[:cut]),
        own=tuple(words[cut:]),
        shell=tuple(command[:2]),
        positional=tuple(command[3:]),
    )


def find_engine(command: Sequence[str]) -> EngineCommand | None:
    """The command split at the engine's own arguments; None when it is not certain what it runs."""
    found: EngineCommand | None
    if started := _started(command):
        program, length = started
        found = ListCommand(program, tuple(command[:length]), tuple(command[length:]))
    else:
        found = _shell_command(command)
    return found if found is not None and _finds_its_model(found) else None
