"""Command lines of users without the secrets in them: a plan is read by others too."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MASK = "***"

#: An option such as --api-key, or a variable such as OPENAI_API_KEY.
_OPTION = r"--(?:[\w-]+[-_])?(?:key|token|secret|password)"
_VARIABLE = r"\b(?:\w+_)?(?:KEY|TOKEN|SECRET|PASSWORD)"

#: A word that is an option with its value.
_WITH_VALUE = re.compile(rf"({_OPTION}=).*", re.DOTALL)

#: The same in a shell's line, which is one word as well.
_IN_A_LINE = re.compile(rf"({_OPTION}(?:=|\s+)|{_VARIABLE}=)(?:'[^']*'|\"[^\"]*\"|[^\s'\"]+)")

#: The name of a setting, as options and variables are called.
_SECRET_NAME = re.compile(r"(?:[\w-]+[-_])?(?:key|token|secret|password)", re.IGNORECASE)


def masked(command: Sequence[str]) -> str:
    """A command as a line to read; values of keys, tokens, secrets and passwords are ***."""
    return shlex.join(_masked_words(command))


def _masked_words(command: Sequence[str]) -> Iterator[str]:
    is_value = False
    for word in command:
        if is_value:
            yield _MASK
        elif whole := _WITH_VALUE.fullmatch(word):
            yield whole[1] + _MASK
        else:
            yield _IN_A_LINE.sub(rf"\1{_MASK}", word)
        is_value = re.fullmatch(_OPTION, word) is not None


def masked_words(command: Sequence[str]) -> list[str]:
    """The same as a list of words."""
    return list(_masked_words(command))


def masked_line(line: str) -> str:
    """A shell's line, or a part of one, with the same values masked."""
    return _IN_A_LINE.sub(rf"\1{_MASK}", line)


def masked_settings(value: Any) -> Any:
    """What a YAML or JSON file holds, with the same values masked at every depth."""
    if isinstance(value, Mapping):
        return {
            name: _MASK if _SECRET_NAME.fullmatch(str(name)) else masked_settings(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [masked_settings(item) for item in value]
    return masked_line(value) if isinstance(value, str) else value
