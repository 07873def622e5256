"""LMCache inside vLLM's own processes, with GPUDirect Storage (``LMCacheConnectorV1``).

Its GDS backend reads back at start what lies under ``gds_path``. ``local_disk`` is never used: its
index lives in memory, so it forgets everything at a restart.

Contexts are loaded from the folder into the GPU's buffer. They are stored by way of host memory,
which LMCache allocates them in before it copies them to the buffer; it does not start without
(storage_backend/storage_manager.py, _get_allocator_backend).

Nothing is kept in that host memory: LMCache would put what it has loaded among it as it is, which
is in the GPU's buffer, and give none of the buffer back before the host memory is full
(storage_manager.py, batched_get).

Its GDS backend does not count what it loads and stores. So nobody is shown LMCache's counters
here (``METRICS_DIRECTORIES``): they would say that nothing is.
"""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ...sizes import GIB, MIB
from .. import lmcache
from ..adapter import EngineAdapter, EngineRequest, EngineSetup, HostNeed
from ..versions import (
    BUFFER_OPTIONS,
    BUFFER_VARIABLES,
    FIRST_USE_GDS,
    IO_THREAD_OPTIONS,
    Versions,
    option_name,
)

#: LMCache's own default (config.py, max_local_cpu_size).
_STAGING_BYTES = 5 * GIB


class LMCacheGds(EngineAdapter):
    """For sessions with GPUs and vLLM before 0.26.

    Its temporary names end in eight random characters, so sessions do not meet.
    """

    name = "lmcache-gds"
    packages = ("vllm", "lmcache")
    chunk_tokens = lmcache.CHUNK_TOKENS
    hash_algorithm = lmcache.HASH_ALGORITHM
    hybrid_manager = False
    data_parallel = True
    gpu_buffer = True
    host_need = HostNeed(
        chunks=lmcache.LEAST_STAGED_CHUNKS,
        enough_chunks=lmcache.ENOUGH_STAGED_CHUNKS,
        most_bytes=_STAGING_BYTES,
        insists=False,
    )
    own_variables = (lmcache.CONFIG_VARIABLE,)

    def storage_format(self, versions: Versions) -> str:
        return "lmcache-gds"

    def setup(self, request: EngineRequest) -> EngineSetup:
        if request.buffer_bytes is None:
            raise ValueError("the GDS backend needs a buffer")
        release = request.versions.release_of("lmcache")
        extra: dict[str, Any] = {}
        options: dict[str, Any] = {
            "gds_path": str(request.storage),
            "local_cpu": False,
            "max_local_cpu_size": lmcache.gibibytes(request.host_bytes),
        }
        buffer_mib = request.buffer_bytes // MIB
        if request.versions.of("lmcache") is not None:
            options[option_name(BUFFER_OPTIONS, release)] = buffer_mib
        if request.insists_on_gds:
            # Said at all, it is not switched off by LMCache on file systems that it takes for
            # unfit.
            if release >= Version(FIRST_USE_GDS):
                options["use_gds"] = True
            else:
                extra["use_cufile"] = True
        if request.io_threads is not None:
            extra[option_name(IO_THREAD_OPTIONS, release)] = request.io_threads
        if request.direct_io is not None:
            extra["use_direct_io"] = request.direct_io
        if extra:
            options["extra_config"] = extra
        # Under every name, so that a label that lies does no harm; not in the file, where LMCache
        # warns of a name that it does not know.
        variables = dict.fromkeys(BUFFER_VARIABLES, str(buffer_mib))
        return lmcache.in_process(request, options, variables)


ADAPTER = LMCacheGds()
