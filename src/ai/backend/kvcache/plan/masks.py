"""Command lines of users without the secrets in them: a plan is read by others too."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MASK = "***"

#: What an option, a variable, a header or a field is called that holds a secret. Repetitions have
#: bounds, so that long texts take no longer than they have to.
_NAME = (
    r"(?:[A-Za-z0-9]{1,40}[_.-]){0,8}(?:\w{0,40}(?:api[_-]?keys?|token|secrets?|passwords?|passwd)|key|"
    r"passphrase|pass|credentials?|authorization|signature|sig)(?:[_-]id)?"
)

#: One word of a shell's line: parts in quotes of all kinds, escaped characters and others. A quote
#: without an end goes to the end of the line.
_WORD = (
    r"(?:\$?'(?:\\.|[^'\\])*'|'[^']*(?:'|\Z)|\\\"(?:(?!\\\").)*(?:\\\"|\Z)|"
    r"\$?\"(?:\\.|[^\"\\])*(?:\"|\Z)|"
    r"\\.|[^\s'\"\\;|&<>])+"
)
_BLANK = r"(?:\s|\\\n)"

_FLAGS = re.DOTALL | re.IGNORECASE

#: Option with its values, which go on up to the next option.
_OPTION_IN_A_LINE = re.compile(
    rf"(--{_NAME}(?:=|{_BLANK}+))(?!-){_WORD}(?:{_BLANK}+(?!-){_WORD})*", _FLAGS
)

#: Assignments, parameters of addresses, and headers with or without the kind of authorization.
_NAMED = re.compile(
    rf"(?<![A-Za-z0-9_.-])({_NAME}(?:=|:\s*))(?:(?:bearer|basic|token)\s+)?{_WORD}", _FLAGS
)
_BEARER = re.compile(rf"(\bbearer{_BLANK}+){_WORD}", _FLAGS)

#: A field of JSON, whose quotes may be escaped; its value may be a list.
_FIELD = re.compile(
    rf"((\\{{0,7}}[\"']){_NAME}\2\s*:\s*)"
    r"(?:\[[^\]]*(?:\]|\Z)|(\\{0,7}[\"']).*?(?:(?<!\\)\3|\Z)|[^\s,}\]]+)",
    _FLAGS,
)

#: Who logs in by an address.
_ADDRESS = re.compile(r"(\w://)[^\s/@'\"]+@")

#: Keys of services that are known by their beginning.
_KNOWN_KEY = re.compile(r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|nvapi-)[\w-]{8,}")

_OPTION = re.compile(rf"--{_NAME}", re.IGNORECASE)
_WITH_VALUE = re.compile(rf"((?:--)?{_NAME}=).*", _FLAGS)
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_LINE_FOLLOWS = re.compile(r"-\w*c")


def masked(command: Sequence[str]) -> str:
    """A command as a line to read; values of keys, tokens, secrets and passwords are ***."""
    return shlex.join(_masked_words(command))


def _masked_words(command: Sequence[str]) -> Iterator[str]:
    is_value, is_line = False, False
    for word in command:
        is_value = is_value and not word.startswith("-")
        if is_value:
            yield _MASK
        elif not is_line and (whole := _WITH_VALUE.fullmatch(word)):
            yield whole[1] + _MASK
        else:
            yield masked_line(word)
        is_value = is_value or _OPTION.fullmatch(word) is not None
        is_line = _LINE_FOLLOWS.fullmatch(word) is not None


def masked_words(command: Sequence[str]) -> list[str]:
    """The same as a list of words."""
    return list(_masked_words(command))


def masked_line(line: str) -> str:
    """A shell's line, or a part of one, with the same values masked."""
    for pattern in (_FIELD, _OPTION_IN_A_LINE, _NAMED, _BEARER):
        line = pattern.sub(rf"\1{_MASK}", line)
    return _KNOWN_KEY.sub(_MASK, _ADDRESS.sub(rf"\1{_MASK}@", line))


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
