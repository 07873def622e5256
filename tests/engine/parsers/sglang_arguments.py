"""What the real SGLang makes of its command line: an oracle for this project's own commands.

    PYTHONPATH=WHEEL:SITE python sglang_arguments.py < QUESTION > ANSWER

The options of SGLang's hierarchical cache come and go from version to version, with other defaults
and other choices. So the arguments are given to the function that both of SGLang's entry points
parse with, `--config` with its YAML file included, and then, if a model's configuration is at hand,
to the one that decides what they mean before the server starts.

The question is `{"arguments": [...], "environment": {...}, "config": {...}}`. The arguments are
those of `python -m sglang.launch_server`, or with `serve` in front of them those of `sglang serve`,
which takes the model without `--model-path` too. The answer is one JSON object with `version`, and
`error` if SGLang refuses, or else `values`: what was parsed, by name, before SGLang derives
anything. With a `config`, which is the model's `config.json`, there is `resolved` too: what SGLang
derives of all that on a GPU of a kind that it knows nothing of. In this a folder with nothing but
the `config` stands for the model, whose path need not exist.

This needs Python 3.11, an unpacked wheel of SGLang, and behind it PyTorch, transformers and what
else SGLang imports; the packages of vLLM's CPU build will do but for those which have no use
without a GPU or a picture (see `_LEFT_OUT`). They are replaced by something that does nothing. It
imports nothing of this project.
"""

# Linters run where none of the engine's packages is installed.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from answering import StandIns, answer_question, plain

#: What SGLang imports for GPUs, pictures, sound, formats of weights and people at a prompt. Used
#: only if it is missing.
_LEFT_OUT = frozenset({
    "IPython",
    "gguf",
    "orjson",
    "torchaudio",
    "torchcodec",
    "torchvision",
    "triton",
})

#: Functions and classes that ask for one of those, and get along without.
_ASK_BEFORE = (
    "torch._dynamo:optimize",
    "torch._inductor.compile_fx:compile_fx",
    "torch._inductor.runtime.triton_compat:Config",
    "torch.utils._triton:has_triton_package",
    "torch.utils._triton:has_triton",
    "transformers.utils:is_torchvision_available",
    "transformers:AutoProcessor",
)


class _StandIns(StandIns):  # type: ignore[misc]
    """For SGLang alone: PyTorch and transformers get along without what is missing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        frame: FrameType | None = sys._getframe(1)
        while frame and str(frame.f_globals.get("__name__")).partition(".")[0] == "importlib":
            frame = frame.f_back
        if not frame or str(frame.f_globals.get("__name__")).partition(".")[0] != "sglang":
            return None
        spec: ModuleSpec | None = super().find_spec(fullname, path, target)
        return spec


def stand_in() -> None:
    # These ask once for Triton and torchvision. They must not find what SGLang will have imported.
    for name in _ASK_BEFORE:
        module, _, attribute = name.partition(":")
        asking = getattr(importlib.import_module(module), attribute)
        if attribute.startswith(("has_", "is_")):
            asking()
    sys.meta_path.append(_StandIns(_LEFT_OUT))


def _parse(arguments: Sequence[str]) -> Any:
    """What the server would be launched with, an instance of `ServerArgs`."""
    from sglang.srt.server_args import prepare_server_args

    arguments = list(arguments)
    if arguments[:1] == ["serve"]:
        from sglang.cli.serve import _extract_model_type_override, _normalize_positional_model_path

        _, arguments = _extract_model_type_override(arguments[1:])
        arguments, _ = _normalize_positional_model_path(arguments)
    return prepare_server_args(arguments)


def _fields(server_args: Any) -> dict[str, Any]:
    from sglang.srt.arg_groups.arg_utils import record_fields

    names = [field.name for field in record_fields(type(server_args))]
    return {name: getattr(server_args, name) for name in names if not name.startswith("_")}


def _resolve(server_args: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """What SGLang decides, by name. This is done to `server_args` itself."""
    model_path = server_args.model_path
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        server_args.model_path = folder
        # Left out, SGLang would look for a GPU.
        server_args.device = server_args.device or "cuda"
        server_args.resolve_once()
    return {
        key: model_path if value == folder else value
        for key, value in server_args.resolved_dict().items()
        if not key.startswith("_")
    }


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    os.environ.update(question.get("environment") or {})
    stand_in()
    from sglang.version import __version__ as version

    result: dict[str, Any] = {"version": version}
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            server_args = _parse(question["arguments"])
        values = plain(_fields(server_args))
        resolved = None
        if config := question.get("config"):
            resolved = plain(_resolve(server_args, config))
    except SystemExit:
        result["error"] = complaint.getvalue().strip().rpartition("error: ")[2]
    except Exception as error:
        traceback.print_exc()
        result["error"] = f"{type(error).__name__}: {error}"
    else:
        result["values"] = values
        if resolved is not None:
            result["resolved"] = resolved
    return result


if __name__ == "__main__":
    answer_question(answer)
