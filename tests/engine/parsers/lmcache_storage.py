"""What the real LMCache's storage does with a configuration, on a machine without a GPU.

    PYTHONPATH=SITE python lmcache_storage.py < QUESTION > ANSWER

LMCache inside vLLM's own processes moves blocks with a GPU's kernels, and so does not run without
one; its storage manager does. It is made here as in a worker, from the same variables and file, and
asked to keep blocks and to give them back.

The question is `{"environment": {...}, "file": "YAML", "without": [...], "store": N, "load": N}`.
Options named in `without` are removed: those of a backend that needs a GPU. Block number i always
has the same content. The answer is one JSON object with `allocator`, the backend in whose memory
blocks are made, or `error` if the manager cannot be made; and for `load` a list of what came back
for each block: `same`, `other` or `none`.

This needs Python 3.11 and LMCache with PyTorch. It imports nothing of this project.
"""

# Linters run where none of the engine's packages is installed.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Mapping
from typing import Any

from answering import answer_question

_MODEL = "/home/config/kvcache/model"
#: Layers, keys and values, tokens of a block, heads, bytes of a head.
_SHAPE = (2, 2, 256, 2, 16)
_STORE_SECONDS = 30.0


class _Storage:
    """LMCache's storage manager as a worker makes it."""

    def __init__(self, config: Any) -> None:
        import torch
        from lmcache.v1.event_manager import EventManager
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.storage_backend.storage_manager import StorageManager

        self._metadata = LMCacheMetadata(
            model_name=_MODEL,
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=torch.float16,
            kv_shape=_SHAPE,
            role="worker",
        )
        self._manager = StorageManager(config, self._metadata, EventManager())

    @property
    def allocator(self) -> str:
        return type(self._manager.allocator_backend).__name__

    def _keys(self, count: int) -> list[Any]:
        import torch
        from lmcache.utils import CacheEngineKey

        return [CacheEngineKey(_MODEL, 1, 0, number, torch.float16) for number in range(count)]

    def _content(self, number: int) -> Any:
        import torch

        generator = torch.Generator().manual_seed(number)
        (shape,) = self._metadata.get_shapes()
        return torch.randn(shape, generator=generator).to(torch.float16)

    def store(self, count: int) -> None:
        from lmcache.v1.memory_management import MemoryFormat

        keys = self._keys(count)
        blocks = []
        for number in range(count):
            block = self._manager.allocate(
                self._metadata.get_shapes(), self._metadata.get_dtypes(), MemoryFormat.KV_2LTD
            )
            block.tensor.copy_(self._content(number))
            blocks.append(block)
        self._manager.batched_put(keys, blocks)
        deadline = time.monotonic() + _STORE_SECONDS
        while self._manager.batched_contains(keys)[0] < count and time.monotonic() < deadline:
            time.sleep(0.1)

    def load(self, count: int) -> list[str]:
        import torch

        found = self._manager.batched_get(self._keys(count), location="RemoteBackend")
        return [
            "none"
            if block is None
            else ("same" if torch.equal(block.tensor, self._content(number)) else "other")
            for number, block in enumerate(found)
        ]

    def close(self) -> None:
        self._manager.close()


def _configuration(question: Mapping[str, Any]) -> Any:
    """What LMCache makes of the variables and the file in vLLM."""
    from lmcache.integration.vllm.utils import lmcache_get_or_create_config

    config = lmcache_get_or_create_config()
    for option in question.get("without") or ():
        setattr(config, option, None)
    return config


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    os.environ.update(question["environment"])
    if (text := question.get("file")) is not None:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
            file.write(text)
        os.environ["LMCACHE_CONFIG_FILE"] = file.name
    try:
        storage = _Storage(_configuration(question))
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    result: dict[str, Any] = {"allocator": storage.allocator}
    try:
        if count := question.get("store"):
            storage.store(count)
        if count := question.get("load"):
            result["load"] = storage.load(count)
    finally:
        storage.close()
    return result


if __name__ == "__main__":
    answer_question(answer)
    # A manager that could not be made leaves a thread that never ends.
    os._exit(0)
