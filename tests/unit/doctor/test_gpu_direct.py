from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.kvcache.doctor.check import Status, ok, skipped
from ai.backend.kvcache.doctor.gpu import GpuFacts, judge_gpus
from ai.backend.kvcache.doctor.gpu_direct import (
    judge_cufile,
    judge_devices,
    judge_driver,
    judge_udev,
    parse_version,
)
from ai.backend.kvcache.doctor.memlock import Memlock, judge_memlock, parse_limits, read_memlock
from ai.backend.kvcache.doctor.rdma import Port, judge_ports, read_ports
from ai.backend.kvcache.gds.cufile import (
    CufileError,
    CufileSettings,
    parse_cufile,
    usual_file,
)

#: As nvidia-smi prints it on a node with two kinds.
LISTING = """\
NVIDIA H200, 143771 MiB, 580.95.05
NVIDIA H200, 143771 MiB, 580.95.05
NVIDIA L4, 23034 MiB, 580.95.05
"""

#: In the form of the file that NVIDIA's package installs: with comments of both kinds, and with
#: texts that look like comments.
CUFILE = """\
{
    // NOTE : Application can override custom configuration via export CUFILE_ENV_PATH_JSON=<file>
    "logging": {
        // log directory, if not enabled will create log file under current working directory
        //"dir": "/home/<xxxx>",
        "level": "ERROR" /* NOTICE|ERROR|WARN
                            |INFO|DEBUG */
    },
    "properties": {
        "max_direct_io_size_kb" : 16384,
        // allow compat mode, this will enable use of cuFile posix read/writes
        "allow_compat_mode": %s,
        "use_pci_p2pdma": false,
        "rdma_dev_addr_list": [ "192.168.0.12", "192.168.1.12" ],
        "note": "https://example.org/ \\" /* no comment */"
    },
    "fs": { "generic": { "posix_unaligned_writes": false } }
}
"""

#: Of a process under systemd's default.
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max processes             127326               127326               processes
Max open files            1048576              1048576              files
Max locked memory         {soft:<20} {hard:<20} bytes
Max address space         unlimited            unlimited            bytes
"""

PATH = Path("/etc/cufile.json")
DRIVER = ok("nvidia-fs 2.28; storage that knows it: nvme, rpcrdma")


class TestGpus:
    def test_none(self) -> None:
        assert judge_gpus(GpuFacts(0)) == skipped("this host has no GPU of NVIDIA's")

    def test_of_two_kinds(self) -> None:
        assert judge_gpus(GpuFacts(3, LISTING)) == ok(
            "2 x NVIDIA H200 with 143771 MiB, driver 580.95.05; "
            "1 x NVIDIA L4 with 23034 MiB, driver 580.95.05"
        )

    def test_without_a_driver(self) -> None:
        finding = judge_gpus(GpuFacts(8))
        assert (finding.status, finding.text) == (
            Status.WARNING,
            "8 on the bus, and no nvidia-smi",
        )

    def test_broken_driver(self) -> None:
        problem = "nvidia-smi says: Failed to initialize NVML: Driver/library version mismatch"
        finding = judge_gpus(GpuFacts(8, problem=problem))
        assert (finding.status, finding.text) == (Status.FAILED, f"8 on the bus, and {problem}")


class TestDriver:
    def test_version(self) -> None:
        # As the driver's nvfs_version_show() prints it.
        assert parse_version("version: 2.28\n") == (2, 28)
        assert parse_version("") is None

    def test_loaded(self) -> None:
        assert judge_driver("version: 2.28\n", "nvme: proprietary\nrpcrdma: 5.8\n") == DRIVER
        assert judge_driver("version: 2.7\n", "") == ok(
            "nvidia-fs 2.7; storage that knows it: none"
        )

    def test_not_loaded(self) -> None:
        finding = judge_driver(None, "")
        assert finding.status is Status.WARNING
        assert finding.text == (
            "nvidia-fs is not loaded: GPUDirect Storage goes through host memory"
        )
        assert "modprobe nvidia-fs" in str(finding.remedy)

    def test_strange(self) -> None:
        assert judge_driver("garbage", "").status is Status.WARNING

    def test_devices(self) -> None:
        assert judge_devices(0, driver_is_loaded=False) == skipped("nvidia-fs is not loaded")
        assert judge_devices(0, driver_is_loaded=True).status is Status.WARNING
        assert judge_devices(16, driver_is_loaded=True) == ok(
            "16 /dev/nvidia-fs*; sessions with GPUDirect Storage get them"
        )

    def test_udev(self) -> None:
        assert judge_udev(True) == ok("/run/udev/data is there")
        assert judge_udev(False).status is Status.WARNING


class TestCufile:
    def test_comments_are_passed_over(self) -> None:
        assert parse_cufile(CUFILE % "false") == CufileSettings(
            allow_compat_mode=False, rdma_addresses=("192.168.0.12", "192.168.1.12")
        )

    def test_defaults(self) -> None:
        assert parse_cufile("{}") == CufileSettings(True, False, False, ())

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("{", "is no JSON"),
            ("[]", "has properties that cannot be used"),
            ('{"properties": []}', "has properties that cannot be used"),
            ('{"properties": {"allow_compat_mode": "yes"}}', "allow_compat_mode"),
            ("[" * 100_000, "is no JSON"),
        ],
    )
    def test_what_cannot_be_read(self, text: str, problem: str) -> None:
        with pytest.raises(CufileError, match=problem):
            parse_cufile(text)

    def test_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert usual_file() == PATH
        monkeypatch.setenv("CUFILE_ENV_PATH_JSON", "/opt/cufile.json")
        assert usual_file() == Path("/opt/cufile.json")

    def test_good(self) -> None:
        settings = parse_cufile(CUFILE % "true")
        said = (
            "/etc/cufile.json: allow_compat_mode true, use_pci_p2pdma false, "
            "2 in rdma_dev_addr_list"
        )
        for driver_is_loaded in (True, False):
            assert judge_cufile(PATH, settings, driver_is_loaded) == ok(said)

    def test_no_way_is_left(self) -> None:
        strict = parse_cufile(CUFILE % "false")
        finding = judge_cufile(PATH, strict, driver_is_loaded=False)
        assert finding.status is Status.FAILED
        assert finding.text == (
            "/etc/cufile.json has allow_compat_mode false, and nvidia-fs is not loaded: cuFile "
            "reads and writes nothing at all"
        )
        assert judge_cufile(PATH, strict, driver_is_loaded=True).status is Status.OK
        p2p = CufileSettings(allow_compat_mode=False, use_pci_p2pdma=True)
        assert judge_cufile(PATH, p2p, driver_is_loaded=False).status is Status.OK

    def test_forced_through_host_memory(self) -> None:
        forced = CufileSettings(force_compat_mode=True)
        assert judge_cufile(PATH, forced, driver_is_loaded=True).status is Status.WARNING


class TestRdma:
    @staticmethod
    def port(device: Path, number: int, **files: str) -> None:
        directory = device / "ports" / str(number)
        directory.mkdir(parents=True)
        for name, text in files.items():
            (directory / name).write_text(f"{text}\n")

    def test_ports_of_the_kernel(self, tmp_path: Path) -> None:
        # The kernel's layout below /sys/class/infiniband.
        self.port(
            tmp_path / "mlx5_0",
            1,
            state="4: ACTIVE",
            rate="400 Gb/sec (4X NDR)",
            link_layer="InfiniBand",
        )
        self.port(tmp_path / "mlx5_1", 1, state="1: DOWN")
        ports = read_ports(tmp_path)
        assert ports == [
            Port("mlx5_0/1", "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand"),
            Port("mlx5_1/1", "1: DOWN", "unknown", "unknown"),
        ]
        assert judge_ports(ports) == ok("mlx5_0/1 InfiniBand 400 Gb/sec (4X NDR)")

    def test_none(self, tmp_path: Path) -> None:
        assert judge_ports(read_ports(tmp_path / "none")).status is Status.SKIPPED

    def test_all_down(self) -> None:
        finding = judge_ports([Port("mlx5_0/1", "1: DOWN", "10 Gb/sec", "Ethernet")])
        assert (finding.status, finding.text) == (
            Status.WARNING,
            "no port is active: mlx5_0/1 (1: DOWN)",
        )


class TestMemlock:
    def test_limits(self) -> None:
        assert parse_limits(LIMITS.format(soft="unlimited", hard="unlimited")) is None
        assert parse_limits(LIMITS.format(soft="8388608", hard="8388608")) == 8 * 2**20
        with pytest.raises(ValueError, match="no line"):
            parse_limits("")

    def test_of_the_running_agent(self, tmp_path: Path) -> None:
        # The kernel's layout below /proc, and the title that the agent gives itself.
        for pid, title, soft in (
            ("7", b"backend.ai: manager local\0", "1"),
            ("8", b"backend.ai: agent local\0", "unlimited"),
            ("self", b"python\0", "65536"),
        ):
            (tmp_path / pid).mkdir()
            (tmp_path / pid / "cmdline").write_bytes(title)
            (tmp_path / pid / "limits").write_text(LIMITS.format(soft=soft, hard="unlimited"))
        assert read_memlock(tmp_path) == Memlock(None, "the running agent")
        (tmp_path / "8" / "limits").unlink()
        assert read_memlock(tmp_path) == Memlock(65536, "this shell")

    def test_of_this_process(self) -> None:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        text = Path("/proc/self/limits").read_text()
        assert parse_limits(text) == (None if soft == resource.RLIM_INFINITY else soft)

    def test_judged(self) -> None:
        limit = Memlock(8 * 2**20, "the running agent")
        finding = judge_memlock(limit, pins_memory=True)
        assert finding.status is Status.WARNING
        assert finding.text == (
            "8 MiB, of the running agent and so of containers: transfers by RDMA may fail"
        )
        assert "LimitMEMLOCK=infinity" in str(finding.remedy)
        assert judge_memlock(limit, pins_memory=False).status is Status.SKIPPED
        assert judge_memlock(Memlock(None, "this shell"), True) == ok("no limit, of this shell")
