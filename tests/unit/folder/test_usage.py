from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.kvcache.folder.usage import namespace_bytes


@pytest.fixture
def namespace(tmp_path: Path) -> Path:
    path = tmp_path / "ns" / "ab"
    path.mkdir(parents=True)
    return path


def test_whole_tree(tmp_path: Path, namespace: Path) -> None:
    (namespace / "ab/cd").mkdir(parents=True)
    (namespace / "flat.data").write_bytes(b"0" * 100)
    (namespace / "ab/cd/deep.data").write_bytes(b"0" * 23)
    assert namespace_bytes(tmp_path, "ab") == 123


def test_links_do_not_count_with_their_targets(tmp_path: Path, namespace: Path) -> None:
    (tmp_path / "large").write_bytes(b"0" * 100_000)
    # A link to a file has the size of its text, 8 bytes here; one to a directory is not entered.
    (namespace / "link").symlink_to("../large")
    (namespace / "loop").symlink_to("../")
    assert namespace_bytes(tmp_path, "ab") == 8


def test_namespace_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns/ab").symlink_to("/etc")
    with pytest.raises(NotADirectoryError):
        namespace_bytes(tmp_path, "ab")


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        namespace_bytes(tmp_path, "gone")
