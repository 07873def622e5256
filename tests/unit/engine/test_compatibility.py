from __future__ import annotations

import pytest

from ai.backend.kvcache.engine.compatibility import incompatibility, version_notes
from ai.backend.kvcache.engine.select import adapter_named
from ai.backend.kvcache.engine.traits import Trait, Traits
from ai.backend.kvcache.engine.versions import Versions

MP, GDS = "lmcache-mp", "lmcache-gds"


def known(adapter: str, packages: dict[str, str], traits: Traits = frozenset()) -> str | None:
    return incompatibility(adapter_named(adapter), Versions(packages), traits)


@pytest.mark.parametrize(
    ("adapter", "packages"),
    [
        (MP, {"vllm": "0.32.0", "lmcache": "0.5.6"}),
        (MP, {"vllm": "0.32.0+cpu", "lmcache": "0.5.7rc1"}),
        (MP, {"vllm": "0.20.2", "lmcache": "0.4.6"}),
        (MP, {}),
        (MP, {"vllm": "nightly", "lmcache": "main"}),
        (GDS, {"vllm": "0.20.2", "lmcache": "0.4.3"}),
        (GDS, {"vllm": "0.15.0", "lmcache": "0.3.15"}),
        (GDS, {"lmcache": "0.4.4"}),
        (GDS, {"lmcache": "0.3.3"}),
        # One of the two does not make the pair.
        (GDS, {"lmcache": "0.4.7"}),
        (GDS, {"vllm": "0.20.2"}),
        ("vllm-tiering", {"vllm": "0.12.0"}),
    ],
)
def test_may_work(adapter: str, packages: dict[str, str]) -> None:
    assert known(adapter, packages) is None


@pytest.mark.parametrize(
    ("adapter", "packages", "message"),
    [
        (MP, {"vllm": "0.19.0", "lmcache": "0.4.5"}, "LMCache 0.4.5 does not work as lmcache-mp"),
        (MP, {"vllm": "0.20.2", "lmcache": "0.4.7"}, "use an image with LMCache 0.4.6"),
        (GDS, {"vllm": "0.20.2+cu129", "lmcache": "0.4.7"}, "made for a later vLLM"),
        (GDS, {"vllm": "0.12.0", "lmcache": "0.5.6"}, "vLLM 0.12.0 with LMCache 0.5.6"),
        ("lmcache-posix", {"vllm": "0.14.1.dev0"}, "fail such requests"),
    ],
)
def test_known_not_to_work(adapter: str, packages: dict[str, str], message: str) -> None:
    assert message in (known(adapter, packages) or "")


def test_latent_attention_in_a_form_that_is_read_back_wrongly() -> None:
    latent = frozenset({Trait.LATENT})
    assert "LMCache#1323" in (known(GDS, {"lmcache": "0.3.3"}, latent) or "")
    assert known(GDS, {"lmcache": "0.3.3"}) is None
    assert known(GDS, {"lmcache": "0.3.9"}, latent) is None


def test_what_is_assumed_is_said() -> None:
    adapter = adapter_named(MP)
    assert version_notes(adapter, Versions({"vllm": "0.32.0", "lmcache": "0.5.6"})) == ()
    assert version_notes(adapter, Versions({"vllm": "0.32.0"})) == (
        "the image does not say its versions; it is told as LMCache 0.5.6",
    )
    assert "vLLM 0.32.0 and LMCache 0.5.6" in version_notes(adapter, Versions())[0]
