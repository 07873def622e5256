"""LMCache inside vLLM's own processes, with ordinary files (its ``fs://`` remote backend).

What is loaded and stored goes through host memory, which therefore has to hold the longest context
at once: LMCache waits for room without end (storage_backend/local_cpu_backend.py, allocate). With
more than that, contexts stay in it as well.
"""

from __future__ import annotations

import attrs

from ...folder.layout import temporary_directory
from .. import lmcache
from ..adapter import EngineAdapter, EngineRequest, EngineSetup, HostNeed
from ..versions import Versions


class LMCachePosix(EngineAdapter):
    """For sessions with GPUs and vLLM before 0.26 on nodes without GPUDirect Storage."""

    name = "lmcache-posix"
    packages = ("vllm", "lmcache")
    chunk_tokens = lmcache.CHUNK_TOKENS
    hash_algorithm = lmcache.HASH_ALGORITHM
    hybrid_manager = False
    # The engines of one session would store the same block under the same temporary name.
    data_parallel = False
    host_need = HostNeed(
        contexts=1,
        chunks=lmcache.ENOUGH_STAGED_CHUNKS,
        enough_chunks=lmcache.ENOUGH_STAGED_CHUNKS,
    )
    own_variables = (lmcache.CONFIG_VARIABLE,)

    def storage_format(self, versions: Versions) -> str:
        return "lmcache-fs"

    def setup(self, request: EngineRequest) -> EngineSetup:
        setup = lmcache.in_process(
            request,
            {
                # Host and port mean nothing here, and LMCache insists on both
                # (storage_backend/connector/__init__.py).
                "remote_url": f"fs://localhost:0{request.storage}",
                "remote_serde": "naive",
                # By itself, all sessions use one name for the same block (LMCache#2517). The option
                # is in all versions from 0.3.9 on (storage_backend/connector/fs_connector.py).
                "extra_config": {
                    "fs_connector_relative_tmp_dir": temporary_directory(request.session)
                },
                "local_cpu": request.host_keeps,
                "max_local_cpu_size": lmcache.gibibytes(request.host_bytes),
            },
        )
        return attrs.evolve(setup, memory_directories=lmcache.METRICS_DIRECTORIES)


ADAPTER = LMCachePosix()
