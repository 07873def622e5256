from __future__ import annotations

import pytest
from packaging.version import Version

from ai.backend.kvcache.engine.versions import (
    BUFFER_OPTIONS,
    IO_THREAD_OPTIONS,
    Versions,
    check_lmcache,
    check_vllm,
    option_name,
)
from ai.backend.kvcache.errors import EngineVersionError


class TestBufferOption:
    # Renamed in 0.4.4, without an alias.
    @pytest.mark.parametrize(
        ("version", "name"),
        [
            ("0.3.0", "cufile_buffer_size"),
            ("0.4.3", "cufile_buffer_size"),
            ("0.4.3.post1", "cufile_buffer_size"),
            ("0.4.4", "gds_buffer_size"),
            ("0.4.4rc2", "gds_buffer_size"),
            ("v0.4.10", "gds_buffer_size"),
            ("0.5", "gds_buffer_size"),
            ("0.5.6+cu13", "gds_buffer_size"),
            ("1.0.0", "gds_buffer_size"),
        ],
    )
    def test_by_version(self, version: str, name: str) -> None:
        release = Versions({"lmcache": version}).release_of("lmcache")
        assert option_name(BUFFER_OPTIONS, release) == name


class TestIoThreads:
    # Renamed in 0.5.1, which still knows the old name; 0.5.2 does not.
    @pytest.mark.parametrize(
        ("version", "name"),
        [
            ("0.3.15", "gds_io_threads"),
            ("0.5.0", "gds_io_threads"),
            ("0.5.1", "disk_io_threads"),
            ("0.5.6", "disk_io_threads"),
        ],
    )
    def test_by_version(self, version: str, name: str) -> None:
        assert option_name(IO_THREAD_OPTIONS, Version(version)) == name


class TestLMCache:
    @pytest.mark.parametrize("version", ["", "latest", "0.4.x", "four"])
    def test_no_version(self, version: str) -> None:
        with pytest.raises(EngineVersionError, match="is no version"):
            check_lmcache(version)

    def test_too_old(self) -> None:
        with pytest.raises(EngineVersionError, match=r"LMCache 0\.2\.1 is too old; 0\.3\.0"):
            check_lmcache("0.2.1")


class TestVersions:
    @pytest.mark.parametrize("versions", [Versions(), Versions({"lmcache": "nightly"})])
    def test_not_known_counts_as_the_newest(self, versions: Versions) -> None:
        assert versions.release_of("lmcache") == Version("0.5.6")

    def test_what_is_not_there(self) -> None:
        looked_at = Versions({"vllm": "0.32.0"}, is_complete=True)
        assert looked_at.lacks("lmcache")
        assert not looked_at.lacks("vllm")
        assert not Versions({"vllm": "0.32.0"}).lacks("lmcache")


class TestVllm:
    @pytest.mark.parametrize("version", ["0.15.0", "0.20.2", "0.32.0", "1.0"])
    def test_usable(self, version: str) -> None:
        check_vllm(version)

    @pytest.mark.parametrize("version", ["0.12.0", "0.8", "nightly"])
    def test_not_usable(self, version: str) -> None:
        with pytest.raises(EngineVersionError, match="vLLM"):
            check_vllm(version)
