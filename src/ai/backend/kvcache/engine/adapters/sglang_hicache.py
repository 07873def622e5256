"""SGLang's hierarchical cache with its file backend behind host memory (HiCache).

Its keys hold the name that clients call the model by, ranks, and a chain of hashes of tokens that
has no seed. Files are written whole under their names from 0.5.14 on; a pool in host memory that is
smaller than the GPU's is allowed from 0.5.15 on (mem_cache/hicache_storage.py, pool_host/base.py).
"""

from __future__ import annotations

from ...sizes import GIB
from ..adapter import NO_CHECKSUM, EngineAdapter, EngineRequest, EngineSetup, HostNeed
from ..versions import Versions

#: SGLang's unit, a GB of 10⁹ bytes for each rank (mem_cache/pool_host/base.py).
_GB = 10**9

#: Tokens of a page, of which each becomes a file. SGLang's own is 1.
PAGE_TOKENS = 64


class SglangHiCache(EngineAdapter):
    """For sessions with GPUs that run SGLang."""

    name = "sglang-hicache"
    packages = ("sglang",)
    chunk_tokens = PAGE_TOKENS
    hash_algorithm = "sha256"
    hybrid_manager = True
    data_parallel = False
    needs_prefix_cache = True
    engine_bytes = True
    # What is loaded takes half of the memory at most (managers/cache_controller.py). SGLang does
    # not start unless 10 GiB are left besides (pool_host/base.py); its own processes take some too.
    host_need = HostNeed(contexts=2, unit_bytes=_GB, is_cache=True, leave_bytes=20 * GIB)
    # The rest of a file's name: hash, ranks and suffix.
    longest_name = 160
    own_variables = ("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR",)

    def storage_format(self, versions: Versions) -> str:
        return "sglang-hicache-file"

    def setup(self, request: EngineRequest) -> EngineSetup:
        pages = () if request.block_tokens else ("--page-size", str(PAGE_TOKENS))
        return EngineSetup(
            environment={"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(request.storage)},
            arguments=(
                *("--enable-hierarchical-cache", "--hicache-storage-backend", "file"),
                *("--hicache-size", str(request.host_bytes // _GB)),
                *("--hicache-write-policy", "write_through"),
                *pages,
                "--enable-metrics",
            ),
            warnings=(NO_CHECKSUM,),
        )


ADAPTER = SglangHiCache()
