"""How a model is divided over GPUs, and what one GPU then holds of a sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from ..errors import ModelError
from .layers import LayerCache, LayerKind


@attrs.frozen
class Parallel:
    """vLLM's sizes of parallelism."""

    tensor: int = 1
    pipeline: int = 1
    decode_context: int = 1
    """Ranks of tensor parallelism among which a sequence's tokens are dealt out."""

    @property
    def gpus(self) -> int:
        """Decode context parallelism reuses the ranks of tensor parallelism."""
        return self.tensor * self.pipeline


def stage_sizes(layers: int, pipeline: int) -> list[int]:
    """Layers of each pipeline stage.

    As vLLM deals them out: what is left over goes to the stages before the last, the last of them
    first (distributed/utils.py, get_pp_indices).

    Raises:
        ModelError: there are more stages than layers.
    """
    if pipeline > layers:
        raise ModelError(
            f"{layers} layers cannot be divided over a pipeline-parallel size of {pipeline}"
        )
    sizes = [layers // pipeline] * pipeline
    for stage in range(2, layers % pipeline + 2):
        sizes[-stage] += 1
    return sizes


@attrs.frozen
class GpuShare:
    """What one GPU holds of a sequence. Stages differ, so every figure is the largest of them."""

    stages: tuple[tuple[tuple[LayerCache, int], ...], ...]
    """Of each kind of stage, the caches and how many layers have them."""
    stage_layers: tuple[int, ...]
    """How many layers each stage has, whether they keep anything or not."""
    parallel: Parallel

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one more token, above all windows."""
        return max(self._growing(stage, hybrid=True) for stage in self.stages)

    @property
    def bytes_per_token_no_hybrid(self) -> int:
        """The same where layers with a window keep every token too."""
        return max(self._growing(stage, hybrid=False) for stage in self.stages)

    def sequence_bytes(self, tokens: int, *, hybrid: bool) -> int:
        """Bytes of one sequence.

        Args:
            tokens: its length.
            hybrid: whether the engine's hybrid KV cache manager frees what windows leave behind.
        """
        return max(self._stage_bytes(stage, tokens, hybrid) for stage in self.stages)

    def weights_bytes(self, total_bytes: int) -> int:
        """Bytes of weights.

        Embeddings count as if they were spread over the stages, and what tensor parallelism
        repeats (norms, routers, latent projections) as if it were divided: both are small.

        Args:
            total_bytes: of the whole model.
        """
        layers = sum(self.stage_layers) * self.parallel.tensor
        return -(-total_bytes * max(self.stage_layers) // layers)

    def _growing(self, stage: Sequence[tuple[LayerCache, int]], *, hybrid: bool) -> int:
        return sum(
            count * self._token_bytes(cache) for cache, count in stage if cache.grows or not hybrid
        )

    def _token_bytes(self, cache: LayerCache) -> int:
        # Tokens are dealt out in turn, so a rank holds every n-th of them.
        per_rank = cache.bytes_per_token_per_rank(self.parallel.tensor)
        return -(-per_rank // self.parallel.decode_context)

    def _stage_bytes(
        self, stage: Sequence[tuple[LayerCache, int]], tokens: int, hybrid: bool
    ) -> int:
        total = 0
        for cache, count in stage:
            if cache.state is not None:
                total += count * cache.state.bytes_per_rank(self.parallel.tensor)
                continue
            kept = min(tokens, cache.window) if hybrid and cache.window else tokens
            total += count * kept * self._token_bytes(cache)
        return total


def divide_layers(
    layers: Sequence[tuple[LayerCache, ...]], query_heads: int | None, parallel: Parallel
) -> GpuShare:
    """The share of one GPU.

    Args:
        layers: each layer's caches, in the model's order.
        query_heads: None for a model without attention.

    Raises:
        ModelError: the model cannot be divided so.
    """
    _check(layers, query_heads, parallel)
    sizes = stage_sizes(len(layers), parallel.pipeline)
    stages = []
    start = 0
    for size in sizes:
        counts = Counter(cache for layer in layers[start : start + size] for cache in layer)
        stages.append(tuple(counts.items()))
        start += size
    share = GpuShare(tuple(dict.fromkeys(stages)), tuple(sizes), parallel)
    # Asks every cache once, so that a model that cannot be divided is known here and not later.
    share.sequence_bytes(1, hybrid=False)
    return share


def _check(
    layers: Sequence[tuple[LayerCache, ...]], query_heads: int | None, parallel: Parallel
) -> None:
    if query_heads is not None and query_heads % parallel.tensor:
        raise ModelError(
            f"{query_heads} attention heads cannot be divided over a tensor-parallel size of "
            f"{parallel.tensor}"
        )
    context = parallel.decode_context
    if context == 1:
        return
    # vLLM, config/parallel.py and config/model.py.
    if parallel.tensor % context:
        raise ModelError(
            f"a tensor-parallel size of {parallel.tensor} cannot be divided by a decode-context-"
            f"parallel size of {context}"
        )
    for cache in {cache for layer in layers for cache in layer}:
        if cache.window is not None:
            raise ModelError(
                f"decode context parallelism does not go with {cache.kind} layers; "
                "choose a decode-context-parallel size of 1"
            )
        if cache.kind is LayerKind.FULL and context > parallel.tensor // cache.heads:
            raise ModelError(
                f"a decode-context-parallel size of {context} needs a tensor-parallel size of at "
                f"least {context * cache.heads} for {cache.heads} KV heads"
            )
