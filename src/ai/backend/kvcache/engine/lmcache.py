"""What the two adapters for LMCache inside vLLM's own processes have in common.

LMCache reads its options from a file and then from the environment, which wins. Names that it does
not know it ignores: with a warning in the file, in silence in the environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

import yaml

from .adapter import FAIL_REQUEST, FAILS_REQUESTS, NO_CHECKSUM, EngineRequest, EngineSetup
from .versions import variable

CONFIG_VARIABLE = "LMCACHE_CONFIG_FILE"
CONFIG_FILE = "lmcache.yaml"

CHUNK_TOKENS = 256

#: The default, Python's own hash, differs between vLLM's scheduler and worker processes and has
#: 64 bits only.
HASH_ALGORITHM = "sha256_cbor"

#: Here each of vLLM's processes leaves what it counts in files of prometheus_client's, and the one
#: that answers /metrics adds them up. Without it LMCache's counters, which are the workers', are on
#: no page. Files of processes that have ended are added up as well, so no sum falls when an engine
#: is started again. Files of another container must not lie here: its processes have the same
#: numbers.
METRICS_DIRECTORIES: Mapping[str, PurePosixPath] = MappingProxyType({
    "PROMETHEUS_MULTIPROC_DIR": PurePosixPath("/run/kvcache-metrics")
})

#: Chunks that host memory has to hold for stores: some at least, and better those of one step of
#: vLLM's, 16,384 tokens at most by itself (engine/arg_utils.py). What does not fit is not stored.
LEAST_STAGED_CHUNKS = 4
ENOUGH_STAGED_CHUNKS = 64


def gibibytes(size: int) -> float:
    """LMCache's unit, which it calls GB (storage_backend/local_cpu_backend.py)."""
    return size / 2**30


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def in_process(
    request: EngineRequest, options: Mapping[str, Any], variables: Mapping[str, str] | None = None
) -> EngineSetup:
    """A setup of vLLM with ``LMCacheConnectorV1``.

    Args:
        request: where and with which seed.
        options: by their names in LMCache's configuration.
        variables: what is said in the environment only.
    """
    options = {
        "chunk_size": request.chunk_tokens or CHUNK_TOKENS,
        "pre_caching_hash_algorithm": HASH_ALGORITHM,
        # A chunk that is not full has another name when it has grown.
        "save_unfull_chunk": False,
        **options,
    }
    return EngineSetup(
        environment={
            # LMCache applies variables over the file, so a user's variable wins there too.
            **{variable(name): _text(value) for name, value in options.items()},
            **(variables or {}),
            CONFIG_VARIABLE: str(request.files / CONFIG_FILE),
            "PYTHONHASHSEED": str(request.hash_seed),
        },
        files={CONFIG_FILE: yaml.safe_dump(options)},
        kv_transfer_config={
            "kv_connector": "LMCacheConnectorV1",
            "kv_role": "kv_both",
            "kv_load_failure_policy": FAIL_REQUEST,
        },
        warnings=(NO_CHECKSUM, FAILS_REQUESTS),
        options=options,
    )
