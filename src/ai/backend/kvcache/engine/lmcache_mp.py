"""LMCache as a server of its own beside vLLM (``LMCacheMPConnector``), which vLLM starts.

Runs without GPUs. Its ``fs`` adapter keeps one file per chunk in a flat directory and finds them
again after a restart.
"""

from __future__ import annotations

import hashlib
import json
import shlex

import xxhash

from .adapter import EngineAdapter, EngineRequest, EngineSetup

#: Host memory between the engine and the folder, allocated when the server starts.
L1_GIB = 1

#: vLLM and the server exchange blocks through /dev/shm; Docker's 64 MiB are too few for both.
SHARED_MEMORY_BYTES = 2 * 2**30

#: How long vLLM waits for the server's answer to a message; LMCache's default is 300. A server that
#: hangs holds up the first request after it for about twice as long.
MESSAGE_TIMEOUT_SECONDS = 20

#: How long vLLM's start waits for the server's own; LMCache's default of 90 is not enough for a
#: node that is busy loading models.
START_TIMEOUT_SECONDS = 180

#: Ports that no other session of the node is likely to have, where sessions share its network:
#: pairs below the range from which Linux takes ports for outgoing connections.
_FIRST_PORT, _PORT_PAIRS = 20_000, 6_000

KEY_FILE = "kv.key"


def _ports(session: str) -> tuple[int, int]:
    """(the server's port, its HTTP port), the same for a session whenever it is asked."""
    first = _FIRST_PORT + 2 * (xxhash.xxh3_64_intdigest(session.encode()) % _PORT_PAIRS)
    return first, first + 1


def seal_of(namespace: str) -> str:
    """What a namespace's blocks are sealed with."""
    return hashlib.sha256(namespace.encode()).hexdigest()


class LMCacheMultiProcess(EngineAdapter):
    """For sessions without GPUs.

    Blocks are sealed with AES-GCM, LMCache's only form on disk that notices a changed byte: a
    damaged block is computed again, where it would otherwise be answered from. The key comes from
    the namespace, which is no secret: nothing is hidden by it.
    """

    name = "lmcache-mp-fs"
    storage_format = "lmcache-mp-fs-aesgcm"
    # vLLM's CPU backend has blocks of 128 tokens; a chunk is a multiple of them.
    chunk_tokens = 256
    hash_algorithm = "blake3"
    # vLLM takes LMCache's own class for this name from 0.22 on, and that has it.
    hybrid_manager = True
    data_parallel = False

    def setup(self, request: EngineRequest) -> EngineSetup:
        port, http_port = _ports(request.session)
        storage = {
            "type": "fs",
            "base_path": str(request.storage),
            "serde": {
                "type": "aesgcm",
                "key_provider": "hkdf",
                "aes_bits": 128,
                "master_key_path": str(request.files / KEY_FILE),
            },
        }
        server_arguments = [
            *("--chunk-size", str(self.chunk_tokens)),
            *("--l1-size-gb", str(L1_GIB), "--l1-init-size-gb", str(L1_GIB)),
            *("--eviction-policy", "LRU", "--metrics-sample-rate", "1.0"),
            *("--supported-transfer-mode", "auto", "--http-port", str(http_port)),
            *("--l2-adapter", json.dumps(storage)),
        ]
        return EngineSetup(
            environment={},
            files={KEY_FILE: seal_of(request.storage.name)},
            kv_transfer_config={
                "kv_connector": "LMCacheMPConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {
                    "lmcache.mp.autostart": True,
                    # Not localhost: where a container has no IPv6, the server cannot bind its
                    # second address and exits.
                    "lmcache.mp.host": "tcp://127.0.0.1",
                    "lmcache.mp.port": port,
                    "lmcache.mp.autostart.server_args": shlex.join(server_arguments),
                    "lmcache.mp.autostart.wait_timeout": START_TIMEOUT_SECONDS,
                    "lmcache.mp.mq_timeout": MESSAGE_TIMEOUT_SECONDS,
                },
            },
            shared_memory_bytes=SHARED_MEMORY_BYTES,
        )
