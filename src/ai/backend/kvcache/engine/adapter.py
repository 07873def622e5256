"""What every engine adapter takes and gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, ClassVar

import attrs

from ..sizes import GIB, MIB
from .traits import Traits
from .versions import Versions

#: What vLLM's processes exchange through /dev/shm, where something else lies there too; Docker's
#: 64 MiB are too few.
SHARED_BESIDES_BYTES = GIB


#: Of most forms on disk. The reader is an administrator or whoever runs the service.
NO_CHECKSUM = (
    "a changed byte in a file is not noticed, and answered from; keep the folder on storage with "
    "checksums of its own"
)

#: What vLLM does with a request for which a block was found and could not be loaded
#: (kv_load_failure_policy). Computing the block is right where contexts are loaded between two
#: steps of the scheduler (lmcache-mp, vllm-tiering): the request has not begun yet. LMCache inside
#: vLLM loads within a step. vLLM's scheduler then takes the failed tokens back on the CPU only, and
#: the answer is wrong with the V2 model runner or with asynchronous scheduling, which is on by
#: itself from vLLM 0.15 on at the latest (vLLM#49250; read up to 0.33.0).
FAIL_REQUEST = "fail"
COMPUTE_INSTEAD = "recompute"

#: Of ways that fail requests.
FAILS_REQUESTS = (
    "a request whose context is found in the folder and cannot be loaded ends with an error (vLLM "
    "would answer wrongly if it computed the context in its place); the client has to ask again"
)


class Transport(StrEnum):
    """How bytes come from the folder to the GPU."""

    GDS = "gds"
    """GPUDirect Storage, or what its library does in its place."""
    POSIX = "posix"
    """Ordinary files, by way of host memory."""


@attrs.frozen
class EngineRequest:
    """What is to be told to an engine. Paths are the container's."""

    storage: PurePosixPath
    """The namespace's directory."""
    files: PurePosixPath
    """Where the files of the setup will lie."""
    session: str
    """Tells sessions of one node apart."""
    hash_seed: int
    versions: Versions = attrs.field(factory=Versions)
    """A package that is not known counts as the newest."""
    traits: Traits = frozenset()
    """What the session has that decides how an engine is told."""
    on_gpus: bool = True
    buffer_bytes: int | None = None
    """GPU memory of each rank to stage transfers in, for an adapter that has such a buffer."""
    host_bytes: int = 0
    """Host memory between the engine and the folder: of each rank, or of all that share it."""
    host_keeps: bool = False
    """Whether contexts stay in the host memory, where it is not for staging only."""
    chunk_tokens: int | None = None
    """None: the adapter's own."""
    block_tokens: int | None = None
    """The size of the engine's blocks that the user chose. None: the engine's own, or ours."""
    insists_on_gds: bool = False
    """Whether GPUDirect Storage is wanted even where the engine would leave it off by itself."""
    io_threads: int | None = None
    """None: the engine's own number."""
    direct_io: bool | None = None
    """Whether the page cache is passed by. None: as the engine does it by itself."""


@attrs.frozen
class MetricsEndpoint:
    """Where metrics come from besides the engine's own port."""

    name: str
    host: str
    """A loopback address, seen inside of the container only."""
    port: int
    path: str = "/metrics"


@attrs.frozen
class EngineSetup:
    """How an engine is told."""

    environment: Mapping[str, str] = attrs.field(factory=dict)
    files: Mapping[str, str] = attrs.field(factory=dict)
    """File name → content."""
    kv_transfer_config: Mapping[str, Any] | None = None
    """vLLM's ``--kv-transfer-config``. None: another engine's adapter."""
    arguments: tuple[str, ...] = ()
    """What goes to the end of the command line. No braces: Backend.AI takes them for templates."""
    run_by: str | None = None
    """The file that has to run the start command, given to a shell. None: it runs as it is."""
    shared_memory_bytes: int = 0
    """What /dev/shm should hold; 0 when the engine does not care."""
    insists_on_shared_memory: bool = False
    """Whether the engine does not start with less."""
    memory_directories: Mapping[str, PurePosixPath] = attrs.field(factory=dict)
    """Variable → the directory of the container that it names: in memory, empty when the container
    starts, and writable for everybody in it. Without them the engine works, too."""
    metrics: tuple[MetricsEndpoint, ...] = ()
    warnings: tuple[str, ...] = ()
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """LMCache's options by their names in its configuration file, where it has one."""


@attrs.frozen
class HostNeed:
    """How much host memory an adapter takes of each rank, besides what the engine takes anyway."""

    contexts: int = 0
    """How many contexts of the longest length have to fit."""
    chunks: int = 0
    """How many chunks have to fit besides."""
    enough_chunks: int = 0
    """With how many it works well: what the engine computes in one step is stored whole."""
    most_bytes: int | None = None
    """More is of no use: it is for staging only. None: contexts can stay in it."""
    unit_bytes: int = 64 * MIB
    """In what steps the engine can be told."""
    is_shared: bool = False
    """Whether it is one memory for all ranks of the session."""
    is_cache: bool = False
    """Whether the engine keeps contexts in it whatever its size."""
    insists: bool = True
    """Whether less than that does harm, so that a session with too little memory has to do
    without KV cache."""
    leave_bytes: int = 0
    """What has to be left of the session's memory besides, or the engine does not start."""


class EngineAdapter(ABC):
    """One way to run an engine with a KV folder."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    """Whose versions the form of the files depends on, the engine's own first."""
    chunk_tokens: ClassVar[int]
    """How many tokens a file holds, or a multiple of it."""
    hash_algorithm: ClassVar[str]
    hybrid_manager: ClassVar[bool]
    """Whether vLLM keeps its hybrid KV cache manager on with this connector. Without it, layers
    with a window keep every token, and models with recurrent layers do not start (vLLM,
    config/vllm.py; a connector says so by subclassing SupportsHMA)."""
    data_parallel: ClassVar[bool]
    """Whether several engines of one session can use it at the same time."""
    needs_prefix_cache: ClassVar[bool] = False
    """Whether it works only behind the engine's own prefix caching."""
    longest_name: ClassVar[int | None] = None
    """How long the name may be that clients call the model by, where files carry it: a file's name
    has 255 bytes. None: they do not."""
    gpu_buffer: ClassVar[bool] = False
    """Whether it stages transfers in GPU memory."""
    gpu_process_bytes: ClassVar[int] = 0
    """What a process of its own takes of each GPU's memory, outside of the engine's share."""
    gpu_staged_chunks: ClassVar[int] = 0
    """How many chunks that process stages there."""
    host_need: ClassVar[HostNeed] = HostNeed()
    engine_bytes: ClassVar[bool] = False
    """Whether files hold the engine's own blocks as they lie in memory, and so depend on the GPU,
    on kernels and on layouts. Others bring them into a form of their own."""
    own_variables: ClassVar[tuple[str, ...]] = ()
    """Variables whose presence says that the user has configured this connector already."""

    def has_hybrid_manager(self, versions: Versions) -> bool:
        """The same for an image: some connectors have it in their later versions only."""
        return self.hybrid_manager

    @abstractmethod
    def storage_format(self, versions: Versions) -> str:
        """Names the form of the files in the folder; part of the namespace."""

    @abstractmethod
    def setup(self, request: EngineRequest) -> EngineSetup:
        """How the engine is told what the request says."""
