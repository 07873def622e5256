from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from ai.backend.kvcache.errors import FolderError
from ai.backend.kvcache.folder import prepare
from ai.backend.kvcache.folder.entries import Owner
from ai.backend.kvcache.folder.namespace import namespace_of
from ai.backend.kvcache.folder.prepare import prepare_namespace, prepare_scope

SCOPE = "project-2de2b969-1d04-48a6-af16-0bc8adb3c831"
NAMESPACE = namespace_of({"weights": "x"})

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


class TestScope:
    def test_is_made_once(self, tmp_path: Path) -> None:
        scope = prepare_scope(tmp_path, SCOPE)
        assert scope == tmp_path / "scopes" / SCOPE
        (scope / "kept").touch()
        assert prepare_scope(tmp_path, SCOPE) == scope
        assert (scope / "kept").exists()

    def test_each_has_its_own(self, tmp_path: Path) -> None:
        assert prepare_scope(tmp_path, "user-u1") != prepare_scope(tmp_path, "user-u2")

    @as_root
    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
    def test_sessions_user_gets_to_its_namespace_whatever_the_agents_umask(
        self, tmp_path: Path, umask: int
    ) -> None:
        tmp_path.chmod(0o755)
        before = os.umask(umask)
        try:
            scope = prepare_scope(tmp_path, SCOPE)
            prepare_namespace(scope, NAMESPACE, Owner(1100, 1200), "k1", {})
        finally:
            os.umask(before)
        # Others may pass, and nobody but the agent may write.
        for directory in (scope, scope / "ns"):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o755
            assert directory.stat().st_uid == os.geteuid()
        namespace = (scope / "ns" / NAMESPACE.name).stat()
        assert (namespace.st_uid, namespace.st_gid) == (1100, 1200)
        assert stat.S_IMODE(namespace.st_mode) == 0o2775


class TestFolderThatCannotBeUsed:
    def test_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FolderError, match="not there on this node; is its volume mounted"):
            prepare_scope(tmp_path / "gone", SCOPE)
        assert not (tmp_path / "gone").exists()

    def test_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(FolderError, match="not there on this node"):
            prepare_scope(tmp_path / "file", SCOPE)

    @pytest.mark.parametrize(
        ("number", "message"),
        [
            (errno.EROFS, "cannot be written on this node .Read-only file system"),
            (errno.EACCES, "cannot be written on this node .Permission denied"),
            (errno.ENOSPC, "cannot be prepared: No space left on device"),
            (errno.EDQUOT, "cannot be prepared: Disk quota exceeded"),
            (errno.ESTALE, "cannot be prepared: Stale file handle"),
        ],
    )
    def test_refuses_new_entries(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
    ) -> None:
        # What a file system may answer, and the one of this machine does not.
        def refuse(*_: Any) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(prepare, "enter", refuse)
        with pytest.raises(FolderError, match=message):
            prepare_scope(tmp_path, SCOPE)

    @pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no file system without files")
    def test_is_really_not_writable(self) -> None:
        # In sysfs nobody makes directories, root included.
        with pytest.raises(FolderError, match="KV folder cannot be written on this node"):
            prepare_scope(Path("/sys/kernel"), SCOPE)


class TestLink:
    """The agent is root: a link that it followed would give a session a directory of the host."""

    @pytest.mark.parametrize("name", ["scopes", f"scopes/{SCOPE}"])
    @pytest.mark.parametrize("target", ["elsewhere", "nowhere", "kv", "."])
    def test_is_not_followed(self, tmp_path: Path, name: str, target: str) -> None:
        folder, elsewhere = tmp_path / "kv", tmp_path / "elsewhere"
        elsewhere.mkdir()
        (folder / name).parent.mkdir(parents=True)
        (folder / name).symlink_to(tmp_path / target)
        with pytest.raises(FolderError, match="cannot be prepared"):
            prepare_scope(folder, SCOPE)
        assert list(elsewhere.iterdir()) == []
        assert not (tmp_path / "nowhere").exists()

    @pytest.mark.parametrize("name", ["scopes", f"scopes/{SCOPE}"])
    def test_a_file_in_the_way(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        with pytest.raises(FolderError, match="cannot be prepared"):
            prepare_scope(tmp_path, SCOPE)

    def test_folder_itself_may_be_one(self, tmp_path: Path) -> None:
        # It is the administrator's: volumes are often mounted elsewhere.
        (tmp_path / "volume").mkdir()
        (tmp_path / "link").symlink_to("volume")
        prepare_scope(tmp_path / "link", SCOPE)
        assert (tmp_path / "volume" / "scopes" / SCOPE).is_dir()
