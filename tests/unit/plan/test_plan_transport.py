"""Which way sessions go on hosts that can do GPUDirect Storage, and on those that cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import attrs
import pytest

from ai.backend.kvcache.engine.adapter import Transport
from ai.backend.kvcache.engine.select import Wish
from ai.backend.kvcache.engine.versions import Versions
from ai.backend.kvcache.folder.entries import Owner
from ai.backend.kvcache.gds.cufile import CufileSettings
from ai.backend.kvcache.gds.host import GdsHost
from ai.backend.kvcache.plan.decide import Preparation, prepare
from ai.backend.kvcache.plan.session import Gpus, Image, Mount, Service, Session
from ai.backend.kvcache.policy.settings import Settings

GIB = 2**30

DEVICES = (PurePosixPath("/dev/nvidia-fs0"), PurePosixPath("/dev/nvidia-fs1"))
MOUNTS = (PurePosixPath("/run/udev/data"), PurePosixPath("/etc/cufile.json"))

ABLE = GdsHost(has_driver=True, devices=DEVICES, has_udev=True, has_cufile=True)
UNABLE = GdsHost(has_udev=True)
STRICT = GdsHost(has_cufile=True, cufile=CufileSettings(allow_compat_mode=False))
LOCAL = GdsHost(has_cufile=True, cufile=CufileSettings(use_pci_p2pdma=True))

#: A quarter of it, 4 GiB for each of 8 ranks, does not hold a context of 11 GiB.
LITTLE = 128 * GIB

INSISTING = [Wish(transport=Transport.GDS), Wish(adapter="lmcache-gds")]


@pytest.fixture
def folders(make_folders: Callable[[str], tuple[Path, Path]]) -> tuple[Path, Path]:
    """(model, KV folder)."""
    model, kv = make_folders("devstral-2-123b")
    index = {"metadata": {"total_size": 128 * GIB}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return model, kv


@pytest.fixture
def session(folders: tuple[Path, Path]) -> Session:
    """The reference case."""
    model, kv = folders
    return Session(
        kernel_id="5f0c2f3e-0000-4000-8000-000000000000",
        mounts=(
            Mount("my-model", model, PurePosixPath("/models"), False, True),
            Mount("my-kv", kv, PurePosixPath("/kvcache"), True, False),
        ),
        environ={},
        image=Image(
            "local/stable/vllm:1",
            {
                "ai.backend.kvcache.engine-version": "0.20.2",
                "ai.backend.kvcache.lmcache-version": "0.4.6",
            },
        ),
        gpus=Gpus("cuda", 8, 80 * GIB),
        service=Service(("vllm", "serve", "{model_path}", "-tp", "8"), PurePosixPath("/models")),
        owner=Owner(),
        shared_memory_bytes=None,
    )


def decided(
    session: Session, host: GdsHost | None, wish: Wish, memory_bytes: int = 1024 * GIB
) -> Preparation:
    here = attrs.evolve(session, gds=host, memory_bytes=memory_bytes)
    return prepare(here, Settings(wish=wish))


def said(preparation: Preparation) -> list[tuple[str, str]]:
    """What the plan says of the transport: (value, why)."""
    return [(d.value, d.why) for d in preparation.plan.decisions if d.what == "transport"]


def warnings(preparation: Preparation) -> list[str]:
    return [w for w in preparation.plan.warnings if "GPUDirect" in w]


def given(preparation: Preparation) -> tuple[object, object]:
    return preparation.devices, preparation.host_mounts


class TestHostThatCan:
    @pytest.mark.parametrize("wish", [Wish(), *INSISTING])
    def test_container_gets_what_it_needs(self, session: Session, wish: Wish) -> None:
        preparation = decided(session, ABLE, wish)
        assert preparation.plan.adapter == "lmcache-gds"
        assert given(preparation) == (DEVICES, MOUNTS)
        assert said(preparation) == [
            ("gds", "the container gets 2 /dev/nvidia-fs*, /run/udev/data, /etc/cufile.json")
        ]
        assert warnings(preparation) == []

    def test_ordinary_files_need_nothing(self, session: Session) -> None:
        preparation = decided(session, ABLE, Wish(transport=Transport.POSIX))
        assert preparation.plan.adapter == "lmcache-posix"
        assert given(preparation) == ((), ())
        assert said(preparation) == []

    def test_local_disks_without_the_driver(self, session: Session) -> None:
        preparation = decided(session, LOCAL, Wish())
        assert preparation.plan.adapter == "lmcache-gds"
        assert given(preparation) == ((), (PurePosixPath("/etc/cufile.json"),))
        assert said(preparation) == [("gds", "the container gets /etc/cufile.json")]


class TestHostThatCannot:
    def test_ordinary_files_are_taken(self, session: Session) -> None:
        preparation = decided(session, UNABLE, Wish())
        assert preparation.plan.adapter == "lmcache-posix"
        assert given(preparation) == ((), ())
        assert said(preparation) == [
            (
                "posix",
                "no GPUDirect Storage on this node: nvidia-fs is not loaded; to have it, install "
                "NVIDIA's package nvidia-gds, then `modprobe nvidia-fs`; for local NVMe, CUDA 12.8 "
                "and later do without it, with use_pci_p2pdma in cufile.json",
            )
        ]
        assert warnings(preparation) == []
        # No buffer, so vLLM keeps its own share.
        assert preparation.plan.budget is None

    def test_compatible_mode_where_memory_is_too_little(self, session: Session) -> None:
        preparation = decided(session, UNABLE, Wish(), LITTLE)
        assert preparation.plan.no_kv_cache_because is None
        assert preparation.plan.adapter == "lmcache-gds"
        assert given(preparation) == ((), ())
        assert said(preparation) == []
        (compatible,) = warnings(preparation)
        # 8 x (262,144 + 64 x 256 tokens) x 45,056 bytes = 93.5 GiB
        assert list(preparation.plan.refused) == ["lmcache-mp", "vllm-tiering", "lmcache-posix"]
        assert preparation.plan.refused["lmcache-posix"].startswith(
            "transfers between GPU and folder take 93.5 GiB of host memory, and there are 32 GiB "
            "(a quarter of the session's 128 GiB)"
        )
        assert compatible.startswith(
            "GPUDirect Storage goes through host memory on this node: nvidia-fs is not loaded; "
            "install NVIDIA's package nvidia-gds"
        )

    @pytest.mark.parametrize("wish", INSISTING)
    def test_compatible_mode_where_it_is_insisted_on(self, session: Session, wish: Wish) -> None:
        preparation = decided(session, UNABLE, wish)
        assert preparation.plan.adapter == "lmcache-gds"
        assert len(warnings(preparation)) == 1
        assert "nvidia-fs is not loaded; install" in warnings(preparation)[0]

    def test_compatible_mode_that_is_forced(self, session: Session) -> None:
        host = attrs.evolve(ABLE, cufile=CufileSettings(force_compat_mode=True))
        preparation = decided(session, host, Wish(transport=Transport.GDS))
        assert preparation.plan.adapter == "lmcache-gds"
        assert given(preparation) == ((), (PurePosixPath("/etc/cufile.json"),))
        assert warnings(preparation) == [
            "GPUDirect Storage goes through host memory on this node: /etc/cufile.json has "
            "force_compat_mode; set it to false in properties"
        ]
        assert decided(session, host, Wish()).plan.adapter == "lmcache-posix"

    @pytest.mark.parametrize("wish", INSISTING)
    def test_compatible_mode_that_is_not_allowed(self, session: Session, wish: Wish) -> None:
        preparation = decided(session, STRICT, wish)
        assert list(preparation.files) == ["plan.json"]
        assert given(preparation) == ((), ())
        assert preparation.plan.no_kv_cache_because == (
            "lmcache-gds reads and writes nothing on this node: nvidia-fs is not loaded, and "
            "/etc/cufile.json has allow_compat_mode false; install NVIDIA's package nvidia-gds, "
            "then `modprobe nvidia-fs`; for local NVMe, CUDA 12.8 and later do without it, with "
            "use_pci_p2pdma in cufile.json, or set transport = posix"
        )

    def test_no_way_is_left(self, session: Session) -> None:
        assert decided(session, STRICT, Wish()).plan.adapter == "lmcache-posix"
        preparation = decided(session, STRICT, Wish(), LITTLE)
        reason = preparation.plan.no_kv_cache_because
        assert reason is not None
        # 4 x 93.5 GiB
        assert "start the session with 374 GiB of memory" in reason


class TestOthers:
    def test_host_that_nobody_has_looked_at(self, session: Session) -> None:
        preparation = decided(session, None, Wish())
        assert preparation.plan.adapter == "lmcache-gds"
        assert given(preparation) == ((), ())
        assert said(preparation) == []

    def test_image_without_lmcache(self, session: Session) -> None:
        image = Image("local/stable/vllm:1", {}, Versions({"vllm": "0.32.0"}, is_complete=True))
        preparation = decided(attrs.evolve(session, image=image), UNABLE, Wish())
        assert preparation.plan.adapter == "vllm-tiering"
        assert said(preparation) == []
