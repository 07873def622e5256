"""What the real SGLang makes of its command line: an oracle for this project's own commands.

    PYTHONPATH=WHEEL:SITE python sglang_arguments.py < QUESTION > ANSWER

The options of SGLang's hierarchical cache come and go from version to version, with other defaults
and other choices. So the arguments are given to the function that both of SGLang's entry points
parse with, `--config` with its YAML file included.

The question is `{"arguments": [...], "environment": {...}}`. The arguments are those of
`python -m sglang.launch_server`, or with `serve` in front of them those of `sglang serve`, which
takes the model without `--model-path` too. The answer is one JSON object with `version`, and
`error` if SGLang refuses, or else `values`: what was parsed, by name. What SGLang derives or
refuses later, for which it needs the model and a GPU, is left out.

This needs Python 3.11, an unpacked wheel of SGLang, and behind it PyTorch, transformers and what
else SGLang imports; the packages of vLLM's CPU build will do but for Triton, which has no use
without a GPU and is replaced by something that does nothing. It imports nothing of this project.
"""

# Linters run where none of the engine's packages is installed.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from enum import Enum
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

#: What SGLang cannot be imported without. Used only if it is missing.
_LEFT_OUT = frozenset({"triton"})


class _StandIn(ModuleType):
    """A module whose every attribute exists and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class _StandIns(MetaPathFinder, Loader):
    """Finds a stand-in for each package that was left out.

    For SGLang alone: PyTorch and transformers get along without, and must see that it is missing.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in _LEFT_OUT or not self._sglang_asks():
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass

    @staticmethod
    def _sglang_asks() -> bool:
        frame = sys._getframe(1)
        while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in {
            "importlib",
            __name__,
        }:
            frame = frame.f_back
        return str(frame.f_globals.get("__name__")).partition(".")[0] == "sglang"


def _plain(value: Any) -> Any:
    """The value as JSON."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Enum():
            return value.name
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case _:
            return str(value)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What `ServerArgs` would be made of."""
    from sglang.srt.server_args import ServerArgs, prepare_server_args

    arguments = list(arguments)
    if arguments[:1] == ["serve"]:
        from sglang.cli.serve import _extract_model_type_override, _normalize_positional_model_path

        _, arguments = _extract_model_type_override(arguments[1:])
        arguments, _ = _normalize_positional_model_path(arguments)

    made_of: list[argparse.Namespace] = []

    def record(namespace: argparse.Namespace) -> argparse.Namespace:
        made_of.append(namespace)
        return namespace

    ServerArgs.from_cli_args = staticmethod(record)
    prepare_server_args(arguments)
    return made_of[0]


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    os.environ.update(question.get("environment") or {})
    sys.meta_path.append(_StandIns())
    from sglang.version import __version__ as version

    result: dict[str, Any] = {"version": version}
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            namespace = _parse(question["arguments"])
    except SystemExit:
        result["error"] = complaint.getvalue().strip().rpartition("error: ")[2]
    except Exception as error:
        traceback.print_exc()
        result["error"] = f"{type(error).__name__}: {error}"
    else:
        public = {key: value for key, value in vars(namespace).items() if not key.startswith("_")}
        result["values"] = _plain(public)
    return result


def main() -> None:
    # Whatever SGLang prints goes to standard error.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with output:
        json.dump(answer(json.load(sys.stdin)), output, indent=1)
        output.write("\n")


if __name__ == "__main__":
    main()
