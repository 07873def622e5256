"""Which options and variables the real vLLM has.

    PYTHONPATH=WHEEL:SITE python vllm_options.py < QUESTION > ANSWER

The question is `{}`. The answer is one JSON object with `version`, `options` and `variables`.
`options` has all spellings of an option, with spaces between, and how many words follow it: `none`,
`one`, `optional` or `many`. The options are those of `vllm serve`, from vLLM's own parser, and the
variables are those that vLLM's module `envs` declares. `tests/data/options/` holds the answers of
released versions.

This needs Python 3.11 and vLLM's packages, its CPU build will do. An older or newer vLLM in an
unpacked wheel in front of them works too. It imports nothing of this project. A package that only
another version imports is replaced by something that does nothing (see `_LEFT_OUT`).
"""

# Linters run where none of the engine's packages is installed.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from answering import StandIns, answer_question, options_of

#: What vLLM imports for formats of weights. Used only if it is missing.
_LEFT_OUT = frozenset({"gguf"})

#: Where the parser of `vllm serve` has been, newest first.
_PARSER_MODULES = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)


def _build_for_cpus() -> None:
    """Has any build take itself for the one for CPUs: others look for a GPU, even to parse."""
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    version = importlib.metadata.version

    # Up to 0.22 this is what counts, and the CPU build is a distribution of another name.
    def version_of_any_build(distribution_name: str) -> str:
        return "0+cpu" if distribution_name == "vllm" else version(distribution_name)

    importlib.metadata.version = version_of_any_build


def _parser() -> ArgumentParser:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    for name in _PARSER_MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A parent package may be missing as well, but nothing that the module itself imports.
            if not name.startswith(str(error.name)):
                raise
        else:
            parser: ArgumentParser = module.make_arg_parser(FlexibleArgumentParser())
            return parser
    raise RuntimeError("this vLLM has its parser in none of the modules that are known")


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    _build_for_cpus()
    sys.meta_path.append(StandIns(_LEFT_OUT))
    import vllm
    from vllm import envs

    return {
        "version": vllm.__version__,
        "options": options_of(_parser()),
        "variables": sorted(envs.environment_variables),
    }


if __name__ == "__main__":
    answer_question(answer)
