from __future__ import annotations

import os
from pathlib import Path

import pytest

from ai.backend.kvcache.errors import ModelError
from ai.backend.kvcache.model.config import MAX_JSON_BYTES, read_json


class TestReadJson:
    def test_object(self, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        path.write_text('{"num_hidden_layers": 88}')
        assert read_json(tmp_path, path) == {"num_hidden_layers": 88}

    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(b"", id="empty"),
            pytest.param(b'{"num_hidden_layers": 8', id="truncated"),
            pytest.param(b"\x7fELF\x02\x01\x01\x00\xff\xfe", id="binary"),
            pytest.param(b"[" * 100_000, id="deep"),
            pytest.param(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, id="deep and valid"),
            pytest.param(b"[1, 2]", id="no object"),
            pytest.param(b"null", id="null"),
        ],
    )
    def test_unusable_content_is_one_line_naming_the_file(
        self, tmp_path: Path, content: bytes
    ) -> None:
        path = tmp_path / "config.json"
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"^config\.json of the model [^\n]+$"):
            read_json(tmp_path, path)

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="No such file"):
            read_json(tmp_path, tmp_path / "config.json")

    def test_directory(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="not a regular file"):
            read_json(tmp_path, tmp_path)

    def test_link_loop(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").symlink_to(tmp_path / "config.json")
        with pytest.raises(ModelError, match="cannot be read"):
            read_json(tmp_path, tmp_path / "config.json")

    def test_fifo_does_not_wait_for_a_writer(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "config.json")
        with pytest.raises(ModelError, match="not a regular file"):
            read_json(tmp_path, tmp_path / "config.json")

    def test_too_large_is_not_read(self, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        with path.open("wb") as file:
            file.truncate(MAX_JSON_BYTES + 1)
        with pytest.raises(ModelError, match="16777217 bytes"):
            read_json(tmp_path, path)
