"""LMCache inside vLLM's own processes, with GPUDirect Storage (``LMCacheConnectorV1``).

Its GDS backend reads back at start what lies under ``gds_path``. ``local_disk`` is never used: its
index lives in memory, so it forgets everything at a restart.
"""

from __future__ import annotations

from typing import Any

import yaml

from .adapter import EngineAdapter, EngineRequest, EngineSetup
from .versions import BUFFER_OPTIONS, buffer_option, variable

#: The buffer's size in MiB, by every name it ever had. Each version knows one of them and ignores
#: the others in silence.
BUFFER_VARIABLES = tuple(variable(name) for name in BUFFER_OPTIONS)

CONFIG_VARIABLE = "LMCACHE_CONFIG_FILE"
CONFIG_FILE = "lmcache.yaml"


class LMCacheInProcess(EngineAdapter):
    """For sessions with GPUs."""

    name = "lmcache-inprocess-gds"
    storage_format = "lmcache-gds"
    chunk_tokens = 256
    # The default, Python's own hash, differs between vLLM's scheduler and worker processes and
    # has 64 bits only.
    hash_algorithm = "sha256_cbor"
    hybrid_manager = False
    data_parallel = True
    key_variables = (
        "LMCACHE_CHUNK_SIZE",
        "LMCACHE_PRE_CACHING_HASH_ALGORITHM",
        "PYTHONHASHSEED",
    )

    def setup(self, request: EngineRequest) -> EngineSetup:
        if request.buffer_bytes is None:
            raise ValueError("the GDS backend needs a buffer")
        version = request.lmcache_version
        options: dict[str, Any] = {
            "chunk_size": request.chunk_tokens or self.chunk_tokens,
            "gds_path": str(request.storage),
            "pre_caching_hash_algorithm": self.hash_algorithm,
            # No tier in host memory; with a size of 0 LMCache pins none for staging either.
            "local_cpu": False,
            "max_local_cpu_size": 0,
        }
        buffer_mib = request.buffer_bytes // 2**20
        if version is not None:
            options[buffer_option(version)] = buffer_mib
        # LMCache applies environment variables over the file, so a user's variable wins there too.
        environment = {variable(name): str(value) for name, value in options.items()}
        if version is None:
            # Not in the file, where LMCache warns of the name it does not know.
            environment |= dict.fromkeys(BUFFER_VARIABLES, str(buffer_mib))
        environment[CONFIG_VARIABLE] = str(request.files / CONFIG_FILE)
        environment["PYTHONHASHSEED"] = str(request.hash_seed)
        return EngineSetup(
            environment=environment,
            files={CONFIG_FILE: yaml.safe_dump(options)},
            kv_transfer_config={
                "kv_connector": "LMCacheConnectorV1",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
            },
            shared_memory_bytes=0,
            options=options,
        )
