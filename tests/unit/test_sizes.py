from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.kvcache.errors import SizeError
from ai.backend.kvcache.sizes import GIB, MIB, gib, parse_size


class TestParse:
    @pytest.mark.parametrize(
        ("text", "size"),
        [
            ("80GiB", 85_899_345_920),
            ("80 GiB", 85_899_345_920),
            ("24g", 25_769_803_776),
            ("24G", 25_769_803_776),
            ("24GB", 25_769_803_776),
            ("512MiB", 536_870_912),
            ("1.5g", 1_610_612_736),
            ("2t", 2_199_023_255_552),
            ("1", 1),
            ("4096", 4096),
            ("4096b", 4096),
            ("1k", 1024),
        ],
    )
    def test_sizes(self, text: str, size: int) -> None:
        assert parse_size(text) == size

    @pytest.mark.parametrize(
        "text",
        ["", "0", "0g", "-1g", "g", "ten", "1e3", "80 GiB of it", "nan", "1.g", "9" * 50, "2048p"],
    )
    def test_nonsense(self, text: str) -> None:
        with pytest.raises(SizeError, match="is not a size; write it as 80GiB"):
            parse_size(text)

    @given(st.text(max_size=12))
    def test_anything_else_is_our_own_error(self, text: str) -> None:
        with contextlib.suppress(SizeError):
            assert parse_size(text) > 0


@pytest.mark.parametrize(
    ("size", "text"),
    [(24 * GIB, "24 GiB"), (3 * GIB // 2, "1.5 GiB"), (0, "0 GiB"), (100 * MIB, "0.1 GiB")],
)
def test_gib(size: int, text: str) -> None:
    assert gib(size) == text
