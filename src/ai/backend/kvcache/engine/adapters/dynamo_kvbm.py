"""NVIDIA Dynamo's block manager with its disk tier (KVBM, ``DynamoConnector``).

The disk tier is one file without a name, made at start and gone at the end: it makes room for more
contexts, and keeps none for the next start or for others (strings of kvbm's binary; not run). Its
options are variables (kvbm's package description).
"""

from __future__ import annotations

from ..adapter import (
    FAIL_REQUEST,
    FAILS_REQUESTS,
    EngineAdapter,
    EngineRequest,
    EngineSetup,
    HostNeed,
)
from ..loopback import session_loopback
from ..versions import Versions

_GB = 10**9

#: How much larger the tier on disk is than the one in host memory. Nothing says how large is right;
#: the space is taken at start, whether it is used or not.
_DISK_FOR_HOST = 4


class DynamoKvbm(EngineAdapter):
    """For sessions with GPUs that run Dynamo, or vLLM with Dynamo's block manager.

    Only where it is asked for by name: it was seen to hang, and to answer with another request's
    cache (compatibility.py, kvbm-failed-transfer), and it is being given up (Dynamo#13755).
    """

    name = "dynamo-kvbm"
    packages = ("vllm", "kvbm")
    # Blocks are the engine's own; of their usual sizes this is a multiple.
    chunk_tokens = 256
    hash_algorithm = "xxh3"
    hybrid_manager = False
    data_parallel = False
    engine_bytes = True
    host_need = HostNeed(contexts=1, unit_bytes=_GB, is_shared=True, is_cache=True)
    own_variables = ("DYN_KVBM_CPU_CACHE_GB", "DYN_KVBM_DISK_CACHE_GB")

    def storage_format(self, versions: Versions) -> str:
        return "dynamo-kvbm"

    def setup(self, request: EngineRequest) -> EngineSetup:
        loopback = session_loopback(request.session)
        host_gb = request.host_bytes // _GB
        return EngineSetup(
            environment={
                "DYN_KVBM_CPU_CACHE_GB": str(host_gb),
                "DYN_KVBM_DISK_CACHE_GB": str(host_gb * _DISK_FOR_HOST),
                "DYN_KVBM_DISK_CACHE_DIR": str(request.storage),
                # File servers that cannot set space aside get it by writing zeros.
                "DYN_KVBM_DISK_ZEROFILL_FALLBACK": "true",
                "DYN_KVBM_LEADER_ZMQ_HOST": loopback.host,
                "DYN_KVBM_LEADER_ZMQ_PUB_PORT": str(loopback.ports[0]),
                "DYN_KVBM_LEADER_ZMQ_ACK_PORT": str(loopback.ports[1]),
            },
            kv_transfer_config={
                "kv_connector": "DynamoConnector",
                "kv_role": "kv_both",
                # Whether it loads between steps is not known.
                "kv_load_failure_policy": FAIL_REQUEST,
                "kv_connector_module_path": "kvbm.vllm_integration.connector",
            },
            warnings=(
                "Dynamo's disk tier forgets everything at a restart and shares nothing with other "
                "sessions; LMCache keeps contexts (connector lmcache-gds or lmcache-posix)",
                FAILS_REQUESTS,
            ),
        )


ADAPTER = DynamoKvbm()
