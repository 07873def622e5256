from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.kvcache.folder.usage import directory_bytes


def test_whole_tree(tmp_path: Path) -> None:
    (tmp_path / "ab/cd").mkdir(parents=True)
    (tmp_path / "flat.data").write_bytes(b"0" * 100)
    (tmp_path / "ab/cd/deep.data").write_bytes(b"0" * 23)
    (tmp_path / "link").symlink_to(tmp_path / "flat.data")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert directory_bytes(tmp_path) == 123


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        directory_bytes(tmp_path / "gone")
