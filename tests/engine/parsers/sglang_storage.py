"""What the real SGLang's hierarchical cache keeps in a folder, on a machine without a GPU.

    PYTHONPATH=WHEEL:SITE python sglang_storage.py < QUESTION > ANSWER

SGLang copies pages between a GPU and host memory with a GPU's kernels. What moves them between host
memory and files, in threads of its cache controller, needs none. The controller is made here from
SGLang's own arguments, with real pools for a rank without others, but for the GPU's pool, which
lies in host memory, and the host's, which is not pinned. This script stands in the place of the
radix tree, which hands pages to the controller, and allocates memory for those that it finds.

The question is `{"arguments": [...], "environment": {...}, "config": {...}, "load": N, "store":
N}`. The arguments are those of `python -m sglang.launch_server`; the config is the model's
`config.json`, and is written where `--model-path` points. Text number i always has the same tokens,
two pages of them, and the same content; `load` asks for the first N texts, and `store` then keeps
the first N. The answer is one JSON object with `backend`, the class that keeps pages, `page_get`
and `page_set`, the controller's ways to it, and for `load` a list with what came back for each
text's pages: `same`, `other` or `none`.

SGLang compiles its hash of tokens when it first needs it. Where no compiler is, as in the engine
image, a SHA-256 over the same bytes takes its place.

This needs what `sglang_arguments.py` needs. It imports nothing of this project.
"""

# Linters run where none of the engine's packages is installed.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import hashlib
import json
import os
import threading
from array import array
from collections.abc import Mapping
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

from answering import answer_question
from sglang_arguments import stand_in

_PAGES = 2
_DEVICE_TOKENS = 4096
#: More than the pool of host memory takes here.
_HOST_BYTES = 2**30
_WAIT_SECONDS = 30.0


def _hash_pages(
    raw: array[int],
    logical_len: int,
    unit_width: int,
    is_bigram: bool,
    prior_digest: bytes | None,
    page_size: int,
) -> list[str]:
    """As SGLang's mem_cache/cpp_utils/hash_binding.cpp, for tokens below 2³²."""
    digest = prior_digest or b""
    hashes = []
    for start in range(0, logical_len, page_size):
        page = array("I", raw[start : min(start + page_size, logical_len)])
        digest = hashlib.sha256(digest + page.tobytes()).digest()
        hashes.append(digest.hex())
    return hashes


def _publish_arguments(question: Mapping[str, Any]) -> None:
    """What the server decides before it starts, where its parts then read it."""
    from sglang.srt.mem_cache.cpp_utils import native_hash
    from sglang.srt.runtime_context import get_context, get_parallel
    from sglang.srt.server_args import prepare_server_args

    native_hash._load_native_hash_module = lambda: SimpleNamespace(get_hash=_hash_pages)
    server_args = prepare_server_args(question["arguments"])
    folder = Path(server_args.model_path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(question["config"]))
    # Left out, SGLang would look for a GPU.
    server_args.device = server_args.device or "cuda"
    server_args.resolve_once()
    get_context().set_server_args(server_args)
    get_parallel().override_permanently(tp_rank=0, pp_rank=0, attn_dcp_rank=0)


class _HierarchicalCache:
    """SGLang's cache controller, and what the radix tree does with it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        import torch
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
        from sglang.srt.mem_cache.hicache_storage import PoolName
        from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
        from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import build_pool_entry
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
        from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
        from sglang.srt.mem_cache.pool_host.group import HostPoolGroup
        from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
        from sglang.srt.runtime_context import get_memory, get_schedule, get_serving

        memory = get_memory()
        layers = config["num_hidden_layers"]
        self._page_tokens = get_schedule().page_size
        device_pool = MHATokenToKVPool(
            size=_DEVICE_TOKENS,
            page_size=self._page_tokens,
            dtype=torch.bfloat16,
            head_num=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            layer_num=layers,
            device="cpu",
            enable_memory_saver=False,
        )
        allocator = PagedTokenToKVPoolAllocator(
            _DEVICE_TOKENS, self._page_tokens, torch.bfloat16, "cpu", device_pool, need_sort=False
        )
        # SGLang insists on 10 GiB besides, unless it has been told what it may take.
        with host_memory_budget_scope(_HOST_BYTES):
            self._host_pool = MHATokenToKVPoolHost(
                device_pool.get_device_pool_infos()[0].buffer_info,
                host_to_device_ratio=memory.hicache_ratio,
                host_size=0,
                page_size=self._page_tokens,
                layout=memory.hicache_mem_layout,
                pin_memory=False,
                device_capacity_tokens=device_pool.size,
                start_layer=device_pool.start_layer,
                end_layer=device_pool.end_layer,
            )
        entry = build_pool_entry(
            name=PoolName.KV,
            host_pool=self._host_pool,
            device_pool=device_pool,
            layer_mapping={number: number for number in range(layers)},
            transfer_layer_id_max=layers,
            is_anchor=True,
        )
        self._controller = HybridCacheController(
            allocator,
            HostPoolGroup([entry]),
            self._page_tokens,
            tp_group=None,
            load_cache_event=threading.Event(),
            write_policy=memory.hicache_write_policy,
            io_backend=memory.hicache_io_backend,
            storage_backend=memory.hicache_storage_backend,
            model_name=get_serving().served_model_name,
            transfer_layer_id_max=layers,
            host_memory_mode=memory.hicache_host_memory_mode,
        )

    def describe(self) -> dict[str, str]:
        return {
            "backend": type(self._controller.storage_backend).__name__,
            "page_get": self._controller.page_get_func.__name__,
            "page_set": self._controller.page_set_func.__name__,
        }

    def _key(self, text: int) -> Any:
        from sglang.srt.mem_cache.radix_cache import RadixKey

        tokens = _PAGES * self._page_tokens
        return RadixKey(array("q", range(text * tokens, (text + 1) * tokens)))

    def _content(self, text: int, page: int) -> Any:
        import torch

        generator = torch.Generator().manual_seed(_PAGES * text + page)
        like = self._host_pool.get_dummy_flat_data_page()
        return torch.randn(like.shape, generator=generator).to(like.dtype)

    def _next(self, queue: Queue[Any]) -> Any:
        return queue.get(timeout=_WAIT_SECONDS)

    def store(self, text: int) -> None:
        from sglang.srt.mem_cache.utils import get_storage_hash_str

        key = self._key(text)
        hashes = get_storage_hash_str(key, page_size=self._page_tokens)
        indices = self._controller.mem_pool_host.alloc(len(key))
        for page, index in enumerate(indices[:: self._page_tokens].tolist()):
            self._host_pool.set_from_flat_data_page(index, self._content(text, page))
        self._controller.write_storage(indices, key, hashes)
        self._next(self._controller.ack_backup_queue)

    def load(self, text: int) -> list[str]:
        import torch
        from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle

        self._controller.prefetch(CacheRequestHandle(f"load-{text}", 0), self._key(text))
        operation = self._next(self._controller.prefetch_hit_queue)
        answers = []
        if operation.storage_hit_count:
            operation.host_indices = self._controller.mem_pool_host.alloc(
                operation.storage_hit_count
            )
            self._controller.prefetch_buffer.put(operation)
            tokens = 0
            while not (ack := self._next(self._controller.ack_prefetch_queue)).completed_req:
                tokens = ack.completed_tokens or tokens
            for page, index in enumerate(
                operation.host_indices[: tokens : self._page_tokens].tolist()
            ):
                same = torch.equal(self._host_pool.get_data_page(index), self._content(text, page))
                answers.append("same" if same else "other")
        return answers + ["none"] * (_PAGES - len(answers))


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    os.environ.update(question["environment"])
    stand_in()
    _publish_arguments(question)
    cache = _HierarchicalCache(question["config"])
    result: dict[str, Any] = dict(cache.describe())
    if count := question.get("load"):
        result["load"] = [cache.load(text) for text in range(count)]
    for text in range(question.get("store") or 0):
        cache.store(text)
    return result


if __name__ == "__main__":
    answer_question(answer)
    # The controller's threads wait for more.
    os._exit(0)
