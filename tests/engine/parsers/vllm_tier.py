"""What the real vLLM's offloading keeps in a folder, on a machine without a GPU.

    PYTHONPATH=SITE python vllm_tier.py < QUESTION > ANSWER

vLLM's offloading moves blocks between a GPU and host memory in its workers, which needs a GPU. What
moves them between host memory and files runs with the scheduler, and needs none. It is made here as
there: from `--kv-transfer-config`, by vLLM's own configuration, its specification of offloading and
its manager with its tiers, on its region in /dev/shm. This script stands in the place of the
scheduler, whose calls it makes in the scheduler's order, and of the copies from and to a GPU.

The question is `{"model": "PATH", "config": {...}, "environment": {...}, "kv_transfer_config":
{...}, "load": N, "store": N}`. The config is the model's `config.json`, and is written to its path.
Text number i always has the same tokens, two chunks of them, and the same content, of which the
first byte numbers all texts' chunks from 0 on; `load` asks for the first N texts, and `store` then
keeps the first N. The answer is one JSON object with `chunk_bytes`, what a chunk takes in host
memory, and for `load` a list with what came back for each text's chunks: `same`, `other` or `none`.

This needs vLLM's CPU build and Python 3.11. It imports nothing of this project.
"""

# Linters run where none of the engine's packages is installed.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from answering import answer_question

_CHUNKS = 2
#: What vLLM may use of the memory that it takes for a GPU's.
_CACHE_BYTES = 64 * 2**20
_WAIT_SECONDS = 30.0


def _engine_config(question: Mapping[str, Any]) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.models import registry

    folder = Path(question["model"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(question["config"]))
    # Lest CUDA be initialized, vLLM looks at a model class in a new process. That costs 15 seconds.
    registry._run_in_subprocess = lambda function: function()
    config = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        block_size=16,
        kv_transfer_config=question["kv_transfer_config"],
    ).create_engine_config()
    # The one that offloading prefers. The CPU's attention has another.
    config.cache_config.kv_cache_layout = "LBHNC"
    return config


def _kv_cache_config(engine_config: Any) -> Any:
    """What the engine core makes of its workers' answers, here those of plain attention layers."""
    from vllm.v1.core.kv_cache_utils import (
        generate_scheduler_kv_cache_config,
        get_kv_cache_configs,
    )
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    model, parallel = engine_config.model_config, engine_config.parallel_config
    layer = FullAttentionSpec(
        block_size=engine_config.cache_config.block_size,
        num_kv_heads=model.get_num_kv_heads(parallel),
        head_size=model.get_head_size(),
        dtype=model.dtype,
    )
    layers = {
        f"model.layers.{number}.self_attn.attn": layer
        for number in range(model.get_num_layers(parallel))
    }
    configs = get_kv_cache_configs(engine_config, [layers], [_CACHE_BYTES])
    return generate_scheduler_kv_cache_config(configs)


class _Offloading:
    """vLLM's manager of offloaded chunks, and what the scheduler does with it."""

    def __init__(self, engine_config: Any) -> None:
        import numpy
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (
            build_offloading_config,
        )
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_offload.factory import OffloadingSpecFactory

        config = build_offloading_config(engine_config, _kv_cache_config(engine_config))
        self._hashes_of_chunk = config.cache.blocks_per_chunk
        self._chunk_tokens = config.groups[0].tokens_per_block * config.cache.blocks_per_chunk
        hash_function = get_hash_fn_by_name(engine_config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(config.cache.tokens_per_hash, hash_function)
        self._manager = OffloadingSpecFactory.create_spec(config).get_manager()
        # Row by row what lies in host memory.
        self._memory = numpy.asarray(self._manager.primary_tier.get_kv_memoryview())

    @property
    def chunk_bytes(self) -> int:
        return int(self._memory.shape[1])

    def _keys(self, text: int) -> list[Any]:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.kv_offload.base import make_offload_key
        from vllm.v1.request import Request

        tokens = _CHUNKS * self._chunk_tokens
        request = Request(
            request_id=str(text),
            prompt_token_ids=[(text * tokens + number) % 500 for number in range(tokens)],
            sampling_params=SamplingParams(),
            pooling_params=None,
            block_hasher=self._hasher,
        )
        last = slice(self._hashes_of_chunk - 1, None, self._hashes_of_chunk)
        return [make_offload_key(block_hash, 0) for block_hash in request.block_hashes[last]]

    def _content(self, text: int, chunk: int) -> Any:
        import numpy

        generator = numpy.random.default_rng([text, chunk])
        content = generator.integers(-128, 128, self.chunk_bytes, numpy.int8)
        content[0] = _CHUNKS * text + chunk
        return content

    def _end_step(self) -> None:
        from vllm.v1.kv_offload.base import ScheduleEndContext

        self._manager.on_schedule_end(ScheduleEndContext((), ()))
        time.sleep(0.01)

    def store(self, text: int) -> None:
        from vllm.v1.kv_offload.base import ReqContext

        context = ReqContext(req_id=f"store-{text}")
        keys = self._keys(text)
        self._manager.on_new_request(context)
        prepared = self._manager.prepare_store(keys, context)
        for key, row in zip(prepared.keys_to_store, prepared.store_spec.chunk_ids, strict=True):
            self._memory[row] = self._content(text, keys.index(key))
        self._manager.complete_store(prepared.keys_to_store, context)
        self._manager.on_request_finished(context)
        deadline = time.monotonic() + _WAIT_SECONDS
        while self._manager.has_pending_work() and time.monotonic() < deadline:
            self._end_step()

    def load(self, text: int) -> list[str]:
        from vllm.v1.kv_offload.base import ReqContext

        context = ReqContext(req_id=f"load-{text}")
        keys = self._keys(text)
        self._manager.on_new_request(context)
        found: int | None = None
        deadline = time.monotonic() + _WAIT_SECONDS
        while found is None and time.monotonic() < deadline:
            found = self._look_up(keys, context)
            self._end_step()
        answers = []
        if found:
            rows = self._manager.prepare_load(keys[:found], context).chunk_ids
            for chunk, row in enumerate(rows):
                same = (self._memory[row] == self._content(text, chunk)).all()
                answers.append("same" if same else "other")
            self._manager.complete_load(keys[:found], context)
        self._manager.on_request_finished(context)
        return answers + ["none"] * (len(keys) - len(answers))

    def _look_up(self, keys: list[Any], context: Any) -> int | None:
        """The number of chunks found from the start on, unless that is not known in this step.

        As `OffloadingConnectorScheduler._maximal_prefix_lookup` does it.
        """
        from vllm.v1.kv_offload.base import LookupResult

        found, is_deferred = 0, False
        for key in keys:
            result = self._manager.lookup(key, context)
            if result is LookupResult.MISS:
                break
            found += result is not LookupResult.RETRY
            is_deferred |= result is not LookupResult.HIT
        return None if is_deferred else found

    def close(self) -> None:
        del self._memory
        self._manager.shutdown()


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    os.environ.update(question["environment"])
    offloading = _Offloading(_engine_config(question))
    result: dict[str, Any] = {"chunk_bytes": offloading.chunk_bytes}
    try:
        if count := question.get("load"):
            result["load"] = [offloading.load(text) for text in range(count)]
        # Stored last, lest what is loaded come from host memory.
        for text in range(question.get("store") or 0):
            offloading.store(text)
    finally:
        offloading.close()
    return result


if __name__ == "__main__":
    answer_question(answer)
