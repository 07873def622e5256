from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
import pytest

from ai.backend.kvcache.doctor.check import Status, ok, skipped
from ai.backend.kvcache.doctor.folder import (
    FolderFacts,
    facts_of,
    judge_direct,
    judge_file_system,
    judge_folder,
    look_at_folder,
)
from ai.backend.kvcache.doctor.folder_probe import probe
from ai.backend.kvcache.doctor.mounts import Mount, mount_of, parse_mountinfo
from ai.backend.kvcache.sizes import GIB

from .hanging_files import can_mount, hanging_file_system, mount, unmount

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")

#: Of a node that mounts one volume by NFS over RDMA and one by TCP, and runs a container.
MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
50 27 0:50 / /vfroot/vast rw,relatime shared:9 - nfs4 10.0.0.1:/kv rw,vers=4.1,proto=rdma,soft
51 27 0:51 / /vfroot/nas rw,relatime - nfs 10.0.0.2:/kv rw,vers=3,hard,proto=tcp
52 27 0:52 / /mnt/with\\040space ro,noatime - wekafs kv\\011one rw
60 27 0:60 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw,lowerdir=/a:/b
a line of a newer kernel
"""


def mount_at(path: str) -> Mount | None:
    return mount_of(PurePosixPath(path), parse_mountinfo(MOUNTINFO))


class TestMounts:
    def test_the_nearest_one_above(self) -> None:
        found = mount_at("/vfroot/vast/a/b")
        assert found == Mount(
            PurePosixPath("/vfroot/vast"),
            "nfs4",
            "10.0.0.1:/kv",
            frozenset({"rw", "relatime", "vers=4.1", "proto=rdma", "soft"}),
        )
        for path, kind in (("/vfroot/vaster", "ext4"), ("/vfroot/nas", "nfs"), ("/", "ext4")):
            found = mount_at(path)
            assert found is not None
            assert found.type == kind

    def test_odd_characters(self) -> None:
        found = mount_at("/mnt/with space/kv")
        assert found is not None
        assert (found.type, found.source) == ("wekafs", "kv\tone")

    def test_the_last_of_several_covers_the_others(self) -> None:
        again = "70 51 0:70 / /vfroot/nas rw - xfs /dev/nvme0n1 rw\n"
        found = mount_of(PurePosixPath("/vfroot/nas/x"), parse_mountinfo(MOUNTINFO + again))
        assert found is not None
        assert found.type == "xfs"

    def test_nothing_is_mounted(self) -> None:
        assert mount_of(PurePosixPath("/x"), parse_mountinfo("")) is None

    def test_of_this_machine(self) -> None:
        mounts = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
        proc = mount_of(PurePosixPath("/proc/self"), mounts)
        assert proc is not None
        assert proc.type == "proc"


@pytest.fixture
def ramfs(tmp_path: Path) -> Iterator[Path]:
    """A file system that knows no O_DIRECT."""
    point = tmp_path / "ramfs"
    point.mkdir()
    mount(point, "ramfs", "")
    yield point
    unmount(point)


class TestProbe:
    """On real file systems."""

    def test_what_can_be_written(self, tmp_path: Path) -> None:
        folder = tmp_path / "kv"
        folder.mkdir()
        said = probe(folder)
        space = os.statvfs(folder)
        assert said["path"] == str(folder)
        assert (said["missing"], said["write"]) == (None, None)
        assert said["total"] == space.f_blocks * space.f_frsize
        assert 0 < said["free"] <= said["total"]
        assert list(folder.iterdir()) == []

    def test_a_link_is_followed(self, tmp_path: Path) -> None:
        folder, link = tmp_path / "kv", tmp_path / "link"
        folder.mkdir()
        link.symlink_to(folder)
        assert probe(link)["path"] == str(folder)

    def test_no_folder(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.touch()
        assert probe(tmp_path / "none") == {"missing": "ENOENT"}
        assert probe(file) == {"missing": "ENOTDIR"}

    def test_read_only(self) -> None:
        # Not even root may make files here.
        said = probe(Path("/proc"))
        assert (said["missing"], said["write"], said["direct"]) == (None, "ENOENT", "ENOENT")

    @needs_root
    def test_mounted_read_only(self, tmp_path: Path) -> None:
        mount(tmp_path, "tmpfs", "", read_only=True)
        try:
            assert probe(tmp_path)["write"] == "EROFS"
        finally:
            unmount(tmp_path)

    @needs_root
    def test_full(self, tmp_path: Path) -> None:
        mount(tmp_path, "tmpfs", "size=64k")
        try:
            (tmp_path / "file").write_bytes(bytes(32 * 1024))
            assert probe(tmp_path)["write"] == "no room"
            assert [p.name for p in tmp_path.iterdir()] == ["file"]
        finally:
            unmount(tmp_path)

    @needs_root
    def test_without_o_direct(self, ramfs: Path) -> None:
        said = probe(ramfs)
        assert (said["write"], said["direct"]) == (None, "EINVAL")
        assert list(ramfs.iterdir()) == []

    def test_with_o_direct(self, tmp_path: Path) -> None:
        mounts = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
        found = mount_of(PurePosixPath(tmp_path), mounts)
        if found is None or found.type not in ("ext4", "xfs"):
            pytest.skip("needs ext4 or xfs")
        assert probe(tmp_path)["direct"] is None


class TestLookAtFolder:
    def test_in_a_process_of_its_own(self, tmp_path: Path) -> None:
        facts = look_at_folder(tmp_path)
        assert (facts.path, facts.missing, facts.write) == (tmp_path, None, None)
        mounts = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
        assert facts.mount == mount_of(PurePosixPath(tmp_path.resolve()), mounts)

    @pytest.mark.skipif(not can_mount(), reason="needs root and FUSE")
    def test_one_that_hangs_is_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from ai.backend.kvcache.doctor import folder

        monkeypatch.setattr(folder, "PROBE_SECONDS", 3.0)
        with (
            hanging_file_system(tmp_path),
            pytest.raises(folder.FolderUnknownError, match="does not answer within 3 s"),
        ):
            look_at_folder(tmp_path)


def facts(said: dict[str, Any] | None = None, at: str = "/vfroot/vast/kv") -> FolderFacts:
    good = {
        "path": at,
        "missing": None,
        "write": None,
        "direct": None,
        "free": 3 * GIB,
        "total": 8 * GIB,
    }
    return facts_of(Path(at), {**good, **(said or {})}, MOUNTINFO)


class TestJudgeFolder:
    def test_good(self) -> None:
        assert judge_folder(facts()) == ok("/vfroot/vast/kv can be written, 3 GiB of 8 GiB free")

    def test_missing(self) -> None:
        finding = judge_folder(facts({"missing": "ENOENT"}))
        assert finding.status is Status.FAILED
        assert finding.text == "/vfroot/vast/kv is no folder on this node (ENOENT)"
        assert finding.remedy == (
            "mount the volume on this node, at the path that it has on all others"
        )

    def test_not_writable(self) -> None:
        finding = judge_folder(facts({"write": "EACCES", "direct": "EACCES"}))
        assert finding.status is Status.FAILED
        assert finding.text == "/vfroot/vast/kv cannot be written (EACCES)"

    def test_on_the_nodes_own_disk(self) -> None:
        finding = judge_folder(facts(at="/vfroot/local"))
        assert finding.status is Status.WARNING
        assert finding.text == "/vfroot/local lies on this node's own disk, 3 GiB of 8 GiB free"


class TestJudgeFileSystem:
    def test_nfs_over_rdma(self) -> None:
        said = "nfs4, mounted at /vfroot/vast"
        assert judge_file_system(facts(), False) == ok(said)
        assert judge_file_system(facts(), True) == ok(f"{said}; it can do GPUDirect Storage")

    def test_hard(self) -> None:
        finding = judge_file_system(facts(at="/vfroot/nas"), False)
        assert finding.status is Status.WARNING
        assert finding.text == (
            "nfs, mounted at /vfroot/nas with hard: while its server does not answer, sessions hang"
        )

    def test_nfs_over_tcp(self) -> None:
        tcp = facts(at="/vfroot/nas")
        assert tcp.mount is not None
        soft = attrs.evolve(
            tcp, mount=attrs.evolve(tcp.mount, options=frozenset({"soft", "proto=tcp"}))
        )
        assert judge_file_system(soft, False).status is Status.OK
        finding = judge_file_system(soft, True)
        assert finding.status is Status.WARNING
        assert finding.text == (
            "nfs, mounted at /vfroot/nas without proto=rdma: no GPUDirect Storage, data goes "
            "through host memory"
        )
        assert finding.remedy == 'mount it with proto=rdma, or set transport = "posix"'

    def test_one_that_nvidia_does_not_list(self) -> None:
        overlay = facts(at="/var/lib/docker/overlay2/x/merged/kv")
        assert judge_file_system(overlay, False).status is Status.OK
        finding = judge_file_system(overlay, True)
        assert finding.status is Status.WARNING
        assert finding.text.startswith("overlay, mounted at /var/lib/docker/overlay2/x/merged: no")

    def test_unknown(self) -> None:
        finding = judge_file_system(facts({"missing": "ENOENT"}), True)
        assert finding == skipped("the folder cannot be used, or its file system is not known")


class TestJudgeDirect:
    def test_all_three(self) -> None:
        assert judge_direct(facts()) == ok("files are written and read with it")
        assert judge_direct(facts({"write": "EROFS"})) == skipped("the folder cannot be used")
        finding = judge_direct(facts({"direct": "EINVAL"}))
        assert finding.status is Status.WARNING
        assert "O_DIRECT (EINVAL): no GPUDirect Storage" in finding.text
        assert finding.remedy == "use another file system, or set direct-io = false"


def test_this_python_is_the_probes(tmp_path: Path) -> None:
    """What the probe prints is one JSON object, whatever the environment."""
    import json
    import subprocess

    module = "ai.backend.kvcache.doctor.folder_probe"
    printed = subprocess.run(
        [sys.executable, "-m", module, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert json.loads(printed.stdout)["path"] == str(tmp_path)
    assert printed.stderr == ""
