"""vLLM's own offloading: blocks in host memory, and in files behind it (``TieringOffloadingSpec``).

It needs no further package. Its files are found again after a restart, carry no checksum and are
never removed by it, but for one that is too short (vLLM, v1/kv_offload/tiering/fs). Versions before
0.32 are left alone: those that were read insist on O_DIRECT and remove every file that they cannot
read in that way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..adapter import (
    COMPUTE_INSTEAD,
    NO_CHECKSUM,
    SHARED_BESIDES_BYTES,
    EngineAdapter,
    EngineRequest,
    EngineSetup,
    HostNeed,
)
from ..traits import Trait
from ..versions import Versions

#: Blocks of a chunk where layers have blocks of different sizes, so that no number of tokens can be
#: said (distributed/kv_transfer/kv_connector/v1/offloading/config.py). vLLM's own blocks have 16
#: tokens.
_CHUNK_BLOCKS = 16


class VllmTiering(EngineAdapter):
    """For sessions with GPUs whose image has no LMCache that is right for its vLLM."""

    name = "vllm-tiering"
    packages = ("vllm",)
    chunk_tokens = 256
    hash_algorithm = "sha256"
    hybrid_manager = True
    data_parallel = False
    # What is loaded goes through host memory.
    host_need = HostNeed(contexts=1, is_shared=True, is_cache=True)
    engine_bytes = True

    def storage_format(self, versions: Versions) -> str:
        return "vllm-fs-tier"

    def setup(self, request: EngineRequest) -> EngineSetup:
        tier: dict[str, Any] = {"type": "fs", "root_dir": str(request.storage)}
        if request.io_threads is not None:
            tier |= {"n_read_threads": request.io_threads, "n_write_threads": request.io_threads}
        return EngineSetup(
            environment={"PYTHONHASHSEED": str(request.hash_seed)},
            kv_transfer_config={
                "kv_connector": "OffloadingConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": COMPUTE_INSTEAD,
                "kv_connector_extra_config": {
                    "spec_name": "TieringOffloadingSpec",
                    "cpu_bytes_to_use": request.host_bytes,
                    **self._chunk(request),
                    "secondary_tiers": [tier],
                },
            },
            # The host memory is a file in /dev/shm (v1/kv_offload/cpu/shared_offload_region.py).
            shared_memory_bytes=request.host_bytes + SHARED_BESIDES_BYTES,
            insists_on_shared_memory=True,
            warnings=(NO_CHECKSUM,),
        )

    def _chunk(self, request: EngineRequest) -> Mapping[str, int]:
        if Trait.UNEQUAL_HEADS in request.traits:
            return {"blocks_per_chunk": _CHUNK_BLOCKS}
        return {"block_size": self.chunk_tokens}


ADAPTER = VllmTiering()
