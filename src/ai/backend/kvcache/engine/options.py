"""Which of an engine's options and variables change what a cached block means.

Two sessions may share blocks only where everything that has such an effect is the same. What each
option does is data (``option_tables/``), by engine and for all versions that were gone through. An
option that no table knows counts as one that changes the meaning: a new version can cost hits, and
cannot cause a wrong one.

A table is a YAML file. ``prefixes`` are the beginnings of the variables that are the engine's.
``options`` and ``variables`` are groups with an effect, the reason, and names with blanks between:
under ``names`` options with one value, under ``lists`` with several, under ``flags`` without any.
Other spellings of the same follow a name behind "=". A name with a dot is one field of an option
that is JSON, and takes the place of the option's effect for it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

import attrs
import yaml

#: What may be recorded as it was written. Everything else may hold a secret.
_PLAIN_VALUE = re.compile(r"[\w.,:+-]{0,48}")

#: The same for the name of an option that is not known.
_PLAIN_NAME = re.compile(r"--[A-Za-z][\w-]{1,62}|-[A-Za-z]{1,3}")

_NEGATIVE_NUMBER = re.compile(r"-\d*\.?\d+(?:e-?\d+)?", re.IGNORECASE)

#: A flag's opposite: vLLM has both forms from 0.33 on (utils/argparse_utils.py).
_OPPOSITES = (("--enable-", "--disable-"), ("--disable-", "--enable-"))


class Effect(StrEnum):
    """What an option or a variable does to cached blocks."""

    MEANING = "meaning"
    """The same tokens have other keys and values, or other blocks the same key."""
    BYTES = "bytes"
    """The engine's own blocks lie in memory in another way. It counts where files hold those."""
    SOME_MODELS = "some-models"
    """Some models compute by it (``model/watched.py``), for others it changes nothing."""
    REFUSED = "refused"
    """No blocks may be kept with it."""
    ELSEWHERE = "elsewhere"
    """The namespace has it in another form, or another module refuses the session."""
    NOTHING = "nothing"
    """Nothing."""


@attrs.frozen
class Known:
    """What a table says of an option or a variable."""

    name: str
    """The one of its spellings that stands for all."""
    effect: Effect
    because: str
    values: str
    """How many words follow: ``none``, ``one`` or ``many``."""


@attrs.frozen
class Choice:
    """An option or a variable that was given, as far as it has an effect."""

    name: str
    value: str
    """As it was written, or its hash where it may be a secret."""
    effect: Effect
    because: str


@attrs.frozen
class OptionTable:
    """What is known of one engine's, or one package's, options and variables."""

    options: Mapping[str, tuple[Known, bool]]
    """Every spelling → (the option, False for one that switches it off)."""
    variables: Mapping[str, Known]
    prefixes: tuple[str, ...]

    def named(self, written: str) -> tuple[Known, bool] | None:
        """The option that is meant, and whether it is switched on.

        Engines take the beginning of an option, where it is no other's.

        Returns:
            None where the option is not known, or it is not certain which one is meant.
        """
        if written in self.options:
            return self.options[written]
        meant = {found for name, found in self.options.items() if _begins(written, name)}
        return meant.pop() if len(meant) == 1 else None

    def changes_nothing(self, written: str) -> bool:
        """Whether it is certain that an option has no effect, whichever is meant."""
        if written in self.options:
            return self.options[written][0].effect is Effect.NOTHING
        meant = [known for name, (known, _) in self.options.items() if _begins(written, name)]
        return bool(meant) and all(known.effect is Effect.NOTHING for known in meant)

    def chosen(self, arguments: Sequence[str]) -> tuple[Choice, ...]:
        """What of an engine's arguments has an effect.

        Args:
            arguments: the last of several counts, so those of a configuration file stand in front.
        """
        found = _Found()
        place = 0
        while place < len(arguments):
            token = arguments[place]
            place += 1
            if not _is_option(token):
                continue
            end = place
            while end < len(arguments) and not _is_option(arguments[end]):
                end += 1
            self._read(found, token, arguments[place:end])
        return tuple(self._choices(found))

    def _read(self, found: _Found, token: str, following: Sequence[str]) -> None:
        """Reads one option. The words that follow need not all belong to it."""
        written, equals, rest = token.partition("=")
        whole, dot, path = written.partition(".")
        if whole.startswith("--"):
            whole = whole.replace("_", "-")
        words = [rest] if equals else list(following)
        meant = self.named(whole)
        if meant is None and whole[1] != "-" and (short := self.options.get(token[:2])):
            # A letter with its value in the same word.
            meant, words, dot = short, [token[2:].removeprefix("=")], ""
        if meant is None:
            if not self.changes_nothing(whole):
                found.unknown.setdefault(whole, []).append([token, *words])
            return
        known, is_on = meant
        if dot:
            found.give_field(known, path, words[0] if words else "")
        elif known.values == "none":
            found.give(known, "true" if is_on else "false")
        elif known.values == "one":
            found.give(known, words[0] if words else "")
        else:
            found.give(known, words[0] if len(words) == 1 else json.dumps(list(words)))

    def _choices(self, found: _Found) -> Iterator[Choice]:
        for known, text in found.values.items():
            fields = _object(text)
            if not fields or known in found.fields:
                # Beside fields of its own an option is not what vLLM takes, but it was given.
                yield from _choice(known, known.name, text)
            else:
                yield from self._fields(known, fields)
        for known, fields in found.fields.items():
            yield from self._fields(known, fields)
        for whole, given in found.unknown.items():
            name = whole if _PLAIN_NAME.fullmatch(whole) else f"{whole[:2]}…{_hashed(whole)}"
            because = "no table knows the option, so it counts"
            yield Choice(name, _hashed(json.dumps(given)), Effect.MEANING, because)

    def _fields(self, whole: Known, fields: Mapping[str, Any]) -> Iterator[Choice]:
        for field, value in fields.items():
            name = f"{whole.name}.{field}"
            if name in self.options:
                known, _ = self.options[name]
                text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
                yield from _choice(known, known.name, text)
            else:
                yield from _choice(whole, name, json.dumps(value, sort_keys=True), is_plain=False)

    def chosen_in(self, environ: Mapping[str, str]) -> tuple[Choice, ...]:
        """What of a session's variables has an effect."""
        choices: list[Choice] = []
        for name, value in environ.items():
            if (known := self.variables.get(name)) is not None:
                choices += _choice(known, name, value)
            elif name.startswith(self.prefixes):
                because = "no table knows the variable, so it counts"
                choices.append(Choice(name, _hashed(value), Effect.MEANING, because))
        return tuple(choices)


class _Found:
    """What was read of arguments so far."""

    def __init__(self) -> None:
        self.values: dict[Known, str] = {}
        self.fields: dict[Known, dict[str, Any]] = {}
        self.unknown: dict[str, list[list[str]]] = {}

    def give(self, known: Known, value: str) -> None:
        self.values[known] = value

    def give_field(self, known: Known, path: str, text: str) -> None:
        """One field of an option that is JSON, as vLLM reads it: ``--option.field.field value``.

        A path that ends in "+" adds to a list.
        """
        value: Any
        if path.endswith("+"):
            path, value = path[:-1], text.split(",")
        else:
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = text
        into = self.fields.setdefault(known, {})
        *outer, last = path.split(".")
        for name in outer:
            inner = into.get(name)
            into[name] = into = inner if isinstance(inner, dict) else {}
        old = into.get(last)
        if isinstance(old, list) and isinstance(value, list):
            value = [*old, *value]
        elif isinstance(old, dict) and isinstance(value, dict):
            value = {**old, **value}
        into[last] = value


def _begins(written: str, name: str) -> bool:
    return len(written) > 2 and written.startswith("--") and name.startswith(written)


def _is_option(token: str) -> bool:
    return token[:1] == "-" and token not in ("-", "--") and not _NEGATIVE_NUMBER.fullmatch(token)


def _object(text: str) -> dict[str, Any] | None:
    """A value that is a JSON object; None for any other."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _hashed(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:32]}"


def _choice(known: Known, name: str, value: str, *, is_plain: bool = True) -> Iterator[Choice]:
    if known.effect in (Effect.NOTHING, Effect.ELSEWHERE):
        return
    if not (is_plain and _PLAIN_VALUE.fullmatch(value)):
        value = _hashed(value)
    yield Choice(name, value, known.effect, known.because)


def _group(group: Mapping[str, str]) -> Iterator[tuple[list[str], Known]]:
    """(all spellings, what is known), for each name of a group."""
    effect, because = Effect(group["effect"]), group["because"].strip()
    for key, values in (("names", "one"), ("lists", "many"), ("flags", "none")):
        for spellings in group.get(key, "").split():
            names = spellings.split("=")
            yield names, Known(names[0], effect, because, values)


def described(choices: Iterable[Choice]) -> dict[str, str | list[str]]:
    """Choices as a namespace's description has them.

    What was given in two ways, such as ``--spec-method`` and ``--speculative-config.method``, has
    all its values: which one an engine takes depends on its version.
    """
    values: dict[str, list[str]] = {}
    for choice in choices:
        values.setdefault(choice.name, []).append(choice.value)
    return {name: given[0] if len(given) == 1 else given for name, given in values.items()}


@cache
def option_table(package: str) -> OptionTable:
    """The table of a package.

    Raises:
        KeyError: the package has none.
    """
    if package not in TABLES:
        raise KeyError(package)
    content = yaml.safe_load(
        files(__package__).joinpath("option_tables", f"{package}.yaml").read_text("utf-8")
    )
    options: dict[str, tuple[Known, bool]] = {}
    groups = [found for group in content.get("options", ()) for found in _group(group)]
    for names, known in groups:
        options |= dict.fromkeys(names, (known, True))
    for names, known in groups:
        for name in names if known.values == "none" else ():
            options.setdefault(f"--no-{name.lstrip('-')}", (known, False))
            for beginning, opposite in _OPPOSITES:
                if name.startswith(beginning):
                    other = opposite + name.removeprefix(beginning)
                    options.setdefault(other, (known, False))
    variables = {
        names[0]: known for group in content["variables"] for names, known in _group(group)
    }
    return OptionTable(options, variables, tuple(content["prefixes"].split()))


#: The packages that have a table.
TABLES = ("vllm", "lmcache", "sglang")
