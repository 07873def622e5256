"""An LMCache server beside vLLM (``LMCacheMPConnector``), which keeps blocks in ordinary files."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import xxhash
from packaging.version import Version

from ...sizes import GIB
from ..adapter import EngineAdapter, EngineRequest, EngineSetup, HostNeed, MetricsEndpoint
from ..versions import Versions

#: What vLLM's processes exchange through /dev/shm besides the server's memory, which lies there
#: too (multiprocess/engine_context.py); Docker's 64 MiB are too few.
_SHARED_BESIDES_BYTES = GIB

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
LAUNCHER_FILE = "with-server.sh"

#: The first vLLM that takes LMCache's own class for the connector's name.
_FIRST_OWN_CLASS = Version("0.22.0")


@attrs.frozen
class _Release:
    """What the server is called with from one version on."""

    first: Version
    transfer_on_gpus: tuple[str, str]
    transfer_on_cpus: tuple[str, str]
    seals: bool
    """Whether it can keep blocks in a form that notices a changed byte."""
    is_started_by_vllm: bool


_ANY_TRANSFER = ("--supported-transfer-mode", "auto")

#: Oldest first (multiprocess/config.py, distributed/serde/aesgcm.py and
#: integration/vllm/mp_server_launcher.py of the versions named).
_RELEASES = (
    _Release(
        Version("0.4.6"), ("--transfer-mode", "gpu"), ("--transfer-mode", "non_gpu"), False, False
    ),
    _Release(Version("0.5.0"), _ANY_TRANSFER, _ANY_TRANSFER, False, False),
    _Release(Version("0.5.4"), _ANY_TRANSFER, _ANY_TRANSFER, True, False),
    _Release(Version("0.5.6"), _ANY_TRANSFER, _ANY_TRANSFER, True, True),
)


def _release(versions: Versions) -> _Release:
    version = versions.release_of("lmcache")
    return [r for r in _RELEASES if version >= r.first][-1]


def _ports(session: str) -> tuple[int, int]:
    """(the server's port, its HTTP port), the same for a session whenever it is asked."""
    first = _FIRST_PORT + 2 * (xxhash.xxh3_64_intdigest(session.encode()) % _PORT_PAIRS)
    return first, first + 1


def seal_of(namespace: str) -> str:
    """What a namespace's blocks are sealed with."""
    return hashlib.sha256(namespace.encode()).hexdigest()


#: Runs the engine beside a server, for versions whose vLLM side cannot start one. The command
#: replaces the shell, so it keeps the process's number, by which the server's keeper knows of its
#: end.
_LAUNCHER = """\
#!/bin/sh
# Starts LMCache's server, waits until it answers, and becomes the command that is given.
python3 -m lmcache.v1.multiprocess.http_server {arguments} &
server=$!
left={seconds}
until python3 -c 'import socket; socket.create_connection(("127.0.0.1", {port}), 1)' 2>/dev/null
do
    left=$((left - 1))
    if [ "$left" -le 0 ] || ! kill -0 "$server" 2>/dev/null
    then
        echo "LMCache's server did not start; see its messages above" >&2
        kill "$server" 2>/dev/null
        exit 1
    fi
    sleep 1
done
(
    while kill -0 $$ 2>/dev/null
    do
        sleep 2
    done
    kill "$server"
) &
exec "$@"
"""


def _launcher(port: int, server_arguments: Sequence[str]) -> str:
    arguments = ["--host", "127.0.0.1", "--port", str(port), *server_arguments]
    return _LAUNCHER.format(
        arguments=shlex.join(arguments), seconds=START_TIMEOUT_SECONDS, port=port
    )


class LMCacheMultiProcess(EngineAdapter):
    """For sessions without GPUs; with GPUs where it is asked for.

    Blocks are sealed with AES-GCM where the version can, LMCache's only form on disk that notices a
    changed byte: a damaged block is computed again, where it would otherwise be answered from. The
    key comes from the namespace, which is no secret: nothing is hidden by it.
    """

    name = "lmcache-mp"
    packages = ("vllm", "lmcache")
    # vLLM's CPU backend has blocks of 128 tokens; a chunk is a multiple of them.
    chunk_tokens = 256
    hash_algorithm = "blake3"
    # LMCache's own class has it, which is what vLLM takes from 0.22 on.
    hybrid_manager = True
    data_parallel = False
    host_need = HostNeed(unit_bytes=GIB, is_shared=True, is_cache=True)

    def storage_format(self, versions: Versions) -> str:
        return "lmcache-mp-fs-aesgcm" if _release(versions).seals else "lmcache-mp-fs"

    def setup(self, request: EngineRequest) -> EngineSetup:
        release = _release(request.versions)
        port, http_port = _ports(request.session)
        server_arguments = self._server_arguments(request, release, http_port)
        connection: dict[str, Any] = {
            # Not localhost: where a container has no IPv6, the server cannot bind its second
            # address and exits.
            "lmcache.mp.host": "tcp://127.0.0.1",
            "lmcache.mp.port": port,
            "lmcache.mp.mq_timeout": MESSAGE_TIMEOUT_SECONDS,
        }
        files = {KEY_FILE: seal_of(request.storage.name)} if release.seals else {}
        if release.is_started_by_vllm:
            connection |= {
                "lmcache.mp.autostart": True,
                "lmcache.mp.autostart.server_args": shlex.join(server_arguments),
                "lmcache.mp.autostart.wait_timeout": START_TIMEOUT_SECONDS,
            }
        else:
            files[LAUNCHER_FILE] = _launcher(port, server_arguments)
        return EngineSetup(
            files=files,
            kv_transfer_config={
                "kv_connector": "LMCacheMPConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                **self._module(request.versions),
                "kv_connector_extra_config": connection,
            },
            run_by=None if release.is_started_by_vllm else LAUNCHER_FILE,
            shared_memory_bytes=request.host_bytes + _SHARED_BESIDES_BYTES,
            metrics=(MetricsEndpoint("lmcache-server", http_port),),
            warnings=()
            if release.seals
            else (
                "this version of LMCache notices no changed byte in a file; keep the folder on "
                "storage with checksums of its own",
            ),
        )

    def _server_arguments(
        self, request: EngineRequest, release: _Release, http_port: int
    ) -> list[str]:
        storage: dict[str, Any] = {"type": "fs", "base_path": str(request.storage)}
        if release.seals:
            storage["serde"] = {
                "type": "aesgcm",
                "key_provider": "hkdf",
                "aes_bits": 128,
                "master_key_path": str(request.files / KEY_FILE),
            }
        size_gib = str(request.host_bytes // GIB)
        return [
            *("--chunk-size", str(request.chunk_tokens or self.chunk_tokens)),
            *("--l1-size-gb", size_gib, "--l1-init-size-gb", size_gib),
            *("--eviction-policy", "LRU", "--metrics-sample-rate", "1.0"),
            *(release.transfer_on_gpus if request.on_gpus else release.transfer_on_cpus),
            *("--http-port", str(http_port)),
            *("--l2-adapter", json.dumps(storage)),
        ]

    def _module(self, versions: Versions) -> Mapping[str, str]:
        """Where vLLM finds the connector's class, which up to 0.21 is one of vLLM's own."""
        if versions.release_of("vllm") >= _FIRST_OWN_CLASS:
            return {}
        return {"kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector"}


ADAPTER = LMCacheMultiProcess()
