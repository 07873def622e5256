"""Command lines of users without the secrets in them: a plan is read by others too."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

_MASK = "***"

#: An option such as --api-key, or a variable such as OPENAI_API_KEY.
_OPTION = r"--(?:[\w-]+[-_])?(?:key|token|secret|password)"
_VARIABLE = r"\b(?:\w+_)?(?:KEY|TOKEN|SECRET|PASSWORD)"

#: A word that is an option with its value.
_WITH_VALUE = re.compile(rf"({_OPTION}=).*", re.DOTALL)

#: The same in a shell's line, which is one word as well.
_IN_A_LINE = re.compile(rf"({_OPTION}(?:=|\s+)|{_VARIABLE}=)(?:'[^']*'|\"[^\"]*\"|[^\s'\"]+)")


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
