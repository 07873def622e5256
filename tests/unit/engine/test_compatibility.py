from __future__ import annotations

import pytest

from ai.backend.kvcache.engine.compatibility import refuse_incompatible, version_notes
from ai.backend.kvcache.engine.versions import Versions
from ai.backend.kvcache.errors import DeclinedError

MP, GDS = "lmcache-mp-fs", "lmcache-inprocess-gds"


@pytest.mark.parametrize(
    ("adapter", "vllm", "lmcache"),
    [
        (MP, "0.32.0", "0.5.6"),
        (MP, "0.32.0+cpu", "0.5.7rc1"),
        (MP, None, None),
        (MP, "nightly", "main"),
        (GDS, "0.20.2", "0.4.3"),
        (GDS, "0.15.0", "0.3.15"),
        (GDS, None, "0.4.4"),
    ],
)
def test_may_work(adapter: str, vllm: str | None, lmcache: str | None) -> None:
    refuse_incompatible(adapter, Versions(vllm, lmcache))


@pytest.mark.parametrize(
    ("adapter", "vllm", "lmcache", "message"),
    [
        (MP, "0.32.0", "0.5.5", "LMCache 0.5.5 does not work as lmcache-mp-fs: .* 0.5.6 or later"),
        (MP, None, "0.4.6", "LMCache 0.4.6"),
        (MP, "0.20.2", "0.5.6", "a connector of its own"),
        (GDS, "0.12.0", "0.5.6", "vLLM 0.12.0 with LMCache 0.5.6"),
        (GDS, "0.14.1.dev0", None, "fail such requests"),
    ],
)
def test_known_not_to_work(
    adapter: str, vllm: str | None, lmcache: str | None, message: str
) -> None:
    with pytest.raises(DeclinedError, match=message):
        refuse_incompatible(adapter, Versions(vllm, lmcache))


def test_what_is_assumed_is_said() -> None:
    assert version_notes(Versions("0.32.0", "0.5.6")) == ()
    assert version_notes(Versions("0.32.0", None)) == (
        "the image does not say its versions; it is told as LMCache 0.5.6",
    )
    assert "vLLM 0.32.0 and LMCache 0.5.6" in version_notes(Versions())[0]
