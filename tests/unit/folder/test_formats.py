from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.kvcache.engine.select import NAMES, adapter_named
from ai.backend.kvcache.engine.versions import NEWEST, Versions
from ai.backend.kvcache.folder.formats import FORMATS, FileKind

BLOCK, COMPANION = FileKind.BLOCK, FileKind.COMPANION
UNFINISHED, FOREIGN = FileKind.UNFINISHED, FileKind.FOREIGN

HASH = "6f" * 32
MODEL = "-SEP-home-SEP-config-SEP-kvcache-SEP-model"


@pytest.mark.parametrize("lmcache", ["0.4.6", NEWEST["lmcache"]])
@pytest.mark.parametrize("name", NAMES)
def test_every_adapters_form_is_known(name: str, lmcache: str) -> None:
    versions = Versions({**NEWEST, "lmcache": lmcache})
    assert adapter_named(name).storage_format(versions) in FORMATS


# Names as real engines wrote them; those of unfinished files as their sources make them.
@pytest.mark.parametrize(
    ("form", "name", "kind"),
    [
        ("lmcache-mp-fs", f"{MODEL}@0x01000100@{HASH}.data", BLOCK),
        ("lmcache-mp-fs-aesgcm", f"{MODEL}@0x01000100@0@{HASH}.data", BLOCK),
        ("lmcache-mp-fs-aesgcm", f"{MODEL}@0x01000100@0@{HASH}@salt.data", BLOCK),
        ("lmcache-mp-fs-aesgcm", f"{MODEL}@0x01000100@0@{HASH}.tmp", UNFINISHED),
        ("lmcache-mp-fs-aesgcm", "model@1@2@3@4@5@6.data", FOREIGN),
        ("lmcache-mp-fs-aesgcm", f"{MODEL}@0x01000100@0@nothex.data", FOREIGN),
        ("lmcache-fs", f"{MODEL}@1@0@3e8@half.data", BLOCK),
        ("lmcache-fs", f"{MODEL}@8@7@-3e8@bfloat16.data", BLOCK),
        ("lmcache-fs", f"{MODEL}@1@0@3e8@half.tmp", UNFINISHED),
        ("lmcache-fs", "foreign", FOREIGN),
        ("lmcache-gds", "%2Fmodel%401%400%403e8%40half.kvcache.safetensors", BLOCK),
        ("lmcache-gds", "%2Fmodel%401%400%403e8%40half.kvcache.safetensors.metadata", COMPANION),
        ("lmcache-gds", "%2Fmodel%401%400%403e8%40half.weka1", BLOCK),
        (
            "lmcache-gds",
            "%2Fmodel%401%400%403e8%40half.kvcache.safetensors.tmpA1b2C3d4",
            UNFINISHED,
        ),
        ("vllm-fs-tier", f"{HASH}.bin", BLOCK),
        ("vllm-fs-tier", "config.json", COMPANION),
        ("vllm-fs-tier", f"{HASH}.bin_9223372036854775807.tmp", UNFINISHED),
        ("vllm-fs-tier", ".o_direct_probe_12.tmp", UNFINISHED),
        ("sglang-hicache-file", f"{HASH}_-models_0_1.bin", BLOCK),
        ("sglang-hicache-file", f".{HASH[:32]}.tmp", UNFINISHED),
        ("sglang-hicache-file", f"{HASH}.bin", FOREIGN),
        ("dynamo-kvbm", "anything", FOREIGN),
    ],
)
def test_names(form: str, name: str, kind: FileKind) -> None:
    assert FORMATS[form].kind_of(name) is kind


@given(st.sampled_from(sorted(FORMATS)), st.text(max_size=300))
def test_any_name_is_something(form: str, name: str) -> None:
    assert FORMATS[form].kind_of(name) in FileKind


def test_long_name_is_judged_at_once() -> None:
    # Whoever can write into the folder chooses names; the longest has 255 bytes.
    for form in FORMATS.values():
        assert form.kind_of("@0x1" * 63) is FOREIGN
