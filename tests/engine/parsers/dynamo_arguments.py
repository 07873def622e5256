"""What the real Dynamo makes of its command line: an oracle for this project's own commands.

    PYTHONPATH=WHEEL:SITE python dynamo_arguments.py < QUESTION > ANSWER

Dynamo's worker for vLLM takes options of its own and hands all others to vLLM's parser, from which
it takes some away, such as the model without `--model`; then it refuses combinations and overrides
defaults. So the arguments are given to the function that `python -m dynamo.vllm` starts with.

The question is `{"arguments": [...], "environment": {...}}` with what follows
`python -m dynamo.vllm`. The answer is one JSON object with `version`, and `error` if Dynamo or vLLM
refuses, or else `values`, Dynamo's own configuration by name, and `engine`, what it would configure
vLLM with, also by name. A nested configuration is an object with `type` and its fields.

This needs Python 3.11, an unpacked wheel of `ai-dynamo`, and behind it vLLM's packages, of which
the CPU build will do; they may be of another version than the one that Dynamo asks for. It imports
nothing of this project. The compiled `ai-dynamo-runtime` is replaced if it is missing: all that the
parser asks of it is which names the parsers for tools and reasoning have, and then any name is one.
"""

# Linters run where none of the engine's packages is installed.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from answering import StandIns, answer_question, fields_of, plain

#: What of `ai-dynamo-runtime` is imported on the way, below `dynamo`. Used only if it is missing.
_LEFT_OUT = frozenset({"_core", "llm", "prometheus_names", "runtime"})


def _any_name() -> None:
    """Without choices, argparse takes any value."""


class _Runtime(StandIns):  # type: ignore[misc]
    """Finds a stand-in for each module of the compiled distribution, if that is missing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not super().find_spec(fullname.removeprefix("dynamo."), path, target):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "dynamo._core":
            vars(module).update(
                get_reasoning_parser_names=_any_name, get_tool_parser_names=_any_name
            )


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    os.environ.update(question.get("environment") or {})
    sys.meta_path.append(_Runtime(_LEFT_OUT))
    from dynamo.vllm.args import parse_args_with_model_fetch

    result: dict[str, Any] = {"version": importlib.metadata.version("ai-dynamo")}
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            config = asyncio.run(parse_args_with_model_fetch(question["arguments"]))
    except SystemExit:
        result["error"] = complaint.getvalue().strip().rpartition("error: ")[2]
    except Exception as error:
        traceback.print_exc()
        result["error"] = f"{type(error).__name__}: {error}"
    else:
        values = {
            key: value
            for key, value in vars(config).items()
            if not key.startswith("_") and key != "engine_args"
        }
        result |= {"values": plain(values), "engine": fields_of(config.engine_args)}
    return result


if __name__ == "__main__":
    answer_question(answer)
