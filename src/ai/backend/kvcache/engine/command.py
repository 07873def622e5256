"""Start commands as people write them: which of them are certain to run vLLM, and with what.

A command is a list of arguments, or a shell with a line of text (``bash -c "vllm serve …"``). Of a
line of text only the plain form is read: one command, perhaps behind ``exec`` and assignments, with
variables. Whatever could run something else, or run it differently, is not certain.
"""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

import attrs

_SHELLS = frozenset({"bash", "dash", "sh", "zsh"})

#: ``-c`` alone, or together with options that change nothing here.
_COMMAND_OPTION = re.compile(r"-[elux]*c")

#: Where several commands, substitutions or redirections begin, or a comment.
_NOT_PLAIN = re.compile(r"[`\n;|&<>()]|(?:^|\s)#")

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")

#: Whoever assigns these on the line wins over the environment that the plugin gives.
_OURS = re.compile(r"(?:LMCACHE_\w+|PYTHONHASHSEED)=")

_VARIABLE = r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::-([^{}$]*))?\})"

#: What is replaced in a bare part and in one in double quotes, where fewer characters are escaped.
_IN_BARE = re.compile(rf"\\(.)|{_VARIABLE}")
_IN_QUOTES = re.compile(rf'\\([\\"$`])|{_VARIABLE}')

#: A word of a line, its quotes kept: quoted parts, escaped characters and everything else.
_WORD = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'\\])+""")

#: One part of a word: in single quotes, in double quotes, or bare.
_PART = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|((?:\\.|[^'"\\])+)""")

_POSITIONAL = frozenset({'"$@"', "$@", '"$*"', "$*"})


@attrs.frozen
class VllmCommand(ABC):
    """A start command that is certain to run vLLM."""

    @abstractmethod
    def arguments(self, appended: Sequence[str], environ: Mapping[str, str]) -> list[str]:
        """What vLLM will be given.

        Args:
            appended: what Backend.AI puts behind the command.
            environ: for the variables in it; one that is not there stays as it is written.
        """

    @property
    @abstractmethod
    def names_model(self) -> bool:
        """Whether the command itself says which model is served."""

    @abstractmethod
    def with_arguments(self, added: Sequence[str], model: str | None = None) -> tuple[str, ...]:
        """The command with arguments added, and without config files of the user's own.

        Args:
            added: put behind all others.
            model: what to serve in the place of the model that the command names.
        """

    @property
    @abstractmethod
    def takes_appended(self) -> bool:
        """Whether what Backend.AI puts behind the command reaches vLLM."""


@attrs.frozen
class ListCommand(VllmCommand):
    """``vllm serve MODEL …``, as a list."""

    prefix: tuple[str, ...]
    own: tuple[str, ...]

    takes_appended = True

    @property
    def names_model(self) -> bool:
        return _model_place(self.own) is not None

    def arguments(self, appended: Sequence[str], environ: Mapping[str, str]) -> list[str]:
        return [*self.own, *appended]

    def with_arguments(self, added: Sequence[str], model: str | None = None) -> tuple[str, ...]:
        return (*self.prefix, *without_config(_with_model(self.own, model)), *added)


@attrs.frozen
class ShellCommand(VllmCommand):
    """``bash -c "vllm serve MODEL …" …``. Words are kept as they are written."""

    shell: tuple[str, ...]
    prefix: tuple[str, ...]
    own: tuple[str, ...]
    positional: tuple[str, ...]
    """What stands behind the line; the first is the shell's own name."""

    @property
    def takes_appended(self) -> bool:
        return any(word in _POSITIONAL for word in self.own)

    @property
    def names_model(self) -> bool:
        return _model_place(self.own) is not None

    def arguments(self, appended: Sequence[str], environ: Mapping[str, str]) -> list[str]:
        # Of what is appended, the first becomes the shell's name where nothing stands there yet.
        behind = [*self.positional, *appended][1:]
        arguments: list[str] = []
        for word in self.own:
            arguments += behind if word in _POSITIONAL else expand(word, environ)
        return arguments

    def with_arguments(self, added: Sequence[str], model: str | None = None) -> tuple[str, ...]:
        own = without_config(_with_model(self.own, model))
        words = (*self.prefix, *own, shlex.join(added))
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
        if token == "--model" and index + 1 < len(arguments):
            return index + 1, ""
        if token.startswith("--model="):
            return index, "--model="
    return None


def _with_model(arguments: Sequence[str], model: str | None) -> list[str]:
    changed = list(arguments)
    if model is not None and (place := _model_place(arguments)) is not None:
        index, before = place
        changed[index] = before + model
    return changed


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


def _vllm_prefix(words: Sequence[str]) -> int:
    """How many words run vLLM's server, before its own arguments; 0 where they do not."""
    if len(words) >= 2 and PurePosixPath(words[0]).name == "vllm" and words[1] == "serve":
        return 2
    if (
        len(words) >= 3
        and re.fullmatch(r"python3?(\.\d+)?", PurePosixPath(words[0]).name)
        and tuple(words[1:3]) == ("-m", "vllm.entrypoints.openai.api_server")
    ):
        return 3
    return 0


def _finds_its_model(prefix: Sequence[str], arguments: Sequence[str]) -> bool:
    """``vllm serve`` with options before its model finds none once a config file is among them.

    The plugin tells vLLM by a config file (vLLM, utils/argparse_utils.py).
    """
    if prefix[-1] != "serve":
        return True
    return bool(arguments) and (
        not arguments[0].startswith("-")
        or any(token.partition("=")[0] in ("--model", "--config") for token in arguments)
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
    length = _vllm_prefix(words[start:])
    if length == 0:
        return None
    cut = start + length
    return ShellCommand(
        tuple(command[:2]), tuple(words[:cut]), tuple(words[cut:]), tuple(command[3:])
    )


def find_vllm(command: Sequence[str]) -> VllmCommand | None:
    """The command split at vLLM's own arguments; None when it is not certain that vLLM runs."""
    length = _vllm_prefix(command)
    found: ListCommand | ShellCommand | None
    if length:
        found = ListCommand(tuple(command[:length]), tuple(command[length:]))
    else:
        found = _shell_command(command)
    if found is None or not _finds_its_model(found.prefix, found.own):
        return None
    return found
