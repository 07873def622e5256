"""What every engine adapter takes and gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, ClassVar

import attrs


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
    buffer_bytes: int | None
    """GPU memory to stage transfers in; None for an engine without GPUs."""
    lmcache_version: str | None = None
    """None: any, so that a label that lies does no harm."""
    chunk_tokens: int | None = None
    """None: the adapter's own."""


@attrs.frozen
class EngineSetup:
    """How an engine is told."""

    environment: Mapping[str, str]
    files: Mapping[str, str]
    """File name → content."""
    kv_transfer_config: Mapping[str, Any]
    """vLLM's ``--kv-transfer-config``."""
    shared_memory_bytes: int
    """What /dev/shm has to hold; 0 when the engine does not care."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """LMCache's options by their names in its configuration file, where it has one."""


class EngineAdapter(ABC):
    """One way to run an engine with a KV folder."""

    name: ClassVar[str]
    storage_format: ClassVar[str]
    """Names the form of the files in the folder; part of the namespace."""
    chunk_tokens: ClassVar[int]
    hash_algorithm: ClassVar[str]
    hybrid_manager: ClassVar[bool]
    """Whether vLLM keeps its hybrid KV cache manager on with this connector. Without it, layers
    with a window keep every token, and models with recurrent layers do not start (vLLM,
    config/vllm.py; a connector says so by subclassing SupportsHMA)."""
    data_parallel: ClassVar[bool]
    """Whether several engines of one session can use it at the same time."""
    key_variables: ClassVar[tuple[str, ...]] = ()
    """Variables by which a user can change the engine's keys, and so the namespace."""

    @abstractmethod
    def setup(self, request: EngineRequest) -> EngineSetup:
        """How the engine is told what the request says."""
