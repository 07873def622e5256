"""An LMCache server beside vLLM (``LMCacheMPConnector``), which keeps blocks in ordinary files.

The server is started by a script of the plugin's, not by vLLM (``lmcache.mp.autostart``, from 0.5.6
on). So it works with every version; a server that does not start costs the session its KV cache and
not its engine; one that dies is started again; and it listens on a loopback address of the
session's own. vLLM would take whatever answers at ``127.0.0.1`` for its server, and where sessions
share the node's network that may be another session's, whose blocks are another model's.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from typing import Any

import attrs
from packaging.version import Version

from ...folder.layout import temporary_directory
from ...sizes import GIB
from ..adapter import (
    COMPUTE_INSTEAD,
    NO_CHECKSUM,
    SHARED_BESIDES_BYTES,
    EngineAdapter,
    EngineRequest,
    EngineSetup,
    HostNeed,
    MetricsEndpoint,
)
from ..loopback import Loopback, session_loopback
from ..versions import Versions
from ..vllm import CONFIG_ALONE_FILE, CONFIG_FILE

#: How long vLLM waits for the server's answer to a message; LMCache's default is 300. A server that
#: hangs holds up the first request after it for about twice as long.
MESSAGE_TIMEOUT_SECONDS = 20

#: The same with GPUs. At start the server opens the KV cache of each rank, one after the other, and
#: makes a context on each GPU for it; an engine that waits for that in vain ends
#: (integration/vllm/vllm_multi_process_adapter.py, register_kv_caches).
GPU_MESSAGE_TIMEOUT_SECONDS = 120

#: How long the engine's start waits for the server's. Imports take a minute on a node that is busy
#: loading models.
START_TIMEOUT_SECONDS = 180

#: Before a server that has ended is started again. LMCache's connector asks the server every 10 s
#: whether it is there, and waits 10 s for the answer. Only where one such wait ends in vain does it
#: register its KV cache again (integration/vllm/vllm_multi_process_adapter.py, HeartbeatThread).
#: With a server that is there again sooner it would neither load nor store until it ends.
_RESTART_PAUSE_SECONDS = 20

#: The CUDA context and the kernels of one more process on a GPU: usually about half a GiB, read and
#: not measured here.
_SERVER_GPU_BYTES = 3 * GIB // 4

#: How many chunks the server stages for one rank (platform/devices/cuda/cache_context.py,
#: _TempGPUBuffer, max_batch_size in 0.5.6).
_SERVER_GPU_CHUNKS = 4

KEY_FILE = "kv.key"
LAUNCHER_FILE = "with-server.sh"

#: The first vLLM that takes LMCache's own class for the connector's name.
_FIRST_OWN_CLASS = Version("0.22.0")

#: The first LMCache whose class subclasses SupportsHMA.
_FIRST_HYBRID = Version("0.5.0")


@attrs.frozen
class _Release:
    """What the server is called with from one version on."""

    first: Version
    transfer: tuple[str, str]
    """How blocks come from the engine to the server. With GPUs only versions with "auto" are taken
    (compatibility.py, server-preemption): the engine hands over its GPU memory there."""
    seals: bool
    """Whether it can keep blocks in a form that notices a changed byte."""


_ANY_TRANSFER = ("--supported-transfer-mode", "auto")

#: Oldest first (multiprocess/config.py and distributed/serde/aesgcm.py of the versions named).
_RELEASES = (
    _Release(Version("0.4.6"), ("--transfer-mode", "non_gpu"), seals=False),
    _Release(Version("0.5.0"), _ANY_TRANSFER, seals=False),
    _Release(Version("0.5.4"), _ANY_TRANSFER, seals=True),
)

#: Runs the command that it is given, with the server beside it that `serve` becomes. `exec` keeps
#: the process's number, by which the server's keeper knows that the command has ended.
_LAUNCHER = """\
# The Python that the engine runs with.
python=python3
case ${1##*/} in
python*) python=$1 ;;
*)
    first=$(head -n 1 "$(command -v "$1")" 2>/dev/null | tr -d '\\000')
    case $first in '#!'*python*) python=${first#'#!'} ;; esac
    ;;
esac

answers() {
    $python -c '
import socket, sys
socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()
' "$host" "$http_port" 2>/dev/null
}

# Whether a process runs. One whose end nobody has asked for yet does not.
runs() {
    kill -0 "$1" 2>/dev/null && ! grep -q '^State:[[:space:]]*Z' "/proc/$1/status"
}

# Starts the server again when it ends, and ends it with the command.
keep() {
    while runs $$; do
        if ! runs "$server"; then
            sleep "$pause_seconds"
            serve </dev/null &
            server=$!
        fi
        sleep 1
    done
    kill "$server"
    seconds=0
    while [ "$seconds" -lt 10 ] && runs "$server"; do
        sleep 1
        seconds=$((seconds + 1))
    done
    kill -9 "$server"
}

serve </dev/null &
server=$!
is_there=
deadline=$(($(date +%s) + start_seconds))
while runs "$server" && [ "$(date +%s)" -lt "$deadline" ]; do
    if answers; then
        is_there=yes
        break
    fi
    sleep 1
done

if [ -n "$is_there" ]; then
    keep </dev/null &
    exec "$@"
fi

echo "No KV cache: LMCache's server did not start within $start_seconds s." >&2
kill -9 "$server" 2>/dev/null
for argument do
    shift
    case $argument in
    *"$config"*) argument=${argument%%"$config"*}$config_alone${argument#*"$config"} ;;
    esac
    set -- "$@" "$argument"
done
exec "$@"
"""


def _release(versions: Versions) -> _Release:
    version = versions.release_of("lmcache")
    return [r for r in _RELEASES if version >= r.first][-1]


def seal_of(namespace: str) -> str:
    """What a namespace's blocks are sealed with."""
    return hashlib.sha256(namespace.encode()).hexdigest()


def _launcher(request: EngineRequest, loopback: Loopback, server_arguments: list[str]) -> str:
    values = {
        "host": loopback.host,
        "http_port": str(loopback.ports[1]),
        "start_seconds": str(START_TIMEOUT_SECONDS),
        "pause_seconds": str(_RESTART_PAUSE_SECONDS),
        "config": str(request.files / CONFIG_FILE),
        "config_alone": str(request.files / CONFIG_ALONE_FILE),
    }
    return "\n".join((
        "#!/bin/sh",
        "# Runs a command with LMCache's server beside it for as long as it runs, or without KV",
        "# cache if the server does not start.",
        *(f"{name}={shlex.quote(value)}" for name, value in values.items()),
        "serve() {",
        f"    exec $python -m lmcache.v1.multiprocess.http_server {shlex.join(server_arguments)}",
        "}",
        _LAUNCHER,
    ))


class LMCacheMultiProcess(EngineAdapter):
    """For sessions without GPUs, and for those with GPUs and vLLM 0.26 or later.

    With GPUs, the server opens the engine's KV cache in GPU memory (CUDA IPC) and copies blocks to
    and from its own memory, which is the host's. Its tier for GPUDirect Storage (``--gds-l1-path``)
    takes the place of that memory, excludes the tier of files, and is emptied at each start
    (distributed/config.py and gds_l1_memory_manager.py of 0.5.6): so contexts go through the
    host's memory.

    Blocks are sealed with AES-GCM where the version can, LMCache's only form on disk that notices a
    changed byte: a damaged block is computed again, where it would otherwise be answered from. The
    key comes from the namespace, which is no secret: nothing is hidden by it.
    """

    name = "lmcache-mp"
    packages = ("vllm", "lmcache")
    # vLLM's CPU backend has blocks of 128 tokens; a chunk is a multiple of them.
    chunk_tokens = 256
    hash_algorithm = "blake3"
    hybrid_manager = True
    data_parallel = False
    gpu_process_bytes = _SERVER_GPU_BYTES
    gpu_staged_chunks = _SERVER_GPU_CHUNKS
    host_need = HostNeed(unit_bytes=GIB, is_shared=True, is_cache=True, insists=False)

    def has_hybrid_manager(self, versions: Versions) -> bool:
        # LMCache's own class has it from 0.5.0 on, and vLLM takes that class from 0.22 on.
        return (
            versions.release_of("lmcache") >= _FIRST_HYBRID
            and versions.release_of("vllm") >= _FIRST_OWN_CLASS
        )

    def storage_format(self, versions: Versions) -> str:
        return "lmcache-mp-fs-aesgcm" if _release(versions).seals else "lmcache-mp-fs"

    def setup(self, request: EngineRequest) -> EngineSetup:
        release = _release(request.versions)
        loopback = session_loopback(request.session)
        server_arguments = self._server_arguments(request, release, loopback)
        files = {LAUNCHER_FILE: _launcher(request, loopback, server_arguments)}
        if release.seals:
            files[KEY_FILE] = seal_of(request.storage.name)
        return EngineSetup(
            files=files,
            kv_transfer_config={
                "kv_connector": "LMCacheMPConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": COMPUTE_INSTEAD,
                **self._module(request.versions),
                "kv_connector_extra_config": {
                    "lmcache.mp.host": f"tcp://{loopback.host}",
                    "lmcache.mp.port": loopback.ports[0],
                    "lmcache.mp.mq_timeout": (
                        GPU_MESSAGE_TIMEOUT_SECONDS if request.on_gpus else MESSAGE_TIMEOUT_SECONDS
                    ),
                },
            },
            run_by=LAUNCHER_FILE,
            # The server's memory lies in /dev/shm (multiprocess/engine_context.py).
            shared_memory_bytes=request.host_bytes + SHARED_BESIDES_BYTES,
            metrics=(MetricsEndpoint("lmcache-server", loopback.host, loopback.ports[1]),),
            warnings=() if release.seals else (NO_CHECKSUM,),
        )

    def _server_arguments(
        self, request: EngineRequest, release: _Release, loopback: Loopback
    ) -> list[str]:
        storage: dict[str, Any] = {
            "type": "fs",
            "base_path": str(request.storage),
            # By itself, all sessions use one name for the same block (LMCache#2517).
            "relative_tmp_dir": temporary_directory(request.session),
        }
        if request.io_threads is not None:
            # The same files, read and written by threads of its own.
            storage |= {"type": "fs_native", "num_workers": request.io_threads}
        if release.seals:
            storage["serde"] = {
                "type": "aesgcm",
                "key_provider": "hkdf",
                "aes_bits": 128,
                "master_key_path": str(request.files / KEY_FILE),
            }
        size_gib = str(request.host_bytes // GIB)
        port, http_port = map(str, loopback.ports)
        return [
            *("--host", loopback.host, "--port", port),
            *("--http-host", loopback.host, "--http-port", http_port),
            *("--chunk-size", str(request.chunk_tokens or self.chunk_tokens)),
            *("--l1-size-gb", size_gib, "--l1-init-size-gb", size_gib),
            *("--eviction-policy", "LRU", "--metrics-sample-rate", "1.0"),
            *release.transfer,
            *("--l2-adapter", json.dumps(storage)),
        ]

    def _module(self, versions: Versions) -> Mapping[str, str]:
        """Where vLLM finds the connector's class, which up to 0.21 is one of vLLM's own."""
        if versions.release_of("vllm") >= _FIRST_OWN_CLASS:
            return {}
        return {"kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector"}


ADAPTER = LMCacheMultiProcess()
