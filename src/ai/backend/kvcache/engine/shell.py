"""A shell's line, split into words and operators as bash splits it.

Only what a start command needs is read: simple commands with their quotes, expansions and
redirections. Everything else raises. No library does this job: bashlex is under the GPL, and
tree-sitter's grammar for bash (0.25.1) reads ``cmd 2>&1 word``, a backslash before a blank and a
carriage return otherwise than bash does. The tests compare each readable line with a real bash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

import attrs

from ..errors import StartCommandError

#: Longer lines are not read, so that reading takes milliseconds at most.
_LONGEST_LINE = 32_768

#: Substitutions and defaults may stand in one another this deep.
_DEEPEST = 8

#: Longest first. ``<(`` and ``>(`` begin a word and are not among them.
_OPERATOR = re.compile(r"&>>|<<<|<<-|&&|\|\||;;|;&|\|&|&>|>>|>&|>\||<&|<>|<<|[\n|&;()<>]")

_CUT_VARIABLE = re.compile(r"\$[A-Za-z0-9_{]*\\\n[A-Za-z0-9_{(]")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|([0-9@*#?$!-]))")
_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*])(:?[-=?+])?")

#: Expansions such as ``${NAME%.*}``: what they give is not computed.
_OTHER_BRACED = re.compile(r"\$\{[^{}'\"`$\\\n]*\}")
_ARITHMETIC = re.compile(r"\$\(\(([^()'\"`\\\n]*(?:\([^()'\"`\\\n]*\)[^()'\"`\\\n]*)*)\)\)")
_BACKTICKS = re.compile(r"`(?:\\.|[^`\\])*`", re.DOTALL)
_ANSI_C = re.compile(r"\$'((?:\\.|[^'\\])*)'", re.DOTALL)
_ANSI_C_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|([0-7]{1,3})|(.))", re.DOTALL
)
_ANSI_C_LETTERS = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
    "v": "\v", "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip

_REDIRECTIONS = frozenset({">", ">>", "<", ">&", "<&", "&>", "&>>", ">|", "<>"})


class Kind(Enum):
    """What a piece of a word is."""

    TEXT = "text"
    VARIABLE = "variable"
    ARITHMETIC = "arithmetic"
    OPAQUE = "opaque"
    """An expansion whose result is not known without running something."""


@attrs.frozen
class Piece:
    """A part of a word that is quoted, or not, in one way."""

    kind: Kind
    text: str
    """The text itself, quotes removed; the variable's name; the arithmetic expression."""
    is_quoted: bool
    operator: str = ""
    """Of ``${NAME:-default}``: ``:-``."""
    default: tuple[Piece, ...] = ()


@attrs.frozen
class Word:
    """One word of a line."""

    start: int
    end: int
    raw: str
    """As it is written."""
    pieces: tuple[Piece, ...]


@attrs.frozen
class Operator:
    """What stands between words: ``&&``, ``|``, ``>``, the end of a line."""

    start: int
    text: str


@attrs.frozen
class Simple:
    """A simple command: words between two control operators, redirections left out."""

    words: tuple[Word, ...]
    before: str
    """The control operator in front of it; empty for the first command."""
    after: str
    """The control operator behind it; empty for the last command."""


class _Reader:
    def __init__(self, line: str, is_bash: bool) -> None:
        self._line = line
        self._is_bash = is_bash
        self._at = 0
        self._depth = 0

    def tokens(self) -> Iterator[Word | Operator]:
        line = self._line
        while self._at < len(line):
            if line[self._at] in " \t":
                self._at += 1
            elif line.startswith("\\\n", self._at):
                self._at += 2
            elif line[self._at] == "#":
                end = line.find("\n", self._at)
                self._at = len(line) if end < 0 else end
            elif line.startswith(("<(", ">("), self._at):
                yield self._word()
            elif operator := _OPERATOR.match(line, self._at):
                if operator[0].startswith("&>") and not self._is_bash:
                    raise StartCommandError(f"only bash knows {operator[0]}")
                self._at = operator.end()
                yield Operator(operator.start(), operator[0])
            else:
                yield self._word()

    def _word(self) -> Word:
        start = self._at
        pieces: list[Piece] = []
        if self._line[start] in "<>":
            self._at += 1
            pieces.append(self._parentheses(start, is_quoted=False))
        while self._at < len(self._line) and self._line[self._at] not in " \t\n|&;()<>":
            pieces += self._bare()
        return Word(start, self._at, self._line[start : self._at], tuple(pieces))

    def _bare(self) -> list[Piece]:
        """The next piece outside of double quotes; several, or none, for quotes and ends."""
        line, at = self._line, self._at
        if line[at] == "\\":
            if at + 1 == len(line):
                raise StartCommandError("it ends in a backslash")
            self._at += 2
            text = line[at + 1]
            if text == "\n" and line[at + 2 : at + 3] not in ("", " ", "\t", "\n"):
                raise StartCommandError("a word goes on in the next line")
            return [] if text == "\n" else [Piece(Kind.TEXT, text, is_quoted=True)]
        if line[at] == "'":
            end = line.find("'", at + 1)
            if end < 0:
                raise StartCommandError("a quote has no end")
            self._at = end + 1
            return [Piece(Kind.TEXT, line[at + 1 : end], is_quoted=True)]
        if line[at] == '"':
            return self._double_quoted()
        if line[at] in "$`":
            return [self._expansion(is_quoted=False)]
        self._at += 1
        return [Piece(Kind.TEXT, line[at], is_quoted=False)]

    def _double_quoted(self) -> list[Piece]:
        # Empty quotes are a word, too.
        pieces = [Piece(Kind.TEXT, "", is_quoted=True)]
        self._at += 1
        while self._at < len(self._line):
            if self._line[self._at] == '"':
                self._at += 1
                return pieces
            pieces += self._in_double_quotes()
        raise StartCommandError("a quote has no end")

    def _in_double_quotes(self) -> list[Piece]:
        line, at = self._line, self._at
        if line[at] == "\\" and line[at + 1 : at + 2] in ("$", "`", '"', "\\", "\n"):
            self._at += 2
            text = line[at + 1]
            return [] if text == "\n" else [Piece(Kind.TEXT, text, is_quoted=True)]
        if line[at] in "$`":
            return [self._expansion(is_quoted=True)]
        self._at += 1
        return [Piece(Kind.TEXT, line[at], is_quoted=True)]

    def _expansion(self, *, is_quoted: bool) -> Piece:
        line, start = self._line, self._at
        if line[start] == "`":
            return self._opaque(_BACKTICKS, is_quoted)
        if not is_quoted and (escaped := _ANSI_C.match(line, start)):
            if not self._is_bash:
                raise StartCommandError("only bash knows $'…'")
            self._at = escaped.end()
            return Piece(Kind.TEXT, _without_escapes(escaped[1]), is_quoted=True)
        if sum_ := _ARITHMETIC.match(line, start):
            self._at = sum_.end()
            return Piece(Kind.ARITHMETIC, sum_[1], is_quoted)
        if line.startswith("$(", start):
            self._at += 1
            return self._parentheses(start, is_quoted=is_quoted)
        if braced := _BRACED.match(line, start):
            operator = braced[2] or ""
            if not operator and line[braced.end() : braced.end() + 1] != "}":
                return self._opaque(_OTHER_BRACED, is_quoted)
            self._at = braced.end()
            default = self._default(is_quoted=is_quoted)
            return Piece(Kind.VARIABLE, braced[1], is_quoted, operator, default)
        if variable := _VARIABLE.match(line, start):
            self._at = variable.end()
            return Piece(Kind.VARIABLE, variable[1] or variable[2], is_quoted)
        if line.startswith("${", start):
            return self._opaque(_OTHER_BRACED, is_quoted)
        if line.startswith("$[", start) or (not is_quoted and line.startswith(('$"', "$'"), start)):
            raise StartCommandError(f"{line[start : start + 2]} is not understood")
        # In a word with a sign that begins nothing, bash does not split expansions as elsewhere.
        self._at += 1
        return Piece(Kind.OPAQUE, "$", is_quoted)

    def _opaque(self, pattern: re.Pattern[str], is_quoted: bool) -> Piece:
        found = pattern.match(self._line, self._at)
        if found is None:
            raise StartCommandError(f"{self._line[self._at :][:20]!r} is not understood")
        self._at = found.end()
        return Piece(Kind.OPAQUE, found[0], is_quoted)

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise StartCommandError("substitutions stand too deep in one another")

    def _default(self, *, is_quoted: bool) -> tuple[Piece, ...]:
        """What stands up to the closing brace."""
        self._deeper()
        pieces: list[Piece] = []
        while self._line[self._at : self._at + 1] != "}":
            if self._at >= len(self._line):
                raise StartCommandError("a ${ has no end")
            if is_quoted and self._line[self._at] == '"':
                raise StartCommandError("quotes in quotes are not understood")
            pieces += self._in_double_quotes() if is_quoted else self._bare()
        self._at += 1
        self._depth -= 1
        return tuple(pieces)

    def _parentheses(self, start: int, *, is_quoted: bool) -> Piece:
        """A substitution of a command or process; the position is at its parenthesis."""
        self._deeper()
        open_ = 0
        for token in self.tokens():
            text = token.raw if isinstance(token, Word) else token.text
            if text == "case" or text.startswith("<<"):
                raise StartCommandError(f"{text} in a substitution is not understood")
            if isinstance(token, Operator):
                open_ += (text == "(") - (text == ")")
                if open_ == 0:
                    self._depth -= 1
                    return Piece(Kind.OPAQUE, self._line[start : self._at], is_quoted)
        raise StartCommandError("a parenthesis has no end")


def _without_escapes(text: str) -> str:
    """The text of ``$'…'``, its escapes replaced.

    Raises:
        StartCommandError: an escape is not one of those that are known.
    """

    def replaced(match: re.Match[str]) -> str:
        hexadecimal, unicode, octal, letter = match.groups()
        code = int(octal, 8) & 0xFF if octal else int(hexadecimal or unicode or "0", 16)
        if letter is None and (code == 0 or (code > 0x7F and not unicode)):
            raise StartCommandError(f"{match[0]} is not understood")
        if letter is not None and letter not in _ANSI_C_LETTERS:
            raise StartCommandError(f"{match[0]} is not understood")
        return chr(code) if letter is None else _ANSI_C_LETTERS[letter]

    return _ANSI_C_ESCAPE.sub(replaced, text)


def tokens_of(line: str, *, is_bash: bool) -> list[Word | Operator]:
    """The words and operators of a line, comments left out.

    Args:
        line: what stands behind ``-c``.
        is_bash: whether bash reads it. Other shells do not know all of bash's forms.

    Raises:
        StartCommandError: the line is too long, or has a part that is not understood.
    """
    if _CUT_VARIABLE.search(line):
        raise StartCommandError("the name of a variable goes on in the next line")
    if len(line) > _LONGEST_LINE or "\0" in line:
        raise StartCommandError(f"it has more than {_LONGEST_LINE} characters, or a NUL")
    return list(_Reader(line, is_bash).tokens())


def simple_commands(tokens: list[Word | Operator]) -> Iterator[Simple]:
    """The simple commands of a line, up to the first part that is none.

    Raises:
        StartCommandError: when the iteration comes to a part that is no simple command.
    """
    words: list[Word] = []
    before = ""
    is_redirected, is_target = False, False
    for token in tokens:
        if isinstance(token, Word):
            if is_target:
                is_target = False
            else:
                words.append(token)
            continue
        if is_target:
            raise StartCommandError(f"{token.text!r} stands where a file should")
        if token.text in _REDIRECTIONS:
            # A number directly in front of it is a file descriptor and no word.
            touches = bool(words) and words[-1].end == token.start and token.text[0] != "&"
            if touches and re.fullmatch("[0-9]+", words[-1].raw):
                words.pop()
            elif touches and words[-1].raw.startswith("{"):
                raise StartCommandError(f"{words[-1].raw}{token.text} is not understood")
            is_redirected, is_target = True, True
        elif token.text in ("(", ")", ";;", ";&") or token.text.startswith("<<"):
            raise StartCommandError(f"{token.text!r} is not understood")
        elif words or is_redirected:
            yield Simple(tuple(words), before, token.text)
            words, before, is_redirected = [], token.text, False
        elif token.text != "\n":
            raise StartCommandError(f"nothing stands in front of {token.text!r}")
    if is_target:
        raise StartCommandError("a redirection names no file")
    if words or is_redirected:
        yield Simple(tuple(words), before, "")
