"""What the scripts of this folder have in common: a question on standard input, an answer back."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock


class _StandIn(ModuleType):
    """A module whose every attribute exists and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class StandIns(MetaPathFinder, Loader):
    """Finds a stand-in for each of the packages that an image leaves out.

    Appended to `sys.meta_path`, it is asked last, so that a package that is there is taken.
    """

    def __init__(self, left_out: Collection[str]) -> None:
        self._left_out = left_out

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self._left_out:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def fields_of(value: Any) -> dict[str, Any]:
    """A dataclass as JSON, as far as its fields are set."""
    return {
        field.name: plain(getattr(value, field.name))
        for field in dataclasses.fields(value)
        if hasattr(value, field.name)
    }


def plain(value: Any) -> Any:
    """The value as JSON; a dataclass is an object with its type and its fields."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Enum():
            return value.name
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {"type": type(value).__name__, **fields_of(value)}
        # LMCache's adapters have configurations that are no dataclasses.
        case _ if type(value).__module__.startswith("lmcache.") and hasattr(value, "__dict__"):
            return {"type": type(value).__name__, **plain(vars(value))}
        case _:
            return str(value)


def _values_of(action: argparse.Action) -> str:
    """How many words follow an option."""
    match action.nargs:
        case 0:
            return "none"
        case None:
            return "one"
        case "?":
            return "optional"
        case int(count):
            return "one" if count == 1 else "many"
        case _:
            return "many"


def options_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """All spellings of an option, with spaces between → how many words follow it."""
    # The spellings that an option's help leaves out are registered all the same.
    names: dict[int, list[str]] = {}
    actions: dict[int, argparse.Action] = {}
    for name, action in parser._option_string_actions.items():
        if not isinstance(action, argparse._HelpAction):
            names.setdefault(id(action), []).append(name)
            actions[id(action)] = action
    return {" ".join(names[key]): _values_of(actions[key]) for key in names}


def answer_question(answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Answers the question on standard input. What the engine prints goes to standard error."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with output:
        json.dump(answer(json.load(sys.stdin)), output, indent=1, default=str)
        output.write("\n")
