"""What the commands that a line runs before the engine leave behind: variables and a directory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from ..errors import StartCommandError
from .expansion import Variables, assigned, expand
from .shell import Simple, Word

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

#: Variables by which engines are told. What they hold has to be known.
_TELLING = re.compile(
    r"(?:LMCACHE|SGLANG|VLLM|DYN|CUFILE|KVCACHE)_\w+|PYTHONHASHSEED|PROMETHEUS_MULTIPROC_DIR"
)

#: Commands that change nothing for the engine which is started after them.
_HARMLESS = frozenset({
    ":", "[", "cat", "chmod", "date", "df", "du", "echo", "exit", "false", "free", "grep",
    "head", "hostname", "id", "ldconfig", "ls", "lscpu", "mkdir", "nproc", "nvidia-smi",
    "printenv", "printf", "pwd", "rm", "rocm-smi", "sleep", "tail", "test", "touch", "true",
    "ulimit", "uname", "umask", "wc", "which", "whoami",
})  # fmt: skip

#: Files that prepare a shell for an environment of Python, by their names.
_PREPARING = frozenset({
    "activate", ".bashrc", ".bash_profile", ".profile", "bashrc", "conda.sh", "mamba.sh",
    "micromamba.sh", "profile", "setup_vllm_env.sh", "set_env.sh", "setvars.sh",
})  # fmt: skip

_SET_OPTIONS = re.compile(r"[-+][euvxE]+|[-+][euvxE]*o")
_SET_NAMES = frozenset({
    "errexit", "errtrace", "nounset", "pipefail", "verbose", "xtrace",
})  # fmt: skip

#: Words that begin something else than a simple command.
_RESERVED = frozenset({
    "!", "[[", "]]", "{", "}", "case", "coproc", "do", "done", "elif", "else", "esac", "fi",
    "for", "function", "if", "in", "select", "then", "until", "while",
})  # fmt: skip


def assignments(words: Sequence[Word]) -> int:
    """How many assignments stand in front of a command."""
    count = 0
    while count < len(words) and _ASSIGNMENT.match(words[count].raw):
        count += 1
    return count


class Surroundings:
    """The state of a shell that has run a line's commands up to one of them.

    Args:
        environ: what the shell was started with.
        positional: ``$1`` and so on.
    """

    def __init__(self, environ: Mapping[str, str], positional: Sequence[str]) -> None:
        self._values: dict[str, str | None] = {"HOME": "/home/work", **environ}
        self._exported = set(environ)
        self._positional = tuple(positional)
        self._environment: dict[str, str] = {}
        self._directory: PurePosixPath | None = PurePosixPath()
        # Of the list of commands with && and || that is being read.
        self._may_be_skipped = False
        self._has_alternative = False
        self._tentative: set[str] = set()
        self._directory_is_tentative = False

    @property
    def variables(self) -> Variables:
        """What the next command's words are expanded with."""
        return Variables(self._values, self._positional)

    @property
    def environment(self) -> Mapping[str, str]:
        """What the line itself has put into the environment of its commands."""
        return self._environment

    @property
    def directory(self) -> PurePosixPath | None:
        """The current directory, from the one that the shell was started in. None: not known."""
        return self._directory

    def enter(self, command: Simple) -> None:
        """Has to be called before anything is said of a command."""
        if command.before not in ("&&", "||", "|", "|&"):
            self._leave_list()
        elif command.before == "||":
            self._has_alternative = True
        if command.words and command.words[0].raw in _RESERVED:
            raise StartCommandError(f"{command.words[0].raw!r} is not a simple command")
        if command.after == "&":
            raise StartCommandError("a command runs in the background")

    def _leave_list(self) -> None:
        """What a skipped command would have changed is not known behind its list."""
        for name in self._tentative:
            self._forget(name)
        if self._directory_is_tentative:
            self._directory = None
        self._may_be_skipped, self._has_alternative = False, False
        self._tentative, self._directory_is_tentative = set(), False

    def own_environment(self, words: Sequence[Word]) -> Mapping[str, str]:
        """What assignments in front of a command give it; they hold for this command alone."""
        found: dict[str, str] = {}
        for word in words:
            name, value = self._assignment(word)
            if value is not None:
                found[name] = value
        return found

    def run(self, command: Simple) -> None:
        """What a command that is no engine leaves behind.

        Raises:
            StartCommandError: it is not known what it does.
        """
        count = assignments(command.words)
        words = command.words[count:]
        in_pipeline = bool({command.before, command.after} & {"|", "|&"})
        is_certain = not (self._has_alternative or in_pipeline)
        if not words:
            for word in command.words:
                self._assign(*self._assignment(word), is_certain=is_certain)
            return
        arguments = [a for i, w in enumerate(words) for a in expand(w, self.variables, i)]
        name, rest = arguments[0].text if arguments else "", arguments[1:]
        texts = [argument.text for argument in rest]
        if name == "export":
            self._export(words[1:], is_certain=is_certain)
        elif name == "cd":
            self._change_directory(
                texts if all(a.is_certain for a in rest) else ["-"], is_certain=is_certain
            )
        elif name in (".", "source"):
            if not texts or PurePosixPath(texts[0]).name not in _PREPARING:
                raise StartCommandError(f"it is not known what {' '.join(texts)[:80]} sets")
        elif name == "set":
            self._set(texts)
        elif name == "unset":
            self._unset(texts)
        elif (name == "exec" and not texts) or (
            name in ("conda", "mamba", "micromamba") and texts[:1] == ["activate"]
        ):
            pass
        elif name in _HARMLESS or (name == "env" and not texts):
            self._may_be_skipped = True
        else:
            raise StartCommandError(f"it is not known what {name[:80]!r} does")

    def _assignment(self, word: Word) -> tuple[str, str | None]:
        """(name, value). Each character in front of the value is a piece of its own."""
        match = _ASSIGNMENT.match(word.raw)
        if match is None:
            raise StartCommandError(f"{word.raw[:80]!r} is no assignment")
        name, value = match[1], assigned(word.pieces[match.end() :], self.variables)
        if name == "IFS":
            raise StartCommandError("IFS changes how words are split")
        if value is None and _TELLING.fullmatch(name):
            raise StartCommandError(f"the value of {name} is not known")
        return name, value

    def _assign(self, name: str, value: str | None, *, is_certain: bool) -> None:
        self._values[name] = value
        if name in self._exported:
            if value is None:
                self._environment.pop(name, None)
            else:
                self._environment[name] = value
        if not is_certain:
            self._forget(name)
        elif self._may_be_skipped:
            self._tentative.add(name)

    def _forget(self, name: str) -> None:
        if name in self._exported and _TELLING.fullmatch(name):
            raise StartCommandError(f"whether {name} is set is not known")
        self._values[name] = None
        self._environment.pop(name, None)

    def _export(self, words: Sequence[Word], *, is_certain: bool) -> None:
        for word in words:
            if _ASSIGNMENT.match(word.raw):
                name, value = self._assignment(word)
            elif _NAME.fullmatch(word.raw):
                name = word.raw
                if name not in self._values:
                    continue
                value = self._values[name]
                if value is None and _TELLING.fullmatch(name):
                    raise StartCommandError(f"the value of {name} is not known")
            else:
                raise StartCommandError(f"export {word.raw[:80]} is not understood")
            self._exported.add(name)
            self._assign(name, value, is_certain=is_certain)

    def _change_directory(self, texts: Sequence[str], *, is_certain: bool) -> None:
        target = texts[0] if texts else self._values["HOME"]
        if self._directory is None or target is None or len(texts) > 1 or target.startswith("-"):
            self._directory = None
        else:
            self._directory /= target
        if not is_certain:
            self._directory = None
        elif self._may_be_skipped:
            self._directory_is_tentative = True

    def _set(self, texts: Sequence[str]) -> None:
        rest = list(texts)
        while rest:
            option = rest.pop(0)
            takes_name = option.endswith("o")
            if not _SET_OPTIONS.fullmatch(option) or (
                takes_name and (not rest or rest.pop(0) not in _SET_NAMES)
            ):
                raise StartCommandError(f"set {option[:80]} is not understood")

    def _unset(self, texts: Sequence[str]) -> None:
        for name in texts:
            if not _NAME.fullmatch(name) or _TELLING.fullmatch(name):
                raise StartCommandError(f"unset {name[:80]} is not understood")
            self._forget(name)
