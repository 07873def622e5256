"""What people may write behind an option."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

import click

from ..errors import KVCacheError, SizeError
from ..sizes import parse_size

#: No model's, GPU's or context's count is larger.
MAX_COUNT = 2**31 - 1

COUNT = click.IntRange(1, MAX_COUNT)


class InputError(click.ClickException):
    """Something that a person wrote cannot be used."""

    exit_code = 2

    def __init__(self, error: KVCacheError | ValueError) -> None:
        super().__init__(str(error))


class Size(click.ParamType):
    """A size such as 80GiB, in bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except SizeError as e:
            self.fail(str(e), param, ctx)


def _decimal(value: Any) -> Decimal | None:
    """A finite number; None where it is none."""
    try:
        number = Decimal(value)
    except (InvalidOperation, ValueError):
        return None
    return number if number.is_finite() else None


class Share(click.ParamType):
    """A part of one, exact as it is written."""

    name = "FRACTION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Decimal:
        share = _decimal(value)
        if share is None or not 0 < share <= 1:
            self.fail(f"{value!r} is not above 0 and up to 1", param, ctx)
        return share


class Seconds(click.ParamType):
    """A length of time."""

    name = "SECONDS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = _decimal(value)
        if seconds is None or not 0 < seconds <= MAX_COUNT:
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return float(seconds)


class Assignment(click.ParamType):
    """``NAME=VALUE``."""

    name = "NAME=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, equals, content = value.partition("=")
        if not (name and equals):
            self.fail(f"{value!r} is not written as NAME=VALUE", param, ctx)
        return name, content


class Gpus(click.ParamType):
    """A number of GPUs, none included, or a part of one."""

    name = "N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Decimal:
        count = _decimal(value)
        if count is None or not 0 <= count <= MAX_COUNT or (count > 1 and count % 1):
            self.fail(f"{value!r} is neither a number of GPUs nor a part of one", param, ctx)
        return count
