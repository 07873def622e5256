"""What a shell makes of a word: quotes removed, variables filled in, split at blanks."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence

import attrs

from .shell import Kind, Piece, Word

_BLANKS = re.compile(r"[ \t\n]+")

#: With these a shell may put names of files, or several words, in the place of one.
_PATTERN = re.compile(r"[*?\[]|[@+!]\(")
_BRACES = re.compile(r"\{.*(?:,|\.\.).*\}", re.DOTALL)

#: An argument that looks like an assignment: bash expands a tilde behind "=" and ":" in it.
_ASSIGNMENT_WITH_TILDE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=(?:~|.*:~)", re.DOTALL)

_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    # A shell cuts off towards zero, Python rounds down: only positive numbers get here.
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}

#: Numbers of a shell have 64 bits.
_LARGEST = 2**63


@attrs.frozen
class Argument:
    """One argument of a program."""

    text: str
    """As the program is given it; where it is not certain, as it is written."""
    is_certain: bool = True
    word: int | None = None
    """Which word of the command makes it. None: none that can be changed."""
    is_whole: bool = True
    """Whether the word makes this argument and nothing else."""


@attrs.frozen
class Variables:
    """What a line's expansions can draw from."""

    values: Mapping[str, str | None]
    """None: set to something that is not known. A variable that is missing may be set as well, by
    the image for example; only a default in the line says what holds without it."""
    positional: Sequence[str] | None = ()
    """``$1`` and so on; None: not known."""


class _UnknownError(Exception):
    """What an expansion gives is not known."""


def _calculated(node: ast.expr, variables: Variables) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        number = node.value
    elif isinstance(node, ast.Name):
        value = variables.values.get(node.id)
        if value is None or not re.fullmatch(r"[1-9][0-9]{0,17}|0", value):
            raise _UnknownError
        number = int(value)
    elif isinstance(node, ast.BinOp) and (operation := _OPERATIONS.get(type(node.op))):
        left, right = _calculated(node.left, variables), _calculated(node.right, variables)
        if isinstance(node.op, ast.Div | ast.Mod) and (left < 0 or right <= 0):
            raise _UnknownError
        number = operation(left, right)
    else:
        raise _UnknownError
    if abs(number) >= _LARGEST:
        raise _UnknownError
    return number


def _arithmetic(expression: str, variables: Variables) -> str:
    try:
        # "$NAME" is "NAME" in an arithmetic expression.
        source = re.sub(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?", r"\1", expression).strip()
        # Python takes forms that a shell does not, such as 1_000 and 0x_1.
        if not re.fullmatch(r"[A-Za-z0-9_+*/%() \t-]*", source) or re.search(r"\d_", source):
            raise _UnknownError
        return str(_calculated(ast.parse(source, mode="eval").body, variables))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise _UnknownError from e


def _joined(pieces: Sequence[Piece], variables: Variables) -> str:
    """Pieces as one text that is not split."""
    return "".join(_value(piece, variables) for piece in pieces)


def _value(piece: Piece, variables: Variables) -> str:
    if piece.kind is Kind.TEXT:
        return piece.text
    if piece.kind is Kind.ARITHMETIC:
        return _arithmetic(piece.text, variables)
    if piece.kind is Kind.OPAQUE:
        raise _UnknownError
    if piece.text.isdigit():
        value = _positional(int(piece.text), variables)
    elif re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", piece.text):
        value = variables.values.get(piece.text)
        if value is None and (piece.text in variables.values or not piece.operator):
            raise _UnknownError
    else:
        raise _UnknownError
    if not piece.operator:
        return value or ""
    is_set = bool(value) if piece.operator.startswith(":") else value is not None
    if piece.operator.endswith("+"):
        return _joined(piece.default, variables) if is_set else ""
    if is_set:
        return value or ""
    if piece.operator.endswith("?"):
        raise _UnknownError
    return _joined(piece.default, variables)


def _positional(number: int, variables: Variables) -> str | None:
    if number == 0 or variables.positional is None:
        raise _UnknownError
    behind = variables.positional[number - 1 : number]
    return behind[0] if behind else None


def _tilde(pieces: Sequence[Piece], variables: Variables) -> Sequence[Piece]:
    """The pieces with the home directory in the place of a tilde."""
    if not pieces or pieces[0] != Piece(Kind.TEXT, "~", is_quoted=False):
        return pieces
    if len(pieces) > 1 and pieces[1] != Piece(Kind.TEXT, "/", is_quoted=False):
        # The home of somebody else.
        raise _UnknownError
    home = variables.values.get("HOME")
    if home is None:
        raise _UnknownError
    return (Piece(Kind.TEXT, home, is_quoted=True), *pieces[1:])


def assigned(pieces: Sequence[Piece], variables: Variables) -> str | None:
    """What an assignment gives a variable: nothing is split. None: not known."""
    bare = "".join(p.text if p.kind is Kind.TEXT and not p.is_quoted else " " for p in pieces)
    try:
        return None if ":~" in bare else _joined(_tilde(pieces, variables), variables)
    except _UnknownError:
        return None


def _is_several(piece: Piece) -> bool:
    return piece.kind is Kind.VARIABLE and piece.text in ("@", "*")


def _fields(word: Word, variables: Variables) -> list[str]:
    bare = "".join(p.text if p.kind is Kind.TEXT and not p.is_quoted else "\0" for p in word.pieces)
    if _PATTERN.search(bare) or _BRACES.search(bare) or _ASSIGNMENT_WITH_TILDE.match(word.raw):
        raise _UnknownError
    fields: list[str] = []
    current: str | None = None
    for piece in _tilde(word.pieces, variables):
        if _is_several(piece):
            alone = [p for p in word.pieces if p != Piece(Kind.TEXT, "", is_quoted=True)]
            is_joined = piece.is_quoted and piece.text == "*"
            if variables.positional is None or piece.operator or is_joined or len(alone) > 1:
                raise _UnknownError
            if piece.is_quoted:
                return list(variables.positional)
            values = [field for value in variables.positional for field in _split(value)]
            return [field for field in values if field]
        value = _value(piece, variables)
        if piece.kind is Kind.TEXT or piece.is_quoted:
            current = (current or "") + value
            continue
        for number, field in enumerate(_split(value)):
            if number > 0:
                fields += [] if current is None else [current]
                current = None
            if field:
                current = (current or "") + field
    return fields if current is None else [*fields, current]


def _split(value: str) -> list[str]:
    """A value that stands in no quotes: cut at blanks; an empty end says that a blank was there."""
    if _PATTERN.search(value):
        raise _UnknownError
    return _BLANKS.split(value)


def expand(word: Word, variables: Variables, index: int) -> list[Argument]:
    """The arguments that a word makes: one in most cases, none or several without quotes."""
    try:
        fields = _fields(word, variables)
    except _UnknownError:
        return [Argument(word.raw, is_certain=False, word=index)]
    is_whole = len(fields) == 1 and not any(map(_is_several, word.pieces))
    return [Argument(field, word=index, is_whole=is_whole) for field in fields]
