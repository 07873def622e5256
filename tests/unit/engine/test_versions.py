from __future__ import annotations

import pytest

from ai.backend.kvcache.engine.versions import buffer_option, check_vllm
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
        assert buffer_option(version) == name

    @pytest.mark.parametrize("version", ["", "latest", "0.4.x", "four"])
    def test_no_version(self, version: str) -> None:
        with pytest.raises(EngineVersionError, match="is no version"):
            buffer_option(version)

    def test_too_old(self) -> None:
        with pytest.raises(EngineVersionError, match=r"LMCache 0\.2\.1 is too old; 0\.3\.0"):
            buffer_option("0.2.1")


class TestVllm:
    @pytest.mark.parametrize("version", ["0.15.0", "0.20.2", "0.32.0", "1.0"])
    def test_usable(self, version: str) -> None:
        check_vllm(version)

    @pytest.mark.parametrize("version", ["0.12.0", "0.8", "nightly"])
    def test_not_usable(self, version: str) -> None:
        with pytest.raises(EngineVersionError, match="vLLM"):
            check_vllm(version)
