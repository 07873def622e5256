"""Looks into a parsed ``config.json`` without trusting it.

Every question names the field it asks for, so every complaint can name the file, the field and the
value.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

import attrs

from ..errors import ModelError

#: No count or size in a model's configuration comes near; a larger one is a mistake, and figures
#: made from it would be printed as if they meant something.
_MAX_INTEGER = 2**31


@attrs.frozen
class Fields:
    """One object of a configuration file."""

    values: Mapping[str, Any]
    file: str
    """The file's name, for messages."""
    path: str = ""
    """Where in the file the object lies, such as ``text_config.``."""
    assumed: Mapping[str, Any] = attrs.field(factory=dict)
    """Of the values, those that decide much and are defaults of the model type, not in the file."""

    def error(self, field: str, problem: str) -> ModelError:
        """What is wrong with a field, as an error to raise."""
        return ModelError(f"{self.file}: {self.path}{field} {problem}")

    def has(self, field: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(field) is not None

    def positive(self, *names: str) -> int | None:
        """The first field that is there, as a positive integer.

        Args:
            names: the field's names in different families.

        Returns:
            None where all are absent, null or 0, which families use for "not given".

        Raises:
            ModelError: the value is anything else.
        """
        for name in names:
            value = self.values.get(name)
            if value is None or (type(value) is int and value == 0):
                continue
            if type(value) is not int or not 0 < value < _MAX_INTEGER:
                raise self.error(name, f"= {reprlib.repr(value)} is not a positive integer")
            return value
        return None

    def required(self, *names: str) -> int:
        """The same, where the model cannot be described without it.

        Raises:
            ModelError: it is missing or no positive integer.
        """
        value = self.positive(*names)
        if value is None:
            raise self.error(names[0], "is missing")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A field that is true or false.

        Raises:
            ModelError: it is neither.
        """
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, f"= {reprlib.repr(value)} is neither true nor false")
        return value

    def text(self, name: str) -> str | None:
        """A field that is a name.

        Raises:
            ModelError: it is something else.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise self.error(name, f"= {reprlib.repr(value)} is not a name")
        return value

    def names(self, name: str) -> list[str]:
        """A field that is a list of names.

        Raises:
            ModelError: it is something else.
        """
        return self._list(name, str, "names")

    def architectures(self) -> list[str]:
        """The classes that implement the model; none where the file names none.

        Raises:
            ModelError: the list is something else.
        """
        return self.names("architectures") if self.has("architectures") else []

    def integers(self, name: str) -> list[int]:
        """A field that is a list of integers, such as numbers of layers.

        Raises:
            ModelError: it is something else.
        """
        return self._list(name, int, "integers")

    def _list[T](self, name: str, kind: type[T], what: str) -> list[T]:
        value = self.values.get(name)
        # type() and not isinstance(): true and false are no integers.
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise self.error(name, f"= {reprlib.repr(value)} is not a list of {what}")
        return value

    def part(self, name: str) -> Fields | None:
        """An object in this object; None when it is not there.

        Raises:
            ModelError: it is something else.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, f"= {reprlib.repr(value)} is not an object")
        return Fields(value, self.file, f"{self.path}{name}.")
