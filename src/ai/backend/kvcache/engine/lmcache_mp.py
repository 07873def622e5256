"""LMCache as a server of its own beside vLLM (``LMCacheMPConnector``), which vLLM starts.

Runs without GPUs. Its ``fs`` adapter keeps one file per chunk in a flat directory and finds them
again after a restart.
"""

from __future__ import annotations

import json
import shlex

from .adapter import EngineAdapter, EngineRequest, EngineSetup

#: Host memory between the engine and the folder, allocated when the server starts.
L1_GIB = 1

#: vLLM and the server exchange blocks through /dev/shm; Docker's 64 MiB are too few for both.
SHARED_MEMORY_BYTES = 2 * 2**30

#: How long vLLM waits for the server's answer to a message; LMCache's default is 300.
MESSAGE_TIMEOUT_SECONDS = 60

#: How long vLLM's start waits for the server's own; LMCache's default of 90 is not enough for a
#: node that is busy loading models.
START_TIMEOUT_SECONDS = 180


class LMCacheMultiProcess(EngineAdapter):
    """For sessions without GPUs."""

    name = "lmcache-mp-fs"
    storage_format = "lmcache-mp-fs"
    # vLLM's CPU backend has blocks of 128 tokens; a chunk is a multiple of them.
    chunk_tokens = 256
    hash_algorithm = "blake3"
    # LMCache's own class has it, vLLM's of the same name, which is the one that is used, has not.
    hybrid_manager = False
    data_parallel = False

    def setup(self, request: EngineRequest) -> EngineSetup:
        server_arguments = [
            *("--chunk-size", str(self.chunk_tokens)),
            *("--l1-size-gb", str(L1_GIB), "--l1-init-size-gb", str(L1_GIB)),
            *("--eviction-policy", "LRU", "--metrics-sample-rate", "1.0"),
            *("--supported-transfer-mode", "auto"),
            *("--l2-adapter", json.dumps({"type": "fs", "base_path": str(request.storage)})),
        ]
        return EngineSetup(
            environment={},
            files={},
            kv_transfer_config={
                "kv_connector": "LMCacheMPConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {
                    "lmcache.mp.autostart": True,
                    # Not localhost: where a container has no IPv6, the server cannot bind its
                    # second address and exits.
                    "lmcache.mp.host": "tcp://127.0.0.1",
                    "lmcache.mp.autostart.server_args": shlex.join(server_arguments),
                    "lmcache.mp.autostart.wait_timeout": START_TIMEOUT_SECONDS,
                    "lmcache.mp.mq_timeout": MESSAGE_TIMEOUT_SECONDS,
                },
            },
            shared_memory_bytes=SHARED_MEMORY_BYTES,
        )
