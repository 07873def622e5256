"""Combinations that are known to answer wrongly, to crash or to hang, and where that is known from.

A row is about all sessions whose way, versions and traits it names. What is not known of an image
may be any version: a way is taken only if no row could be about the session.

The source of a row says how sure it is: "read" in the released packages, "run" or "emulated" on
CPUs, or reported in an issue of the package. Nothing here was run on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import attrs
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from .adapter import EngineAdapter
from .traits import Trait, Traits
from .versions import NEWEST, OLDEST_VLLM, TITLES, Versions

_IN_PROCESS = ("lmcache-gds", "lmcache-posix")
_LMCACHE = (*_IN_PROCESS, "lmcache-mp")

_OTHER_WAYS = (
    "use an image with LMCache 0.5.6 or later (for lmcache-mp) or with vLLM 0.32 or later (for "
    "vllm-tiering)"
)
_LMCACHE_0_5_6 = "use an image with LMCache 0.5.6 or later"


def _specifiers(packages: Mapping[str, str]) -> Mapping[str, SpecifierSet]:
    return {package: SpecifierSet(meant) for package, meant in packages.items()}


def _traits(traits: Set[Trait]) -> Traits:
    return frozenset(traits)


@attrs.frozen
class KnownProblem:
    """One row."""

    name: str
    adapters: tuple[str, ...]
    because: str
    source: str
    packages: Mapping[str, SpecifierSet] = attrs.field(factory=dict, converter=_specifiers)
    """Package → the versions that are meant. All of them have to be."""
    having: Traits = attrs.field(factory=frozenset, converter=_traits)
    """The session has all of these."""
    lacking: Traits = attrs.field(factory=frozenset, converter=_traits)
    """And none of these."""
    remedy: str = ""
    """What to do about it."""
    only_warns: bool = False
    """Whether the way is taken all the same, with a warning."""


#: Of several that apply, the first is told.
KNOWN_PROBLEMS = (
    KnownProblem(
        "no-failure-policy",
        _LMCACHE,
        "this vLLM cannot be told what to do with a block that cannot be loaded",
        "read: kv_load_failure_policy is not in vllm/config/kv_transfer.py of 0.12.0",
        {"vllm": f"<{OLDEST_VLLM}"},
        remedy=f"use an image with vLLM {OLDEST_VLLM} or later",
    ),
    KnownProblem(
        "too-old-in-process",
        _IN_PROCESS,
        "this LMCache does not work with vLLM 0.15 and later",
        "vLLM#33440, LMCache#2570",
        {"lmcache": "<0.3.9"},
        remedy="use an image with LMCache 0.3.9 or later",
    ),
    KnownProblem(
        "unknown-tensor",
        _LMCACHE,
        "this LMCache does not know the shape in which this vLLM keeps its KV cache, and the "
        "engine ends",
        "read: LMCache 0.4.6 takes no tensors of four dimensions, which vLLM has from 0.26 on",
        {"vllm": ">=0.26", "lmcache": "<0.4.7"},
        remedy=_OTHER_WAYS,
    ),
    KnownProblem(
        "unknown-tensor-on-cpus",
        ("lmcache-mp",),
        "this LMCache does not know the shape in which this vLLM keeps its KV cache on CPUs, and "
        "the engine ends",
        "read, and reported by a user: LMCache 0.4.6 with vLLM 0.25.1",
        {"vllm": ">=0.25", "lmcache": "<0.4.7"},
        lacking={Trait.GPUS},
        remedy=_LMCACHE_0_5_6,
    ),
    KnownProblem(
        "indexer-in-process",
        _IN_PROCESS,
        "LMCache inside vLLM does not know the keys of a sparse attention's indexer (DSA): it "
        "crashes at start, or answers wrongly above 2,048 tokens",
        "LMCache#5002, LMCache#3339, LMCache#5010; read up to 0.5.6",
        having={Trait.INDEXER},
        remedy=_OTHER_WAYS,
    ),
    KnownProblem(
        "repeated-layers-in-process",
        _IN_PROCESS,
        "LMCache inside vLLM has room for one cache of each layer, and this model's layers run "
        "several times and keep one for each time",
        "read up to 0.5.6: v1/gpu_connector/gpu_connectors.py, _initialize_pointers",
        having={Trait.REPEATED_LAYERS},
        remedy=_OTHER_WAYS,
    ),
    KnownProblem(
        "unequal-heads-in-process",
        _IN_PROCESS,
        "LMCache inside vLLM takes all layers for alike, and this model's have other heads than "
        "others",
        "LMCache#3106; read up to 0.5.6",
        having={Trait.UNEQUAL_HEADS},
        remedy=_OTHER_WAYS,
    ),
    KnownProblem(
        "layout-in-process",
        _IN_PROCESS,
        "vLLM keeps keys and values in another form from 0.26 on, and LMCache inside vLLM restores "
        "a part of every context wrongly, without an error",
        "LMCache#4463, LMCache#4467, LMCache#4614, vLLM#52617; emulated: half of a context was "
        "restored; not fixed in 0.5.6",
        {"vllm": ">=0.26"},
        lacking={Trait.LATENT},
        remedy=f"{_OTHER_WAYS}, or with vLLM before 0.26",
    ),
    KnownProblem(
        "latent-layout-in-process",
        _IN_PROCESS,
        "LMCache inside vLLM restores latent vectors wrongly where they lie in the layout HND: by "
        "VLLM_KV_CACHE_LAYOUT, by an attention backend of FlashInfer or TokenSpeed, or by vLLM's "
        "own choice on GPUs of the Blackwell generation",
        "emulated: NHD is restored, HND is not; read: get_required_kv_cache_layout of vLLM 0.26.0",
        {"vllm": ">=0.26"},
        having={Trait.LATENT, Trait.HEADS_FIRST},
        remedy=_OTHER_WAYS,
    ),
    KnownProblem(
        "context-parallel-in-process",
        _IN_PROCESS,
        "LMCache inside vLLM fails, or keeps nothing, where ranks share one context",
        "LMCache#1732, LMCache#4030; read up to 0.5.6",
        having={Trait.CONTEXT_PARALLEL},
        remedy=f"{_OTHER_WAYS}, or leave --decode-context-parallel-size out",
    ),
    KnownProblem(
        "server-imports",
        ("lmcache-mp",),
        "this LMCache's connector needs vLLM 0.22 or later, and the engine would not start",
        "read: kv_cache_group_edits.py of LMCache 0.4.7 imports KVCacheSpecKind, which vLLM 0.21.0 "
        "does not have; run with vLLM 0.20.2",
        {"vllm": "<0.22", "lmcache": ">=0.4.7"},
        remedy="use an image with vLLM 0.22 or later, or without GPUs one with LMCache 0.4.6",
    ),
    KnownProblem(
        "server-layout",
        ("lmcache-mp",),
        "this LMCache takes one memory layout of this vLLM's KV cache for another, and loses or "
        "mixes up blocks",
        "LMCache#4870, LMCache#4247, LMCache#4253; read: rank 4 always HND up to 0.5.1, NHD up to "
        "0.5.4",
        {"vllm": ">=0.26", "lmcache": "<0.5.6"},
        remedy=_LMCACHE_0_5_6,
    ),
    KnownProblem(
        "server-preemption",
        ("lmcache-mp",),
        "when vLLM preempts a request, this LMCache may store another request's blocks in the "
        "place of its own",
        "LMCache#4612, LMCache#4822, LMCache#4955; read; fixed in 0.5.6",
        {"lmcache": "<0.5.6"},
        having={Trait.GPUS},
        remedy=_LMCACHE_0_5_6,
    ),
    KnownProblem(
        "server-unequal-heads",
        ("lmcache-mp",),
        "with layers that have other heads than others this LMCache crashes at start",
        "LMCache#4263, LMCache#4358; fixed in 0.5.6",
        {"lmcache": "<0.5.6"},
        having={Trait.UNEQUAL_HEADS},
        remedy=_LMCACHE_0_5_6,
    ),
    KnownProblem(
        "server-context-parallel",
        ("lmcache-mp",),
        "this LMCache fails, or keeps nothing, where ranks share one context",
        "LMCache#4679; fixed in 0.5.5",
        {"lmcache": "<0.5.5"},
        having={Trait.CONTEXT_PARALLEL},
        remedy=_LMCACHE_0_5_6,
    ),
    KnownProblem(
        "server-large-blocks",
        ("lmcache-mp",),
        "LMCache takes a block that is larger than the attention kernel's pages for a compressed "
        "one, and loses a part of it",
        "read up to 0.5.6; emulated: of a chunk of 256 tokens 128 were stored",
        having={Trait.GPUS, Trait.LARGE_BLOCKS},
        remedy="give --block-size 64 or less, or --attention-backend FLASH_ATTN or TRITON_ATTN",
    ),
    KnownProblem(
        "server-unshared-memory",
        ("lmcache-mp",),
        "LMCache's server cannot open GPU memory of the cumem allocator, which sleep mode uses, or "
        "of expandable segments, and the engine would not start",
        "LMCache#4630, LMCache#4805; read: platform/devices/cuda/ipc_wrapper.py of 0.5.6",
        having={Trait.GPUS, Trait.UNSHARED_MEMORY},
        remedy="leave out --enable-sleep-mode, --enable-cumem-allocator and expandable_segments",
    ),
    KnownProblem(
        "server-fraction",
        ("lmcache-mp",),
        "LMCache's server opens the engine's GPU memory from another process, and nobody has tried "
        "whether that is possible with a share of a GPU",
        "nothing is known: CUDA IPC behind Backend.AI's library for fractional GPUs",
        having={Trait.GPUS, Trait.FRACTION},
        remedy="give the session a whole GPU, or use an image with vLLM 0.32 or later (for "
        "vllm-tiering)",
    ),
    KnownProblem(
        "image-hash",
        _LMCACHE,
        "this LMCache tells images apart by 16 bits, so that one image is answered with another's "
        "cache",
        "LMCache#3301, LMCache#4086, LMCache#4783; read; fixed in 0.5.5",
        {"lmcache": "<0.5.5"},
        having={Trait.MULTIMODAL},
        remedy=f"{_OTHER_WAYS}, or give --language-model-only if no request has an image",
    ),
    KnownProblem(
        "prompt-embeds",
        _LMCACHE,
        "LMCache's keys say nothing of prompt embeddings, so that one prompt is answered with "
        "another's cache",
        "vLLM#42119; read up to 0.5.6",
        having={Trait.PROMPT_EMBEDS},
        remedy="leave out --enable-prompt-embeds, or use an image with vLLM 0.32 or later (for "
        "vllm-tiering)",
    ),
    KnownProblem(
        "other-layout",
        _LMCACHE,
        "LMCache does not take this memory layout of KV cache",
        "read: translate_vllm_kv_cache_layout of LMCache 0.5.6",
        having={Trait.OTHER_LAYOUT},
        remedy="set VLLM_KV_CACHE_LAYOUT to NHD or HND, or leave it out",
    ),
    KnownProblem(
        "server-failed-load",
        ("lmcache-mp",),
        "the engine ends if LMCache's server dies just while it loads a context of this model, "
        "which has layers with a window",
        "read: _update_requests_with_invalid_blocks of vLLM 0.29.0 takes one KV cache group only",
        {"vllm": "<0.30"},
        having={Trait.GPUS, Trait.WINDOWS},
        remedy="vLLM 0.30 and later compute such a context",
        only_warns=True,
    ),
    KnownProblem(
        "sleep-in-process",
        _IN_PROCESS,
        "an engine with LMCache inside may crash when it is woken up",
        "vLLM#36753",
        having={Trait.SLEEP_MODE},
        remedy="leave out --enable-sleep-mode",
        only_warns=True,
    ),
    KnownProblem(
        "hicache-unequal-heads",
        ("sglang-hicache",),
        "SGLang's scheduler was seen to crash with a model whose layers have unequal heads "
        "(Gemma 4)",
        "SGLang#24800",
        having={Trait.UNEQUAL_HEADS},
        only_warns=True,
    ),
    KnownProblem(
        "kvbm-failed-transfer",
        ("dynamo-kvbm",),
        "Dynamo's block manager was seen to hang, or to answer with another request's cache, where "
        "GPUDirect Storage does not work in the container or a transfer fails",
        "Dynamo#15079, Dynamo#6032",
        remedy="lmcache-mp and vllm-tiering are the ways that are maintained",
        only_warns=True,
    ),
)


def _open_questions(row: KnownProblem, versions: Versions) -> tuple[str, ...] | None:
    """Of which packages a version has to be known to say whether a row is about an image.

    Returns:
        Empty: it is about the image. None: it is not, whatever they are.
    """
    unknown: list[str] = []
    for package, meant in row.packages.items():
        release = versions.known_release(package)
        if release is None:
            if versions.lacks(package):
                return None
            unknown.append(package)
        elif release not in meant:
            return None
    return tuple(unknown)


def _about(
    adapter: EngineAdapter, versions: Versions, traits: Traits
) -> list[tuple[KnownProblem, tuple[str, ...]]]:
    """The rows that are or may be about a session, each with the packages on which it depends."""
    found = []
    for row in KNOWN_PROBLEMS:
        if adapter.name in row.adapters and row.having <= traits and not row.lacking & traits:
            questions = _open_questions(row, versions)
            if questions is not None:
                found.append((row, questions))
    return found


def _told(row: KnownProblem) -> str:
    remedy = f"; {row.remedy}" if row.remedy else ""
    return f"{row.because}{remedy} ({row.source})"


def incompatibility(adapter: EngineAdapter, versions: Versions, traits: Traits) -> str | None:
    """Why these versions are known not to work in this way; None where nothing is known."""
    for row, questions in _about(adapter, versions, traits):
        if not row.only_warns and not questions:
            named = versions.named(adapter.packages)
            return f"{named}: {_told(row)}" if named else _told(row)
    return None


def unanswered(adapter: EngineAdapter, versions: Versions, traits: Traits) -> tuple[str, ...]:
    """The packages of unknown version with some of whose versions the way is known not to work."""
    return tuple(
        dict.fromkeys(
            package
            for row, questions in _about(adapter, versions, traits)
            if not row.only_warns
            for package in questions
        )
    )


def compatibility_notes(
    adapter: EngineAdapter, versions: Versions, traits: Traits
) -> tuple[str, ...]:
    """What to know of versions that are not refused."""
    notes = [_told(row) for row, _ in _about(adapter, versions, traits) if row.only_warns]
    assumed = [p for p in adapter.packages if versions.known_release(p) is None]
    if assumed:
        newest = " and ".join(f"{TITLES[p]} {NEWEST[p]}" for p in assumed)
        notes.append(f"the image does not say its versions; it is told as {newest}")
    for package in adapter.packages:
        release = versions.known_release(package)
        if release is not None and release > Version(NEWEST[package]):
            notes.append(
                f"{TITLES[package]} {versions.of(package)} is later than {NEWEST[package]}, the "
                "latest that is known here; it is taken to behave as that one"
            )
    return tuple(notes)
