from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from ai.backend.kvcache.errors import FolderError
from ai.backend.kvcache.folder.entries import Owner
from ai.backend.kvcache.folder.namespace import namespace_of
from ai.backend.kvcache.folder.prepare import prepare_namespace

NAMESPACE = namespace_of({"weights": "x"})
KERNEL = "5f0c2f3e-0000-4000-8000-000000000000"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def limits_of(folder: Path) -> Any:
    return json.loads((folder / ".kvcache/folder.json").read_text())["limits"]


class TestLimits:
    def test_are_written_and_follow(self, tmp_path: Path) -> None:
        for size in (1000, 2000):
            limits = {"cap_bytes": size}
            prepare_namespace(tmp_path, NAMESPACE, Owner(), KERNEL, {}, limits)
            assert limits_of(tmp_path) == limits

    def test_of_a_session_without_any_leave_the_folders_alone(self, tmp_path: Path) -> None:
        prepare_namespace(tmp_path, NAMESPACE, Owner(), KERNEL, {}, {"cap_bytes": 1000})
        prepare_namespace(tmp_path, NAMESPACE, Owner(), KERNEL, {})
        assert limits_of(tmp_path) == {"cap_bytes": 1000}


class TestPrepareNamespace:
    def test_directory_and_manifests(self, tmp_path: Path) -> None:
        prepare_namespace(tmp_path, NAMESPACE, Owner(), KERNEL, {"bytes_per_token": 131_072})
        directory = tmp_path / "ns" / NAMESPACE.name
        assert stat.S_IMODE(directory.stat().st_mode) == 0o2775
        assert json.loads((tmp_path / ".kvcache/folder.json").read_text()) == {"format_version": 1}
        manifest = json.loads((tmp_path / f".kvcache/namespaces/{NAMESPACE.name}.json").read_text())
        assert manifest["namespace"] == NAMESPACE.name
        assert manifest["description"] == {"weights": "x"}
        assert manifest["bytes_per_token"] == 131_072

    def test_again_keeps_what_is_there(self, tmp_path: Path) -> None:
        prepare_namespace(tmp_path, NAMESPACE, Owner(), KERNEL, {})
        chunk = tmp_path / "ns" / NAMESPACE.name / "chunk"
        chunk.write_text("kv")
        prepare_namespace(tmp_path, NAMESPACE, Owner(), KERNEL, {})
        assert chunk.read_text() == "kv"

    def test_nothing_temporary_remains(self, tmp_path: Path) -> None:
        prepare_namespace(tmp_path, NAMESPACE, Owner(), KERNEL, {})
        files = sorted(p.name for p in tmp_path.rglob("*") if p.is_file())
        assert files == sorted(["folder.json", f"{NAMESPACE.name}.json", KERNEL])

    @as_root
    def test_belongs_to_the_sessions_user_whatever_the_umask(self, tmp_path: Path) -> None:
        old = os.umask(0o077)
        try:
            prepare_namespace(tmp_path, NAMESPACE, Owner(1100, 1200), KERNEL, {})
        finally:
            os.umask(old)
        status = (tmp_path / "ns" / NAMESPACE.name).stat()
        assert (status.st_uid, status.st_gid) == (1100, 1200)
        assert stat.S_IMODE(status.st_mode) == 0o2775

    @as_root
    def test_second_user_of_the_same_group_may_write(self, tmp_path: Path) -> None:
        prepare_namespace(tmp_path, NAMESPACE, Owner(1100, 1200), KERNEL, {})
        prepare_namespace(tmp_path, NAMESPACE, Owner(1101, 1200), KERNEL, {})

    @as_root
    def test_stranger_may_not(self, tmp_path: Path) -> None:
        prepare_namespace(tmp_path, NAMESPACE, Owner(1100, 1200), KERNEL, {})
        with pytest.raises(FolderError, match=r"uid 1101, gid 1201"):
            prepare_namespace(tmp_path, NAMESPACE, Owner(1101, 1201), KERNEL, {})

    def test_folder_is_gone(self, tmp_path: Path) -> None:
        with pytest.raises(FolderError, match="not there on this node"):
            prepare_namespace(tmp_path / "gone", NAMESPACE, Owner(), KERNEL, {})

    def test_newer_format_is_not_written_into(self, tmp_path: Path) -> None:
        (tmp_path / ".kvcache").mkdir()
        (tmp_path / ".kvcache/folder.json").write_text('{"format_version": 2}')
        with pytest.raises(FolderError, match="format version 2, this plugin knows 1"):
            prepare_namespace(tmp_path, NAMESPACE, Owner(), KERNEL, {})
        assert not (tmp_path / "ns").exists()

    @pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format_version": "1"}', "null"])
    def test_damaged_manifest(self, tmp_path: Path, content: str) -> None:
        (tmp_path / ".kvcache").mkdir()
        (tmp_path / ".kvcache/folder.json").write_text(content)
        with pytest.raises(FolderError, match=r"folder\.json .* is damaged"):
            prepare_namespace(tmp_path, NAMESPACE, Owner(), KERNEL, {})

    def test_first_use_is_remembered(self, tmp_path: Path) -> None:
        prepare_namespace(tmp_path, NAMESPACE, Owner(), KERNEL, {})
        path = tmp_path / f".kvcache/namespaces/{NAMESPACE.name}.json"
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps({**manifest, "created": 1000, "last_use": 1000}))
        prepare_namespace(tmp_path, NAMESPACE, Owner(), KERNEL, {})
        manifest = json.loads(path.read_text())
        assert manifest["created"] == 1000
        assert manifest["last_use"] > 1000

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"format_version": 2}, "has format version 2"),
            ({"description": {"weights": "y"}}, "describes something else than its name says"),
            ({"description": None}, "describes something else"),
            ({"description": {"x": float("nan")}}, "describes something else"),
            ({"format_version": None}, "is damaged"),
        ],
    )
    def test_foreign_namespace_is_not_written_into(
        self, tmp_path: Path, change: dict[str, object], message: str
    ) -> None:
        prepare_namespace(tmp_path, NAMESPACE, Owner(), KERNEL, {})
        path = tmp_path / f".kvcache/namespaces/{NAMESPACE.name}.json"
        changed = json.dumps({**json.loads(path.read_text()), **change})
        path.write_text(changed)
        with pytest.raises(FolderError, match=message):
            prepare_namespace(tmp_path, NAMESPACE, Owner(), KERNEL, {})
        assert path.read_text() == changed

    @pytest.mark.parametrize("name", [".kvcache", "ns", f"ns/{NAMESPACE.name}"])
    def test_a_link_that_leads_elsewhere_is_not_followed(self, tmp_path: Path, name: str) -> None:
        # The agent is root; a user could have it write and give away directories anywhere.
        folder, elsewhere = tmp_path / "kv", tmp_path / "elsewhere"
        elsewhere.mkdir()
        (folder / name).parent.mkdir(parents=True)
        (folder / name).symlink_to(elsewhere)
        with pytest.raises(FolderError, match="cannot be prepared"):
            prepare_namespace(folder, NAMESPACE, Owner(1100, 1200), KERNEL, {})
        assert list(elsewhere.iterdir()) == []
        assert elsewhere.stat().st_uid == os.geteuid()

    def test_a_manifest_that_is_a_link_is_not_read(self, tmp_path: Path) -> None:
        (tmp_path / ".kvcache").mkdir()
        (tmp_path / ".kvcache/folder.json").symlink_to("/etc/hostname")
        with pytest.raises(FolderError, match="cannot be prepared"):
            prepare_namespace(tmp_path, NAMESPACE, Owner(), KERNEL, {})

    @pytest.mark.parametrize("blocked", [".kvcache", "ns"])
    def test_a_file_in_the_way(self, tmp_path: Path, blocked: str) -> None:
        (tmp_path / blocked).write_text("")
        with pytest.raises(FolderError, match="cannot be prepared"):
            prepare_namespace(tmp_path, NAMESPACE, Owner(), KERNEL, {})
