"""Lets LMCache run inside vLLM's own processes without a GPU, as a plugin of vLLM's.

Of all that LMCache does there, one thing needs a GPU: the kernel that copies a chunk between
vLLM's blocks and LMCache's memory. Here PyTorch copies. Everything else is LMCache's and vLLM's.

vLLM calls ``install`` in each of its processes (``vllm.general_plugins``). This runs with the
engine's Python and imports nothing of this project.
"""

# Linters run where none of the engine's packages is installed.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

from typing import Any


def install() -> None:
    """Has LMCache's connector made with the copies below."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    create = KVConnectorFactory.create_connector

    def create_connector(*arguments: Any, **options: Any) -> Any:
        # Not before: vLLM goes through all modules at its start, and trips over LMCache's.
        _replace_copies()
        return create(*arguments, **options)

    KVConnectorFactory.create_connector = create_connector


def _replace_copies() -> None:
    import lmcache.v1.gpu_connector
    import torch
    from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface

    class CpuBlocks(GPUConnectorInterface):  # type: ignore[misc]
        """A layer is [blocks, heads, tokens of a block, 2 * bytes of a head]; its keys and values
        lie side by side. A chunk is [keys and values, layers, tokens, heads * bytes of a head].
        """

        def __init__(self, metadata: Any) -> None:
            self.layers, _, _, self.heads, self.head_size = metadata.kv_shape
            self.kvcaches: Any = None

        def initialize_kvcaches_ptr(self, **options: Any) -> None:
            self.kvcaches = options.get("kvcaches", self.kvcaches)

        def get_shape(self, num_tokens: int) -> Any:
            return torch.Size([2, self.layers, num_tokens, self.heads * self.head_size])

        def _copy(self, chunk: Any, start: int, end: int, options: Any, *, load: bool) -> None:
            self.initialize_kvcaches_ptr(**options)
            slots = options["slot_mapping"][start:end]
            for number, blocks in enumerate(self.kvcaches):
                heads, block_tokens = blocks.shape[1:3]
                assert (heads, blocks.shape[3]) == (self.heads, 2 * self.head_size)
                where = slots // block_tokens, slice(None), slots % block_tokens
                of_chunk = chunk.tensor[:, number]
                if load:
                    halves = of_chunk.view(2, end - start, heads, self.head_size)
                    blocks[where] = halves.permute(1, 2, 0, 3).reshape(end - start, heads, -1)
                else:
                    halves = blocks[where].view(end - start, heads, 2, self.head_size)
                    of_chunk.copy_(halves.permute(2, 0, 1, 3).reshape(2, end - start, -1))

        def to_gpu(self, memory_obj: Any, start: int, end: int, **options: Any) -> None:
            self._copy(memory_obj, start, end, options, load=True)

        def from_gpu(self, memory_obj: Any, start: int, end: int, **options: Any) -> None:
            self._copy(memory_obj, start, end, options, load=False)

        def batched_to_gpu(self, chunks: Any, starts: Any, ends: Any, **options: Any) -> None:
            for chunk, start, end in zip(chunks, starts, ends, strict=True):
                self.to_gpu(chunk, start, end, **options)

        def batched_from_gpu(self, chunks: Any, starts: Any, ends: Any, **options: Any) -> None:
            for chunk, start, end in zip(chunks, starts, ends, strict=True):
                self.from_gpu(chunk, start, end, **options)

    def create(config: Any, metadata: Any, *_: Any, **__: Any) -> CpuBlocks:
        return CpuBlocks(metadata)

    lmcache.v1.gpu_connector.CreateGPUConnector = create
