from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from ai.backend.kvcache.engine import adapters
from ai.backend.kvcache.engine.adapter import Transport
from ai.backend.kvcache.engine.command import Program
from ai.backend.kvcache.engine.select import NAMES, WAYS, Wish, adapter_named, select, summary
from ai.backend.kvcache.engine.versions import NEWEST, Versions
from ai.backend.kvcache.errors import DeclinedError

VLLM, SGLANG, DYNAMO = Program.VLLM, Program.SGLANG, Program.DYNAMO
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


@pytest.mark.parametrize(
    ("program", "device", "versions", "wish", "name"),
    [
        (VLLM, "cuda", ALL, Wish(), "lmcache-gds"),
        (VLLM, "cuda", Versions(), Wish(), "lmcache-gds"),
        (VLLM, "cuda", ALL, Wish(transport=Transport.GDS), "lmcache-gds"),
        (VLLM, "cuda", ALL, Wish(transport=Transport.POSIX), "lmcache-posix"),
        # No LMCache in the image.
        (VLLM, "cuda", found(vllm="0.32.0"), Wish(), "vllm-tiering"),
        (VLLM, "cuda", found(vllm="0.32.0"), Wish(transport=Transport.POSIX), "vllm-tiering"),
        # A label says no more than it says.
        (VLLM, "cuda", Versions({"vllm": "0.32.0"}), Wish(), "lmcache-gds"),
        (VLLM, "cuda", ALL, Wish("lmcache-mp"), "lmcache-mp"),
        (VLLM, "cuda", ALL, Wish("vllm-tiering"), "vllm-tiering"),
        (VLLM, "cuda", ALL, Wish("dynamo-kvbm"), "dynamo-kvbm"),
        (VLLM, None, ALL, Wish(), "lmcache-mp"),
        (VLLM, None, found(vllm="0.20.2", lmcache="0.4.6"), Wish(), "lmcache-mp"),
        (VLLM, None, found(vllm="nightly", lmcache="main"), Wish(), "lmcache-mp"),
        (SGLANG, "cuda", ALL, Wish(), "sglang-hicache"),
        (DYNAMO, "cuda", ALL, Wish(), "dynamo-kvbm"),
        (DYNAMO, "cuda", ALL, Wish("lmcache-gds"), "lmcache-gds"),
    ],
)
def test_chosen(
    program: Program, device: str | None, versions: Versions, wish: Wish, name: str
) -> None:
    adapter = select(program, device, versions, wish=wish).adapter
    assert adapter is not None
    assert adapter.name == name


@pytest.mark.parametrize(
    ("program", "device", "versions", "wish", "message"),
    [
        (
            VLLM,
            "cuda",
            found(vllm="0.24.0"),
            Wish(),
            "no lmcache-gds or lmcache-posix: the image has no LMCache; "
            "no vllm-tiering: vLLM 0.24.0 is too old, 0.32.0 or later is needed",
        ),
        (VLLM, None, found(vllm="0.32.0"), Wish(), "the image has no LMCache"),
        (VLLM, None, Versions({"lmcache": "0.4.5"}), Wish(), "0.4.6 or later"),
        (SGLANG, "cuda", found(sglang="0.5.14"), Wish(), "SGLang 0.5.14 is too old, 0.5.15"),
    ],
)
def test_no_way_is_left(
    program: Program, device: str | None, versions: Versions, wish: Wish, message: str
) -> None:
    selection = select(program, device, versions, wish=wish)
    assert selection.adapter is None
    assert message in summary(selection.refused)


@pytest.mark.parametrize(
    ("program", "device", "wish", "message"),
    [
        (VLLM, "rocm", Wish(), "not known to work for vllm on 'rocm' accelerators"),
        (SGLANG, None, Wish(), "not known to work for sglang without GPUs"),
        (SGLANG, "cuda", Wish(transport=Transport.GDS), "transport = gds does not go with"),
        (
            VLLM,
            "cuda",
            Wish("sglang-hicache"),
            r"connector = sglang-hicache does not go with this session, which runs vllm; it can "
            r"have lmcache-gds \(gds\), lmcache-posix \(posix\)",
        ),
    ],
)
def test_no_such_way(program: Program, device: str | None, wish: Wish, message: str) -> None:
    with pytest.raises(DeclinedError, match=message):
        select(program, device, ALL, wish=wish)


def test_oldest_versions_are_of_packages_that_have_a_title() -> None:
    for way in WAYS:
        assert way.needs.keys() <= NEWEST.keys()
