from __future__ import annotations

import os
import time
from pathlib import Path

import attrs
import pytest

from ai.backend.kvcache.folder.layout import temporary_directory
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
    oldest = namespace / "ab/cd/m@1@0@3e9@half.data"
    oldest.write_bytes(b"0" * 23)
    os.utime(oldest, (0, time.time() - 500))
    (namespace / "m@1@0@3ea@half.tmp").write_bytes(b"0" * 5)
    (namespace / "notes.txt").write_bytes(b"0" * 2)
    usage = namespace_usage(tmp_path, "ab", FORM)
    assert usage.oldest_seconds == pytest.approx(500, abs=60)
    # Two blocks with 123 bytes.
    assert attrs.evolve(usage, oldest_seconds=None) == Usage(
        130, files=4, blocks=2, unfinished=1, block_bytes=61.5, oldest_seconds=None
    )


def test_what_sessions_have_begun_is_no_block(tmp_path: Path, namespace: Path) -> None:
    (namespace / "m@1@0@3e8@half.data").write_bytes(b"0" * 100)
    for session in ("5f0c2f3e-0000-4000-8000-000000000000", "another"):
        begun = namespace / temporary_directory(session)
        begun.mkdir()
        # Under its last name already, in the directory of the session that writes it.
        (begun / "m@1@0@3e9@half.data").write_bytes(b"0" * 30)
    (namespace / temporary_directory("third")).mkdir()
    usage = namespace_usage(tmp_path, "ab", FORM)
    assert attrs.evolve(usage, oldest_seconds=None) == Usage(
        160, files=3, blocks=1, unfinished=2, block_bytes=100.0, oldest_seconds=None
    )


def test_no_block(tmp_path: Path, namespace: Path) -> None:
    (namespace / "notes.txt").write_bytes(b"0" * 2)
    usage = namespace_usage(tmp_path, "ab", FORM)
    assert (usage.block_bytes, usage.oldest_seconds) == (None, None)


def test_form_of_another_version(tmp_path: Path, namespace: Path) -> None:
    (namespace / "a").write_bytes(b"0" * 7)
    assert namespace_usage(tmp_path, "ab", "of-the-future") == Usage(
        7, files=1, blocks=None, unfinished=None, block_bytes=None, oldest_seconds=None
    )


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
