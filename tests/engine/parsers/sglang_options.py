"""Which options and variables the real SGLang has.

    PYTHONPATH=WHEEL:SITE python sglang_options.py < QUESTION > ANSWER

The question is `{}`. The answer is one JSON object with `version`, `options` and `variables`.
`options` has all spellings of an option, with spaces between, and how many words follow it: `none`,
`one`, `optional` or `many`. The options come from SGLang's own parser, and the variables are those
that SGLang's module `environ` declares. `tests/data/options/` holds the answers of released
versions.

What this needs is what `sglang_arguments.py` needs. It imports nothing of this project.
"""

# Linters run where none of the engine's packages is installed.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any
from unittest.mock import MagicMock

from answering import answer_question, options_of
from sglang_arguments import stand_in

#: Kernels from which an older SGLang's parser takes one number. They ask Triton for a GPU.
_KERNELS = "sglang.srt.layers.attention.fla.chunk_delta_h"


def _allow_older_sglang() -> None:
    """Lets an older SGLang be imported without a GPU and with a newer Transformers."""
    from transformers import AutoConfig

    sys.modules[_KERNELS] = MagicMock()
    # It registers models that Transformers has got since.

    register = AutoConfig.register
    AutoConfig.register = partial(register, exist_ok=True)


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    stand_in()
    _allow_older_sglang()
    from sglang.srt.environ import EnvField, Envs
    from sglang.srt.server_args import ServerArgs
    from sglang.version import __version__ as version

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    variables = [name for name, value in vars(Envs).items() if isinstance(value, EnvField)]
    return {"version": version, "options": options_of(parser), "variables": sorted(variables)}


if __name__ == "__main__":
    answer_question(answer)
