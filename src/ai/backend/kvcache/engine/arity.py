"""How many values options take: what tells a model from the value of an option.

It is what vLLM's parsers say (option_tables/vllm.yaml). An option that is not known counts as one
with a value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .options import option_table

_TABLE = option_table("vllm")

#: Options without a value that are in no table, since nobody starts a service with them.
_HELP = frozenset({"-h", "--help"})

#: What names the model, by the spellings of all programs.
_MODEL_OPTIONS = frozenset({"--model", "--model-path"})


def _values(option: str) -> str:
    """How many words behind an option belong to it: ``none``, ``one`` or ``many``."""
    if "=" in option or option in _HELP or re.fullmatch(r"-O.+", option):
        return "none"
    whole, dot, _ = option.partition(".")
    known = _TABLE.named(whole.replace("_", "-"))
    return "one" if dot or known is None else known[0].values


def option_of(arguments: Sequence[str], place: int) -> str | None:
    """The option that the word at a place is a value of; None where it is none's."""
    at = place - 1
    while at >= 0 and not arguments[at].startswith("-"):
        at -= 1
    if at < 0:
        return None
    values = _values(arguments[at])
    is_its = values == "many" or (values == "one" and at == place - 1)
    return arguments[at] if is_its else None


def positional_place(arguments: Sequence[str]) -> int | None:
    """The first argument that belongs to no option, as argparse finds it. It names the model."""
    at = 0
    while at < len(arguments):
        token = arguments[at]
        if not token.startswith("-"):
            return at
        at += 1
        values = _values(token)
        while values != "none" and not _is_option(arguments[at : at + 1]):
            at += 1
            if values == "one":
                break
    return None


def _is_option(word: Sequence[str]) -> bool:
    """Whether no word is left, or one that cannot be a value. A negative number can."""
    return not word or (word[0].startswith("-") and not re.fullmatch(r"-[0-9.]+", word[0]))


def model_place(arguments: Sequence[str]) -> tuple[int, str] | None:
    """(the argument that names the model, what stands in front of the name in it)."""
    if (positional := positional_place(arguments)) is not None:
        return positional, ""
    for at, token in enumerate(arguments):
        option, equals, _ = token.partition("=")
        if option.replace("_", "-") not in _MODEL_OPTIONS:
            continue
        if equals:
            return at, f"{option}="
        if at + 1 < len(arguments):
            return at + 1, ""
    return None
