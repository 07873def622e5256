from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.kvcache.folder.usage import Usage, namespace_usage

FORM = "lmcache-fs"


@pytest.fixture
def namespace(tmp_path: Path) -> Path:
    path = tmp_path / "ns" / "ab"
    path.mkdir(parents=True)
    return path


def test_whole_tree(tmp_path: Path, namespace: Path) -> None:
    (namespace / "ab/cd").mkdir(parents=True)
    (namespace / "m@1@0@3e8@half.data").write_bytes(b"0" * 100)
    (namespace / "ab/cd/m@1@0@3e9@half.data").write_bytes(b"0" * 23)
    (namespace / "m@1@0@3ea@half.tmp").write_bytes(b"0" * 5)
    (namespace / "notes.txt").write_bytes(b"0" * 2)
    assert namespace_usage(tmp_path, "ab", FORM) == Usage(130, blocks=2, unfinished=1)


def test_form_of_another_version(tmp_path: Path, namespace: Path) -> None:
    (namespace / "a").write_bytes(b"0" * 7)
    assert namespace_usage(tmp_path, "ab", "of-the-future") == Usage(7, None, None)


def test_links_do_not_count_with_their_targets(tmp_path: Path, namespace: Path) -> None:
    (tmp_path / "large").write_bytes(b"0" * 100_000)
    # A link to a file has the size of its text, 8 bytes here; one to a directory is not entered.
    (namespace / "link").symlink_to("../large")
    (namespace / "loop").symlink_to("../")
    assert namespace_usage(tmp_path, "ab", FORM).size == 8


def test_namespace_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns/ab").symlink_to("/etc")
    with pytest.raises(NotADirectoryError):
        namespace_usage(tmp_path, "ab", FORM)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        namespace_usage(tmp_path, "gone", FORM)
