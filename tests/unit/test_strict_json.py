from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.kvcache.strict_json import MAX_DEPTH, parse

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_takes_all_json(value: object, ascii_only: bool) -> None:
    assert parse(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary())
def test_whatever_is_sent(content: bytes) -> None:
    try:
        value = parse(content)
    except ValueError:
        return
    # What is taken can be written again, for the database and for other programs.
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b"[1", "delimiter"),
        (b"\xff", "utf-8"),
        ('"é"'.encode("latin-1"), "utf-8"),
        ("[]".encode("utf-16"), "utf-8"),
        (b"[NaN]", "NaN is no JSON"),
        (b"-Infinity", "-Infinity is no JSON"),
        (b"1e999", "1e999 is too large a number"),
        (b"9" * 5000, "4300"),
        (b'"\\ud800"', "surrogates"),
        (b'{"\\udc00": 1}', "surrogates"),
        (b'"a\\u0000"', "has a NUL character"),
        (b'{"\\u0000": 1}', "has a NUL character"),
    ],
)
def test_refuses(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(content)


def test_a_backslash_makes_no_nul() -> None:
    assert parse(b'"\\\\u0000"') == "\\u0000"


def test_pairs_of_surrogates_are_a_character() -> None:
    assert parse(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


class TestDepth:
    @pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
    def test_as_deep_as_may_be(self, opening: str, closing: str) -> None:
        # The innermost value is a level too.
        levels = MAX_DEPTH - 1
        parse((opening * levels + "1" + closing * levels).encode())
        with pytest.raises(ValueError, match="nested more deeply than 32 levels"):
            parse((opening * MAX_DEPTH + "1" + closing * MAX_DEPTH).encode())

    def test_deeper_than_python_can_read(self) -> None:
        with pytest.raises(ValueError, match="nested more deeply than 32 levels"):
            parse(b"[" * 200_000 + b"]" * 200_000)
