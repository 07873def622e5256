"""What an engine's files in a namespace are, by their names.

Each engine writes a block under another name first and renames it; what is left under such a name
is half of something, from a process that ended. Where the names come from is said with each form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

import attrs


class FileKind(Enum):
    """What one file is."""

    BLOCK = "block"
    COMPANION = "companion"
    """It belongs to a block, or to all of them, and is of no use alone."""
    UNFINISHED = "unfinished"
    FOREIGN = "foreign"
    """No engine's that writes in this form."""


@attrs.frozen
class FileFormat:
    """The names of files in one form."""

    block: re.Pattern[str]
    unfinished: re.Pattern[str]
    companion: re.Pattern[str] | None = None

    def kind_of(self, name: str) -> FileKind:
        """What a file is.

        Args:
            name: without its directories.
        """
        for pattern, kind in (
            (self.unfinished, FileKind.UNFINISHED),
            (self.companion, FileKind.COMPANION),
            (self.block, FileKind.BLOCK),
        ):
            if pattern is not None and pattern.fullmatch(name):
                return kind
        return FileKind.FOREIGN


_SERVER_FILES = FileFormat(
    # distributed/l2_adapters/fs_l2_adapter.py: the object group is there from 0.5.0 on.
    block=re.compile(r".+@0x[0-9a-f]+@(?:[0-9a-f]+@)?[0-9a-f]{64}(?:@.*)?\.data"),
    unfinished=re.compile(r".+@0x[0-9a-f]+@.+\.tmp"),
)

#: An adapter's form of files (EngineAdapter.storage_format) → their names.
FORMATS: Mapping[str, FileFormat] = {
    # LMCache, storage_backend/gds_backend.py; the second suffix is WEKA's.
    "lmcache-gds": FileFormat(
        block=re.compile(r".+\.(?:kvcache\.safetensors|weka1)"),
        companion=re.compile(r".+\.(?:kvcache\.safetensors|weka1)\.metadata"),
        unfinished=re.compile(r".+\.tmp[0-9A-Za-z]{8}"),
    ),
    # LMCache, storage_backend/connector/fs_connector.py: model, ranks, rank, hash, type.
    "lmcache-fs": FileFormat(
        block=re.compile(r".+@\d+@\d+@-?[0-9a-f]+@[^@]+\.data"),
        unfinished=re.compile(r".+@\d+@\d+@-?[0-9a-f]+@[^@]+\.tmp"),
    ),
    "lmcache-mp-fs": _SERVER_FILES,
    "lmcache-mp-fs-aesgcm": _SERVER_FILES,
    # vLLM, v1/kv_offload/tiering/fs/io.py and file_mapper.py; config.json says whose files it is.
    "vllm-fs-tier": FileFormat(
        block=re.compile(r"[0-9a-f]{64}\.bin"),
        companion=re.compile(r"config\.json"),
        unfinished=re.compile(r"[0-9a-f]{64}\.bin_\d+\.tmp|\.o_direct_probe_\d+\.tmp"),
    ),
    # SGLang, mem_cache/hicache_storage.py.
    "sglang-hicache-file": FileFormat(
        block=re.compile(r"[0-9a-f]{64}_.+\.bin"),
        unfinished=re.compile(r"\.[0-9a-f]{32}\.tmp"),
    ),
    # One file without a name: nothing of it is seen.
    "dynamo-kvbm": FileFormat(block=re.compile(r"(?!)"), unfinished=re.compile(r"(?!)")),
}
