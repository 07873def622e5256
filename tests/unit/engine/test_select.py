from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from ai.backend.kvcache.engine import adapters
from ai.backend.kvcache.engine.adapter import Transport
from ai.backend.kvcache.engine.command import Program
from ai.backend.kvcache.engine.select import (
    NAMES,
    WAYS,
    Wish,
    adapter_named,
    candidates,
    select,
    summary,
)
from ai.backend.kvcache.engine.traits import Trait, Traits
from ai.backend.kvcache.engine.versions import NEWEST, Versions
from ai.backend.kvcache.errors import DeclinedError

VLLM, SGLANG, DYNAMO = Program.VLLM, Program.SGLANG, Program.DYNAMO
GDS, POSIX, MP, TIERING = "lmcache-gds", "lmcache-posix", "lmcache-mp", "vllm-tiering"
DIRECT, FILES = Transport.GDS, Transport.POSIX
ALL = Versions(dict(NEWEST), is_complete=True)


def found(**packages: str) -> Versions:
    """An image that was looked into."""
    return Versions(packages, is_complete=True)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_its_file(name: str) -> None:
    adapter = adapter_named(name)
    assert adapter.name == name
    assert adapter.packages
    assert set(adapter.packages) <= NEWEST.keys()
    assert adapter.storage_format(ALL)


def test_every_file_can_be_chosen() -> None:
    (folder,) = adapters.__path__
    modules = {path.stem for path in Path(folder).glob("[a-z]*.py")}
    assert modules == {name.replace("-", "_") for name in NAMES}
    for module in modules:
        assert import_module(f"{adapters.__name__}.{module}").ADAPTER


GPUS = "cuda"


@pytest.mark.parametrize(
    ("program", "device", "versions", "wish", "names"),
    [
        # vLLM before 0.26: LMCache inside it. Its server needs vLLM 0.22 and LMCache 0.5.6.
        (VLLM, GPUS, found(vllm="0.20.2", lmcache="0.4.6"), Wish(), [GDS, POSIX]),
        (VLLM, GPUS, found(vllm="0.15.0", lmcache="0.3.15"), Wish(), [GDS, POSIX]),
        (VLLM, GPUS, found(vllm="0.25.1+cu128", lmcache="0.5.6"), Wish(), [GDS, POSIX, MP]),
        (VLLM, GPUS, found(vllm="0.22.0", lmcache="0.5.5"), Wish(), [GDS, POSIX]),
        # From 0.26 on: its server, and vLLM's own tiers from 0.32 on.
        (VLLM, GPUS, found(vllm="0.26.0rc1", lmcache="0.5.6"), Wish(), [MP]),
        (VLLM, GPUS, found(vllm="0.31.0", lmcache="0.5.6"), Wish(), [MP]),
        (VLLM, GPUS, ALL, Wish(), [MP, TIERING]),
        (VLLM, GPUS, found(vllm="0.32.1.dev3", lmcache="0.5.5"), Wish(), [TIERING]),
        (VLLM, GPUS, found(vllm="0.33.0", lmcache="0.4.6"), Wish(), [TIERING]),
        (VLLM, GPUS, found(vllm="0.34.0", lmcache="0.5.7"), Wish(), [MP, TIERING]),
        (VLLM, GPUS, found(vllm="0.32.0"), Wish(), [TIERING]),
        # None of the others is right for all that LMCache could be.
        (VLLM, GPUS, Versions({"vllm": "0.32.0"}), Wish(), [TIERING]),
        # By transport and by name.
        (VLLM, GPUS, found(vllm="0.20.2", lmcache="0.4.6"), Wish(transport=DIRECT), [GDS]),
        (VLLM, GPUS, found(vllm="0.20.2", lmcache="0.4.6"), Wish(transport=FILES), [POSIX]),
        (VLLM, GPUS, ALL, Wish(transport=FILES), [MP, TIERING]),
        (VLLM, GPUS, ALL, Wish(MP), [MP]),
        (VLLM, GPUS, ALL, Wish(TIERING), [TIERING]),
        (VLLM, GPUS, ALL, Wish("dynamo-kvbm"), ["dynamo-kvbm"]),
        (VLLM, None, ALL, Wish(), [MP]),
        (VLLM, None, found(vllm="0.20.2", lmcache="0.4.6"), Wish(), [MP]),
        (SGLANG, GPUS, ALL, Wish(), ["sglang-hicache"]),
        (DYNAMO, GPUS, ALL, Wish("dynamo-kvbm"), ["dynamo-kvbm"]),
        (DYNAMO, GPUS, found(vllm="0.20.2", lmcache="0.4.6"), Wish(GDS), [GDS]),
    ],
)
def test_ways(
    program: Program, device: str | None, versions: Versions, wish: Wish, names: list[str]
) -> None:
    selection = select(program, device, versions, wish=wish)
    assert [way.adapter for way in selection.ways] == names
    assert selection.adapter is adapter_named(names[0])
    asked = candidates(program, device, wish)
    assert {*names, *selection.refused} == {way.adapter for way in asked}
    assert set(selection.order) == {way.adapter for way in asked}
    assert [name for name in selection.order if name in names] == names


#: As the catalog's models have them.
LLAMA: Traits = frozenset()
DEEPSEEK_V3 = frozenset({Trait.LATENT})
DEEPSEEK_V3_2 = frozenset({Trait.LATENT, Trait.INDEXER})
QWEN_VL = frozenset({Trait.MULTIMODAL})
GEMMA_4 = frozenset({Trait.WINDOWS, Trait.UNEQUAL_HEADS, Trait.MULTIMODAL})


@pytest.mark.parametrize(
    ("vllm", "lmcache", "traits", "names"),
    [
        ("0.20.2", "0.4.6", DEEPSEEK_V3, [GDS, POSIX]),
        ("0.29.0", "0.5.2", DEEPSEEK_V3, [GDS, POSIX]),
        ("0.29.0", "0.5.2", DEEPSEEK_V3 | {Trait.HEADS_FIRST}, []),
        ("0.29.0", "0.5.2", LLAMA, []),
        # What is certain comes before what is fast.
        ("0.33.0", "0.5.6", DEEPSEEK_V3, [MP, TIERING, GDS, POSIX]),
        ("0.33.0", "0.5.6", DEEPSEEK_V3_2, [MP, TIERING]),
        ("0.20.2", "0.4.6", DEEPSEEK_V3_2, []),
        ("0.22.0", "0.5.6", DEEPSEEK_V3_2, [MP]),
        ("0.20.2", "0.4.6", QWEN_VL, []),
        ("0.25.1", "0.5.5", QWEN_VL, [GDS, POSIX]),
        ("0.32.0", "0.5.4", QWEN_VL, [TIERING]),
        ("0.26.0", "0.5.6", GEMMA_4, [MP]),
        ("0.25.1", "0.5.6", GEMMA_4, [MP]),
        ("0.33.0", "0.5.2", GEMMA_4, [TIERING]),
        ("0.33.0", "0.5.6", LLAMA | {Trait.PROMPT_EMBEDS}, [TIERING]),
        ("0.33.0", "0.5.6", LLAMA | {Trait.LARGE_BLOCKS}, [TIERING]),
        ("0.33.0", "0.5.6", LLAMA | {Trait.UNSHARED_MEMORY, Trait.SLEEP_MODE}, [TIERING]),
        ("0.25.1", "0.5.6", LLAMA | {Trait.CONTEXT_PARALLEL}, [MP]),
    ],
)
def test_ways_of_models(vllm: str, lmcache: str, traits: Traits, names: list[str]) -> None:
    selection = select(VLLM, GPUS, found(vllm=vllm, lmcache=lmcache), traits)
    assert [way.adapter for way in selection.ways] == names


@pytest.mark.parametrize(
    ("program", "device", "versions", "wish", "message"),
    [
        (
            VLLM,
            GPUS,
            found(vllm="0.24.0"),
            Wish(),
            "no lmcache-gds or lmcache-posix or lmcache-mp: the image has no LMCache; "
            "no vllm-tiering: vLLM 0.24.0 is too old, 0.32.0 or later is needed",
        ),
        (VLLM, None, found(vllm="0.32.0"), Wish(), "the image has no LMCache"),
        (VLLM, None, Versions({"vllm": "0.20.2", "lmcache": "0.4.5"}), Wish(), "0.4.6 or later"),
        (SGLANG, GPUS, found(sglang="0.5.14"), Wish(), "SGLang 0.5.14 is too old, 0.5.15"),
        # Never by name either.
        (VLLM, GPUS, ALL, Wish(GDS), "restores a part of every context wrongly"),
        (VLLM, GPUS, ALL, Wish(transport=DIRECT), "use an image with LMCache 0.5.6 or later"),
        (DYNAMO, GPUS, ALL, Wish(POSIX), "restores a part of every context wrongly"),
        # Versions that nobody knows.
        (
            VLLM,
            GPUS,
            Versions(),
            Wish(GDS),
            "nobody can tell which LMCache and vLLM the image has, and with some versions this way "
            "answers wrongly or does not start; say it in the image's label "
            "ai.backend.kvcache.lmcache-version and ai.backend.kvcache.engine-version",
        ),
        (VLLM, None, found(vllm="nightly", lmcache="main"), Wish(), "nobody can tell which"),
        (VLLM, None, Versions({"lmcache": "0.5.6"}), Wish(), "nobody can tell which vLLM the"),
        (SGLANG, GPUS, Versions(), Wish(), "label ai.backend.kvcache.engine-version"),
    ],
)
def test_no_way_is_left(
    program: Program, device: str | None, versions: Versions, wish: Wish, message: str
) -> None:
    selection = select(program, device, versions, wish=wish)
    assert selection.adapter is None
    assert message in summary(selection.refused)


def test_reason_of_unknown_versions_is_given_once_for_most_ways() -> None:
    why = summary(select(VLLM, GPUS, Versions()).refused)
    assert why.count("nobody can tell which LMCache and vLLM") == 1
    assert why.startswith("no lmcache-mp or lmcache-gds or lmcache-posix: ")


@pytest.mark.parametrize(
    ("program", "device", "wish", "message"),
    [
        (VLLM, "rocm", Wish(), "not known to work for vllm on 'rocm' accelerators"),
        (SGLANG, None, Wish(), "not known to work for sglang without GPUs"),
        (SGLANG, "cuda", Wish(transport=Transport.GDS), "transport = gds does not go with"),
        (DYNAMO, "cuda", Wish(), "dynamo has KV cache only where connector names a way"),
        (
            VLLM,
            "cuda",
            Wish("sglang-hicache"),
            r"connector = sglang-hicache does not go with this session, which runs vllm; it can "
            r"have lmcache-mp \(posix\), vllm-tiering \(posix\), lmcache-gds \(gds\)",
        ),
    ],
)
def test_no_such_way(program: Program, device: str | None, wish: Wish, message: str) -> None:
    with pytest.raises(DeclinedError, match=message):
        select(program, device, ALL, wish=wish)


def test_oldest_versions_are_of_packages_that_have_a_title() -> None:
    for way in WAYS:
        assert way.needs.keys() <= NEWEST.keys()
