"""What vLLM takes of a GPU besides weights and KV pool.

vLLM measures this at its start, before it sizes the pool (v1/worker/gpu_worker.py,
determine_available_memory): the highest point of one run of the model with the largest batch and
one run of the sampler with all sequences, what is taken outside of PyTorch, and, from 0.20.0 on, an
estimate of the CUDA graphs. Nobody can measure it before the session starts, so it is estimated
here, term by term, with a lower and an upper bound. docs/sizing.md says where each figure is from.
"""

from __future__ import annotations

import attrs
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..model.widths import Widths
from ..sizes import GIB, MIB

#: vLLM chooses larger batches on GPUs with at least this much (engine/arg_utils.py,
#: get_batch_defaults), but for the A100.
_LARGE_GPU_BYTES = 70 * GIB

#: The same for the GPUs for which it chooses the largest (from 0.26.0 on).
_LARGEST_GPU_BYTES = 160 * GIB
_FIRST_LARGEST = Version("0.26.0")

#: Bytes of one sequence and token of the vocabulary at the sampler's highest point. Up to 0.15 it
#: sorts: logits of 2 bytes, the same as float32, sorted values and int64 indices, and as much again
#: for the sort's own use (v1/sample/ops/topk_topp_sampler.py): 2 + 4 + 2 * (4 + 8). From 0.17 on
#: (0.16 was not looked at) a kernel works in place: 2 + 4, and probabilities of 4.
_SORTING_BYTES = 30
_IN_PLACE_BYTES = 10
_FIRST_IN_PLACE = Version("0.17.0")

#: Workspaces of cuBLAS and the attention backend, and vLLM's own input buffers. Logs of vLLM 0.10
#: to 0.15 show 0.25 to 0.3 GiB above what the other terms explain.
_WORKSPACE_BYTES = GIB // 4

#: What a process takes outside of PyTorch with one GPU (logs: 0.02 to 0.3 GiB).
_ALONE_BYTES = GIB // 4

#: NCCL and the buffers of the custom all-reduce, by GPUs joined by NVLink (logs: 1.38 GiB at TP 2,
#: 1.63 and 1.84 GiB at TP 4) and by PCIe alone (0.75 GiB on consumer GPUs).
_NVLINK_BYTES = 3 * GIB // 2
_PCIE_BYTES = 3 * GIB // 4

#: One CUDA graph's share of one layer (logs: 0.07 to 0.25 MiB; with experts up to 0.4 MiB).
_GRAPH_BYTES = MIB // 5
_EXPERT_GRAPH_BYTES = 2 * MIB // 5

#: How much more than that they may take. vLLM measures two graphs and concludes on all others,
#: which is most wrong with experts: one report has 8.6 GiB where 33 were estimated (vLLM#45178,
#: vLLM#53013).
_GRAPHS_FACTOR = 2.5
_EXPERTS_GRAPHS_FACTOR = 5

#: The same where options change the graphs in a way that is not read here.
_CHANGED_FACTOR = 3

#: The largest batch for which vLLM captures a graph, unless it is told another (config/vllm.py).
_LARGEST_CAPTURE = 512

#: vLLM reads images in patches, and this many of them become one token of the text model.
_PATCHES_OF_A_TOKEN = 4

#: The versions whose pool leaves room for the CUDA graphs. Before, they lie outside of vLLM's
#: share; and from 0.22 to 0.25 the new model runner, which many models get, estimates none
#: (v1/worker/gpu/model_runner.py, profile_cudagraph_memory returns 0).
_GRAPHS_IN_SHARE = SpecifierSet(">=0.20.0,<0.22.0")
_GRAPHS_IN_SHARE_AGAIN = Version("0.26.0")
_FIRST_ESTIMATE = Version("0.20.0")


@attrs.frozen
class EngineLoad:
    """What the engine was told, as far as its memory depends on it. None: not said."""

    sequences: int | None = None
    """``--max-num-seqs``."""
    batched_tokens: int | None = None
    """``--max-num-batched-tokens``."""
    graphs: bool = True
    """Whether CUDA graphs are captured: not with ``--enforce-eager``."""
    largest_capture: int | None = None
    """``--max-cudagraph-capture-size``."""
    graphs_changed: bool = False
    """Whether options change the graphs in a way that is not read here."""
    graphs_estimated: bool = True
    """Whether vLLM may leave room for them by itself."""
    speculates: bool = False
    small_batches: bool = False
    """Whether the GPU is an A100, for which vLLM leaves out the larger batches."""


@attrs.frozen
class Overhead:
    """Bytes of one GPU."""

    likely: int
    low: int
    high: int
    graphs_beside: int = 0
    """CUDA graphs that lie outside of vLLM's share, at the most."""
    graphs_beside_likely: int = 0

    @classmethod
    def exactly(cls, size: int) -> Overhead:
        """One that somebody has measured."""
        return cls(size, size, size)


@attrs.frozen
class _Batch:
    """The largest batch that vLLM tries at its start."""

    tokens: int
    sequences: int


def _batch(memory_bytes: int, version: Version, load: EngineLoad, *, least: bool) -> _Batch:
    """As vLLM chooses it; the least that it may be, or what it is unless the GPU is an A100."""
    tokens, sequences = 2048, 256
    if memory_bytes >= _LARGE_GPU_BYTES and not least:
        largest = memory_bytes >= _LARGEST_GPU_BYTES and version >= _FIRST_LARGEST
        tokens, sequences = (16384 if largest else 8192), 1024
    return _Batch(load.batched_tokens or tokens, load.sequences or sequences)


def _captures(largest: int) -> int:
    """How many sizes of batches up to this one get a graph: 1, 2, 4, 8, 16, … 248, 256, 272, …"""
    small = sum(1 for size in (1, 2, 4) if size <= largest)
    return small + min(largest, 255) // 8 + (max(0, largest - 256) // 16 + 1) * (largest >= 256)


def _graphs(widths: Widths, layers: int, batch: _Batch, load: EngineLoad) -> int:
    """Of all CUDA graphs: those for any batch, and those for batches that only decode."""
    largest = load.largest_capture or min(2 * batch.sequences, _LARGEST_CAPTURE)
    largest = min(largest, batch.tokens)
    count = _captures(largest) + _captures(min(largest, batch.sequences))
    each = _EXPERT_GRAPH_BYTES if widths.experts_of_a_token else _GRAPH_BYTES
    return count * layers * each


def _peak(widths: Widths, tensor: int, batch: _Batch, version: Version, load: EngineLoad) -> int:
    """The highest point of the run that vLLM measures.

    Hidden states and the residual stay for the whole of it. Above them lies the largest of: one
    layer (a feed-forward layer's two inputs and its product, or queries, keys with values, and
    answers), the image tower, and the sampler. What experts work in is kept from then on.
    """
    element = 2
    tokens = batch.tokens * element
    layer = tokens * (widths.hidden + 3 * max(widths.feed_forward, widths.heads) // tensor)
    tower = _PATCHES_OF_A_TOKEN * tokens
    tower *= 3 * widths.vision_hidden + 2 * widths.vision_feed_forward
    rows = batch.sequences * (2 if load.speculates else 1)
    each = _IN_PLACE_BYTES if version >= _FIRST_IN_PLACE else _SORTING_BYTES
    sampler = rows * widths.vocabulary * each
    inner = widths.hidden + 3 * widths.expert // tensor
    experts = tokens * widths.experts_of_a_token * inner
    return 2 * tokens * widths.hidden + max(layer, tower, sampler) + experts


def estimate_overhead(
    widths: Widths,
    *,
    layers: int,
    tensor: int,
    ranks: int,
    memory_bytes: int,
    version: Version,
    load: EngineLoad | None = None,
) -> Overhead:
    """What vLLM takes of one GPU besides weights and pool.

    Args:
        widths: of the model.
        layers: of the fullest pipeline stage.
        tensor: ranks among which one layer is divided.
        ranks: how many GPUs talk to each other.
        memory_bytes: of one GPU.
        version: of vLLM.
        load: what the engine was told.
    """
    load = load or EngineLoad()
    # The driver keeps a part of the memory that a GPU is sold with: an H100 of 80 GiB has 79.2, an
    # A100 of 40 GiB 39.4, an RTX 3090 of 24 GiB 23.6. No GPU has whole GiB left; where the size is
    # not in whole GiB, it is what the driver says.
    driver = memory_bytes // 100
    known = memory_bytes % GIB != 0
    large = memory_bytes >= _LARGE_GPU_BYTES
    usual = _batch(memory_bytes, version, load, least=load.small_batches)
    peak = _peak(widths, tensor, usual, version, load)
    least_peak = _peak(
        widths, tensor, _batch(memory_bytes, version, load, least=True), version, load
    )
    talk = 0 if ranks == 1 else _NVLINK_BYTES if large else _PCIE_BYTES
    graphs = _graphs(widths, layers, usual, load) if load.graphs else 0
    factor = _EXPERTS_GRAPHS_FACTOR if widths.experts_of_a_token else _GRAPHS_FACTOR
    most_graphs = int(graphs * factor) * (_CHANGED_FACTOR if load.graphs_changed else 1)
    counted = load.graphs_estimated and version >= _FIRST_ESTIMATE
    certain = counted and (version in _GRAPHS_IN_SHARE or version >= _GRAPHS_IN_SHARE_AGAIN)
    return Overhead(
        likely=(0 if known else driver)
        + peak
        + _WORKSPACE_BYTES
        + _ALONE_BYTES
        + talk
        + (graphs if counted else 0),
        low=least_peak * 3 // 5 + _WORKSPACE_BYTES // 2 + talk // 2,
        high=driver * 3 // 2
        + peak * 27 // 20
        + 2 * (_WORKSPACE_BYTES + _ALONE_BYTES)
        + talk * 3 // 2
        + (most_graphs if counted else 0),
        graphs_beside=0 if certain else most_graphs,
        graphs_beside_likely=0 if certain or counted else graphs,
    )
