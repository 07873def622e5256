"""Each combination that is known to answer wrongly, to crash or to hang, from both of its sides.

The cases are named by the effect and by the reports that are known of it.
"""

from __future__ import annotations

from itertools import product

import attrs
import pytest

from ai.backend.kvcache.engine.compatibility import (
    KNOWN_PROBLEMS,
    KnownProblem,
    compatibility_notes,
    incompatibility,
    unanswered,
)
from ai.backend.kvcache.engine.select import NAMES, adapter_named
from ai.backend.kvcache.engine.traits import Trait, Traits
from ai.backend.kvcache.engine.versions import Versions

GDS, POSIX, MP = "lmcache-gds", "lmcache-posix", "lmcache-mp"
TIERING, HICACHE, KVBM = "vllm-tiering", "sglang-hicache", "dynamo-kvbm"
IN_PROCESS = (GDS, POSIX)

GPUS = frozenset({Trait.GPUS})
LATENT = GPUS | {Trait.LATENT}
DSA = LATENT | {Trait.INDEXER}
GEMMA_4 = GPUS | {Trait.WINDOWS, Trait.UNEQUAL_HEADS, Trait.MULTIMODAL}


def vllm(version: str, lmcache: str) -> dict[str, str]:
    return {"vllm": version, "lmcache": lmcache}


@attrs.frozen
class Case:
    """What a row says of some versions, and does not say of others."""

    row: str
    ways: tuple[str, ...]
    refused: tuple[dict[str, str], ...]
    allowed: tuple[dict[str, str], ...] = ()
    traits: Traits = GPUS
    allowed_traits: tuple[Traits, ...] = ()
    """With these in the place of the traits, nothing is known against the first that is refused."""


CASES = {
    "half of a context restored, silently (LMCache#4463, vLLM#52617)": Case(
        "layout-in-process",
        IN_PROCESS,
        refused=(
            vllm("0.26.0", "0.4.7"),
            vllm("0.26.0rc1", "0.5.6"),
            vllm("0.29.0+cu129", "0.5.2"),
            vllm("0.32.1.dev3", "0.5.4"),
            vllm("0.33.0", "0.5.6"),
            # Later ones are taken to behave as the latest that are known.
            vllm("0.34.0", "0.5.7"),
            vllm("1.0", "0.6.0"),
        ),
        allowed=(
            vllm("0.15.0", "0.3.15"),
            vllm("0.20.2", "0.4.6"),
            vllm("0.25.1+cu128", "0.5.6"),
            vllm("0.25.2.dev1", "0.5.2"),
        ),
        allowed_traits=(LATENT,),
    ),
    "ValueError, the engine ends": Case(
        "unknown-tensor",
        (*IN_PROCESS, MP),
        refused=(
            vllm("0.26.0", "0.4.6"),
            vllm("0.32.0", "0.3.15"),
            vllm("0.26.0rc1", "0.4.6.post1"),
        ),
        allowed=(vllm("0.25.1", "0.4.6"),),
    ),
    "the same with the server on CPUs, already with vLLM 0.25": Case(
        "unknown-tensor-on-cpus",
        (MP,),
        refused=(vllm("0.25.1", "0.4.6"), vllm("0.25.1+cpu", "0.4.6"), vllm("0.32.0", "0.4.6")),
        allowed=(vllm("0.20.2", "0.4.6"), vllm("0.25.1", "0.4.7")),
        traits=frozenset(),
    ),
    "latent attention in the layout HND, silently": Case(
        "latent-layout-in-process",
        IN_PROCESS,
        refused=(vllm("0.26.0", "0.4.7"), vllm("0.33.0", "0.5.6")),
        allowed=(vllm("0.25.1", "0.5.6"),),
        traits=LATENT | {Trait.HEADS_FIRST},
        allowed_traits=(LATENT,),
    ),
    "sparse attention (LMCache#5002, LMCache#5010)": Case(
        "indexer-in-process",
        IN_PROCESS,
        refused=(vllm("0.15.0", "0.3.15"), vllm("0.20.2", "0.4.6"), vllm("0.33.0", "0.5.6")),
        traits=DSA,
        allowed_traits=(LATENT,),
    ),
    "more caches than layers": Case(
        "repeated-layers-in-process",
        IN_PROCESS,
        refused=(vllm("0.15.0", "0.3.15"), vllm("0.20.2", "0.4.6"), vllm("0.33.0", "0.5.6")),
        traits=LATENT | {Trait.REPEATED_LAYERS},
        allowed_traits=(LATENT,),
    ),
    "NHD taken for HND, and HND for NHD (LMCache#4870)": Case(
        "server-layout",
        (MP,),
        refused=(
            vllm("0.26.0", "0.4.7"),
            vllm("0.26.0rc1", "0.5.1"),
            vllm("0.29.0", "0.5.4"),
            vllm("0.33.0", "0.5.5"),
        ),
        allowed=(vllm("0.26.0", "0.5.6"), vllm("0.34.0", "0.5.7.dev2"), vllm("0.25.1", "0.5.5")),
        traits=frozenset(),
    ),
    "another request's blocks after a preemption (LMCache#4612)": Case(
        "server-preemption",
        (MP,),
        refused=(vllm("0.22.0", "0.4.7"), vllm("0.25.1", "0.5.5"), vllm("0.25.1", "0.5.5.post1")),
        allowed=(vllm("0.22.0", "0.5.6"), vllm("0.25.1", "0.5.6rc1")),
        allowed_traits=(frozenset(),),
    ),
    "ImportError with a vLLM that is too old for the server's connector": Case(
        "server-imports",
        (MP,),
        refused=(vllm("0.20.2", "0.4.7"), vllm("0.21.0", "0.5.6"), vllm("0.15.0", "0.5.6")),
        allowed=(vllm("0.20.2", "0.4.6"), vllm("0.22.0", "0.4.7"), vllm("0.22.0rc2", "0.5.6")),
        traits=frozenset(),
    ),
    "blocks above the kernel's page, silently": Case(
        "server-large-blocks",
        (MP,),
        refused=(vllm("0.22.0", "0.5.6"), vllm("0.33.0", "0.5.6"), vllm("0.34.0", "0.6.0")),
        traits=GPUS | {Trait.LARGE_BLOCKS},
        allowed_traits=(GPUS, frozenset({Trait.LARGE_BLOCKS})),
    ),
    "one image gets another's cache (LMCache#3301, LMCache#4086)": Case(
        "image-hash",
        (*IN_PROCESS, MP),
        refused=(vllm("0.20.2", "0.4.6"), vllm("0.25.1", "0.5.4"), vllm("0.15.0", "0.3.15")),
        allowed=(vllm("0.25.1", "0.5.6"),),
        traits=frozenset({Trait.MULTIMODAL}),
        allowed_traits=(frozenset(),),
    ),
    "keys without the embeddings (vLLM#42119)": Case(
        "prompt-embeds",
        (*IN_PROCESS, MP),
        refused=(vllm("0.20.2", "0.4.6"), vllm("0.25.1", "0.5.6"), vllm("0.25.1", "0.6.0")),
        traits=frozenset({Trait.PROMPT_EMBEDS}),
        allowed_traits=(frozenset(),),
    ),
    "decode context parallelism inside vLLM (LMCache#1732)": Case(
        "context-parallel-in-process",
        IN_PROCESS,
        refused=(vllm("0.20.2", "0.4.6"), vllm("0.25.1", "0.5.6")),
        traits=GPUS | {Trait.CONTEXT_PARALLEL},
        allowed_traits=(GPUS,),
    ),
    "decode context parallelism with the server (LMCache#4679)": Case(
        "server-context-parallel",
        (MP,),
        refused=(vllm("0.22.0", "0.5.4"), vllm("0.25.1", "0.4.7")),
        allowed=(vllm("0.22.0", "0.5.5"), vllm("0.33.0", "0.5.6")),
        traits=frozenset({Trait.CONTEXT_PARALLEL}),
        allowed_traits=(frozenset(),),
    ),
    "unequal head sizes inside vLLM (LMCache#3106)": Case(
        "unequal-heads-in-process",
        IN_PROCESS,
        refused=(vllm("0.20.2", "0.4.4"), vllm("0.25.1", "0.5.6")),
        traits=GEMMA_4,
        allowed_traits=(GPUS | {Trait.WINDOWS},),
    ),
    "unequal head sizes with the server (LMCache#4263, LMCache#4358)": Case(
        "server-unequal-heads",
        (MP,),
        refused=(vllm("0.22.0", "0.5.2"), vllm("0.25.1", "0.5.5")),
        allowed=(vllm("0.26.0", "0.5.6"), vllm("0.33.0", "0.5.6")),
        traits=frozenset({Trait.UNEQUAL_HEADS}),
        allowed_traits=(frozenset(),),
    ),
    "does not work (vLLM#33440, LMCache#2570)": Case(
        "too-old-in-process",
        IN_PROCESS,
        refused=(vllm("0.15.0", "0.3.8"), vllm("0.20.2", "0.3.3"), vllm("0.17.0", "0.3.8.post1")),
        allowed=(vllm("0.15.0", "0.3.9"), vllm("0.15.0", "0.3.9.post2"), vllm("0.15.0", "0.3.15")),
    ),
    "no policy for failed loads": Case(
        "no-failure-policy",
        (*IN_PROCESS, MP),
        refused=(vllm("0.12.0", "0.4.6"), vllm("0.14.1.dev0", "0.4.6")),
        allowed=(vllm("0.15.0rc1", "0.4.6"),),
        traits=frozenset(),
    ),
    "a layout that LMCache does not take": Case(
        "other-layout",
        (*IN_PROCESS, MP),
        refused=(vllm("0.20.2", "0.4.6"), vllm("0.25.1", "0.5.6")),
        traits=frozenset({Trait.OTHER_LAYOUT}),
        allowed_traits=(frozenset(),),
    ),
    "a share of a GPU, which nobody has tried": Case(
        "server-fraction",
        (MP,),
        refused=(vllm("0.22.0", "0.5.6"), vllm("0.33.0", "0.5.6")),
        traits=GPUS | {Trait.FRACTION},
        allowed_traits=(GPUS,),
    ),
    "GPU memory that no other process can open (LMCache#4805)": Case(
        "server-unshared-memory",
        (MP,),
        refused=(vllm("0.22.0", "0.5.6"), vllm("0.33.0", "0.5.6")),
        traits=GPUS | {Trait.UNSHARED_MEMORY},
        allowed_traits=(GPUS, frozenset({Trait.UNSHARED_MEMORY})),
    ),
}

#: Row → where it warns: (way, packages, traits), and where it does not.
WARNINGS = {
    "kvbm-failed-transfer": ((KVBM, {"vllm": "0.26.0", "kvbm": "1.4.2"}, GPUS), None),
    "hicache-unequal-heads": (
        (HICACHE, {"sglang": "0.5.23"}, GEMMA_4),
        (HICACHE, {"sglang": "0.5.23"}, GPUS),
    ),
    "sleep-in-process": (
        (GDS, vllm("0.20.2", "0.4.6"), GPUS | {Trait.SLEEP_MODE}),
        (GDS, vllm("0.20.2", "0.4.6"), GPUS),
    ),
    "server-failed-load": (
        (MP, vllm("0.29.0", "0.5.6"), GPUS | {Trait.WINDOWS}),
        (MP, vllm("0.30.0", "0.5.6"), GPUS | {Trait.WINDOWS}),
    ),
}


def row_named(name: str) -> KnownProblem:
    (row,) = (row for row in KNOWN_PROBLEMS if row.name == name)
    return row


def known(way: str, packages: dict[str, str], traits: Traits) -> str | None:
    return incompatibility(adapter_named(way), Versions(packages, is_complete=True), traits)


def test_every_row_is_tried() -> None:
    assert sorted(row.name for row in KNOWN_PROBLEMS) == sorted([
        *(case.row for case in CASES.values()),
        *WARNINGS,
    ])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_refused(case: Case) -> None:
    row = row_named(case.row)
    assert row.adapters == case.ways
    for way, packages in product(case.ways, case.refused):
        why = known(way, packages, case.traits)
        assert why is not None, (way, packages)
    assert row.because in (known(case.ways[0], case.refused[0], case.traits) or "")
    for way, packages in product(case.ways, case.allowed):
        assert row.because not in (known(way, packages, case.traits) or ""), (way, packages)
    for way, traits in product(case.ways, case.allowed_traits):
        assert row.because not in (known(way, case.refused[0], traits) or ""), (way, traits)


@pytest.mark.parametrize("name", WARNINGS)
def test_warned_of(name: str) -> None:
    row = row_named(name)
    (way, packages, traits), other = WARNINGS[name]
    adapter, versions = adapter_named(way), Versions(packages, is_complete=True)
    assert incompatibility(adapter, versions, traits) is None
    assert any(row.because in note for note in compatibility_notes(adapter, versions, traits))
    if other is not None:
        way, packages, traits = other
        adapter, versions = adapter_named(way), Versions(packages, is_complete=True)
        assert compatibility_notes(adapter, versions, traits) == ()


@pytest.mark.parametrize(
    ("way", "packages", "traits"),
    [
        # Those that were run.
        (MP, vllm("0.32.0+cpu", "0.5.6"), frozenset()),
        (MP, vllm("0.20.2", "0.4.6"), frozenset()),
        # The reference system's.
        (GDS, vllm("0.20.0", "0.4.4"), GPUS),
        # Images from LMCache 0.5.5 on; windows of the same heads.
        (GDS, vllm("0.25.1", "0.5.5"), GPUS | {Trait.MULTIMODAL}),
        (GDS, vllm("0.20.2", "0.4.6"), GPUS | {Trait.WINDOWS}),
        (POSIX, vllm("0.29.0", "0.5.2"), LATENT),
        # The server with what LMCache inside vLLM does not know.
        (MP, vllm("0.32.0", "0.5.6"), DSA),
        (MP, vllm("0.33.0", "0.5.6"), GEMMA_4),
        (MP, vllm("0.34.0", "0.5.6"), GPUS | {Trait.HEADS_FIRST}),
        (MP, vllm("0.32.0", "0.5.6"), GPUS | {Trait.CONTEXT_PARALLEL}),
        # vLLM's own tiers have keys of their own.
        (TIERING, {"vllm": "0.32.0"}, GEMMA_4 | {Trait.PROMPT_EMBEDS, Trait.LARGE_BLOCKS}),
    ],
)
def test_nothing_is_known_against_it(way: str, packages: dict[str, str], traits: Traits) -> None:
    assert known(way, packages, traits) is None


def test_reason_names_versions_effect_remedy_and_source() -> None:
    why = known(GDS, vllm("0.32.0", "0.5.6"), GPUS)
    assert why is not None
    assert why.startswith("vLLM 0.32.0 with LMCache 0.5.6: ")
    for part in ("restores a part of every context wrongly", "lmcache-mp", "LMCache#4463"):
        assert part in why


def test_rows_say_what_to_do_and_where_they_are_from() -> None:
    for row in KNOWN_PROBLEMS:
        assert set(row.adapters) <= set(NAMES)
        assert row.source
        assert row.remedy or row.only_warns


class TestUnknownVersions:
    @pytest.mark.parametrize(
        ("way", "packages", "traits", "packages_to_know"),
        [
            (GDS, {}, GPUS, ("vllm", "lmcache")),
            (GDS, {"vllm": "nightly", "lmcache": "main"}, GPUS, ("vllm", "lmcache")),
            (GDS, {"lmcache": "0.5.6"}, GPUS, ("vllm",)),
            (GDS, {"vllm": "0.20.2"}, GPUS, ("lmcache",)),
            (MP, {"vllm": "0.32.0"}, GPUS, ("lmcache",)),
            (MP, {"lmcache": "0.5.6"}, frozenset(), ("vllm",)),
            # Whatever LMCache is in the image, these two do not need it.
            (TIERING, {"vllm": "0.32.0"}, GEMMA_4, ()),
            (HICACHE, {"sglang": "0.5.23"}, GEMMA_4, ()),
        ],
    )
    def test_may_be_one_that_does_not_work(
        self,
        way: str,
        packages: dict[str, str],
        traits: Traits,
        packages_to_know: tuple[str, ...],
    ) -> None:
        assert unanswered(adapter_named(way), Versions(packages), traits) == packages_to_know

    def test_whatever_it_is(self) -> None:
        # No LMCache is right with this vLLM.
        adapter, versions = adapter_named(GDS), Versions({"vllm": "0.33.0"})
        assert "restores a part" in (incompatibility(adapter, versions, GPUS) or "")


class TestNotes:
    @pytest.mark.parametrize(
        ("way", "packages", "later"),
        [
            (MP, vllm("0.33.0", "0.5.6"), []),
            (MP, vllm("0.33.0.post1", "0.5.6"), []),
            (MP, vllm("0.34.0", "0.5.6"), ["vLLM 0.34.0 is later than 0.33.0"]),
            (MP, vllm("0.33.1rc1", "0.5.6"), ["vLLM 0.33.1rc1 is later than 0.33.0"]),
            (TIERING, vllm("0.34.0", "0.6.0"), ["vLLM 0.34.0 is later than 0.33.0"]),
            (
                MP,
                vllm("0.34.0", "0.6.0"),
                ["vLLM 0.34.0 is later than 0.33.0", "LMCache 0.6.0 is later than 0.5.6"],
            ),
        ],
    )
    def test_later_versions(self, way: str, packages: dict[str, str], later: list[str]) -> None:
        notes = compatibility_notes(adapter_named(way), Versions(packages), GPUS)
        assert [note.partition(",")[0] for note in notes] == later

    def test_what_is_assumed(self) -> None:
        notes = compatibility_notes(adapter_named(KVBM), Versions({"kvbm": "1.6.1"}), GPUS)
        assert notes[-1] == "the image does not say its versions; it is told as vLLM 0.33.0"
