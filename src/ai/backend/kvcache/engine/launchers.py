"""Which words start an engine, and the programs that people put in front of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import PurePosixPath

import attrs

from ..errors import StartCommandError


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
    ("python", "-m", "vllm", "serve"): Program.VLLM,
    ("python", "-m", "vllm.entrypoints.cli.main", "serve"): Program.VLLM,
    ("sglang", "serve"): Program.SGLANG,
    ("python", "-m", "sglang.launch_server"): Program.SGLANG,
    ("python", "-m", "dynamo.vllm"): Program.DYNAMO,
}

_MOST_LAUNCHERS = 12

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)

#: Options of Python that change nothing of what the plugin tells. Not -E and -I: they have Python
#: ignore PYTHONHASHSEED.
_PYTHON_FLAGS = re.compile(r"-[BOPbdqsuv]+")
_PYTHON_MODULE = re.compile(r"-[BOPbdqsuv]*m")
_PYTHON_WITH_VALUE = frozenset({"-W", "-X"})


@attrs.frozen
class Launcher:
    """A program that runs the command behind it, in the same place with the same environment."""

    flags: frozenset[str] = frozenset()
    """Options without a value. A single letter may be joined with others."""
    with_value: frozenset[str] = frozenset()
    """Options whose value stands in the same word or in the next one."""
    operands: int = 0
    """How many words of its own stand in front of the command."""
    subcommand: str | None = None
    """The word that has to follow first."""
    number_is_option: bool = False
    """Whether ``-5`` is an option."""
    assigns: bool = False
    """Whether assignments may stand in front of the command."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: The options were compared with what the programs print of themselves (coreutils 9.1, util-linux
#: 2.38, numactl 2.0.16, tini 0.19, dumb-init 1.2.5, catatonit 0.1.7, uv 0.13), but for those of
#: conda, ddtrace-run, opentelemetry-instrument and poetry. An option that may change something
#: (another environment or directory, several processes, other packages) is left out, so a command
#: with it is not certain.
_LAUNCHERS: Mapping[str, Launcher] = {
    "catatonit": Launcher(_words("-g")),
    "chrt": Launcher(_words("-a -b -f -i -o -r -R --batch --fifo --idle --other --rr"), operands=1),
    "command": Launcher(),
    "conda": Launcher(
        _words("--no-capture-output --live-stream -v"),
        _words("-n --name -p --prefix"),
        subcommand="run",
    ),
    "ddtrace-run": Launcher(),
    "dumb-init": Launcher(_words("-c -v --single-child --verbose"), _words("-r --rewrite")),
    "env": Launcher(assigns=True),
    "exec": Launcher(with_value=_words("-a")),
    "ionice": Launcher(_words("-t --ignore"), _words("-c --class -n --classdata")),
    "nice": Launcher(with_value=_words("-n --adjustment"), number_is_option=True),
    "nohup": Launcher(),
    "numactl": Launcher(
        _words("-a --all -b --balancing -l --localalloc"),
        _words(
            "-i --interleave -p --preferred -P --preferred-many -N --cpunodebind "
            "-C --physcpubind -m --membind -w --weighted-interleave"
        ),
    ),
    "opentelemetry-instrument": Launcher(
        with_value=_words(
            "--traces_exporter --metrics_exporter --logs_exporter --service_name "
            "--exporter_otlp_endpoint --id_generator"
        )
    ),
    "poetry": Launcher(_words("-q --quiet"), subcommand="run"),
    "stdbuf": Launcher(with_value=_words("-i -o -e --input --output --error")),
    "taskset": Launcher(_words("-a -c --all-tasks --cpu-list"), operands=1),
    "time": Launcher(_words("-p")),
    "timeout": Launcher(
        _words("--foreground --preserve-status -v --verbose"),
        _words("-k --kill-after -s --signal"),
        operands=1,
    ),
    "tini": Launcher(_words("-s -g -v -w"), _words("-p -e")),
    "uv": Launcher(
        _words(
            "--active --all-extras --all-groups --exact --frozen --locked --no-active --no-cache "
            "-n --no-config --no-dev --no-progress --no-project --no-sync --offline --quiet -q "
            "--verbose -v"
        ),
        _words("--extra --group --no-group --no-extra --project --python -p --color"),
        subcommand="run",
    ),
}  # fmt: skip
_ALIASES: Mapping[str, str] = {
    "docker-init": "tini",
    "mamba": "conda",
    "micromamba": "conda",
    "tini-static": "tini",
}


@attrs.frozen
class Launch:
    """How a command starts a program."""

    program: Program
    length: int
    """How many words come before the program's own arguments."""
    has_subcommand: bool
    """Whether it is ``vllm serve`` rather than the module of the server."""
    environment: Mapping[str, str]
    """What the words in front of the program assign."""


def plain_name(word: str) -> str:
    """A program's name without its directory; any Python is ``python``."""
    name = PurePosixPath(word).name
    return "python" if re.fullmatch(r"python3?(\.\d+)?", name) else name


def _option_length(launcher: Launcher, words: Sequence[str], name: str) -> int:
    """How many words the option takes that the words begin with.

    Raises:
        StartCommandError: it is not one of those that change nothing.
    """
    option = words[0]
    if option in launcher.flags or (launcher.number_is_option and re.fullmatch(r"-\d+", option)):
        return 1
    if option in launcher.with_value:
        return 2
    if option.startswith("--"):
        if option.partition("=")[0] in launcher.with_value:
            return 1
    elif f"-{option[1:2]}" in launcher.with_value or all(
        f"-{letter}" in launcher.flags for letter in option[1:]
    ):
        return 1
    raise StartCommandError(f"what {name} {option} does to the command is not known")


def _launcher_length(words: Sequence[str], assigned: dict[str, str]) -> int:
    """How many words of a launcher stand in front of the command that it runs; 0: none does."""
    name = plain_name(words[0])
    launcher = _LAUNCHERS.get(_ALIASES.get(name, name))
    if launcher is None:
        return 0
    at = 1
    if launcher.subcommand is not None:
        if len(words) < 2 or words[1] != launcher.subcommand:
            raise StartCommandError(f"{name} is understood with {launcher.subcommand} only")
        at = 2
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            at += 1
            break
        at += _option_length(launcher, words[at:], name)
    at += launcher.operands
    while launcher.assigns and at < len(words) and (found := _ASSIGNMENT.fullmatch(words[at])):
        assigned[found[1]] = found[2]
        at += 1
    return at


def _without_python_options(words: Sequence[str]) -> tuple[list[str], int]:
    """(the words with options of Python left out, how many these are)."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        if words[at] in _PYTHON_WITH_VALUE:
            at += 2
        elif _PYTHON_MODULE.fullmatch(words[at]):
            return ["python", "-m", *words[at + 1 :]], at - 1
        elif _PYTHON_FLAGS.fullmatch(words[at]) or words[at][:2] in _PYTHON_WITH_VALUE:
            at += 1
        else:
            raise StartCommandError(f"what python {words[at]} does is not known")
    # A script, which may be the engine's own: python /opt/venv/bin/vllm serve.
    return [plain_name(word) for word in words[at : at + 1]] + [*words[at + 1 :]], at


def skip_launchers(words: Sequence[str]) -> tuple[int, Mapping[str, str]]:
    """(how many words of launchers stand in front of the program, what they assign).

    Raises:
        StartCommandError: a launcher has an option that is not known to change nothing.
    """
    assigned: dict[str, str] = {}
    at = 0
    for _ in range(_MOST_LAUNCHERS):
        length = _launcher_length(words[at:], assigned) if at < len(words) else 0
        if length == 0:
            return at, assigned
        at += length
    raise StartCommandError(f"more than {_MOST_LAUNCHERS} programs start one another")


def find_launch(words: Sequence[str]) -> Launch | None:
    """How the words start an engine; None where they start another program.

    Raises:
        StartCommandError: it is not known what the words in front of it do.
    """
    at, assigned = skip_launchers(words)
    rest = list(words[at:])
    if not rest:
        return None
    rest[0] = plain_name(rest[0])
    if rest[0] == "python":
        rest, left_out = _without_python_options(rest)
        at += left_out
    for start, program in _STARTS.items():
        if tuple(rest[: len(start)]) == start:
            return Launch(program, at + len(start), start[-1] == "serve", assigned)
    return None
