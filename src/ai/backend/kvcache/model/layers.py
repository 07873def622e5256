"""What one layer of a model keeps of a sequence."""

from __future__ import annotations

from enum import StrEnum

import attrs

from ..errors import ModelError

#: Several times as many as any model has.
MAX_LAYERS = 1_000


class LayerKind(StrEnum):
    """How a layer looks back, and so what it has to keep."""

    FULL = "full_attention"
    """Keys and values of every token."""
    LATENT = "mla"
    """One compressed vector of every token, for all heads."""
    INDEXER = "sparse_indexer"
    """Keys by which sparse attention chooses tokens, beside the layer's own cache."""
    SLIDING = "sliding_window"
    """Keys and values of the last tokens."""
    CHUNKED = "chunked_attention"
    """Keys and values of the tokens since the last border between chunks."""
    LINEAR = "linear_attention"
    MAMBA = "mamba"
    CONVOLUTION = "short_convolution"
    CROSS = "cross_attention"
    """Keys and values of the image: nothing of text."""
    SHARED = "shared"
    """Reads the keys and values of an earlier layer."""


@attrs.frozen
class State:
    """What a recurrent layer keeps of a sequence, whatever its length.

    The shapes are those of vLLM (model_executor/layers/mamba/mamba_utils.py).
    """

    channels: int
    """Of the convolution, as far as tensor parallelism divides them."""
    channel_bytes: int
    """Of one channel: the inputs that the convolution looks back at."""
    recurrent_bytes: int
    heads: int
    """What tensor parallelism has to divide; 0: only the channels."""
    groups: int = 0
    """Channels that several heads share, and that ranks therefore may have to repeat."""
    group_channels: int = 0

    def bytes_per_rank(self, tensor_parallel: int) -> int:
        """Bytes on one tensor-parallel rank.

        Raises:
            ModelError: the layer cannot be divided so.
        """
        divided = self.heads or self.channels
        if divided % tensor_parallel:
            raise ModelError(
                f"{divided} {'heads' if self.heads else 'channels'} of a recurrent layer cannot be "
                f"divided over a tensor-parallel size of {tensor_parallel}"
            )
        # mamba_utils.py, extra_groups_for_head_shards.
        groups = self.groups if self.groups % tensor_parallel == 0 else tensor_parallel
        channels = self.channels + groups * self.group_channels
        return (channels * self.channel_bytes + self.recurrent_bytes) // tensor_parallel


@attrs.frozen
class LayerCache:
    """One cache of one layer. A layer can have none, or two."""

    kind: LayerKind
    heads: int = 0
    head_bytes: int = 0
    """Of one head and token: keys, values and their scales."""
    window: int | None = None
    """Tokens that a layer with a window looks back at."""
    state: State | None = None

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token, counted once; within the window, where there is one."""
        return self.heads * self.head_bytes

    @property
    def grows(self) -> bool:
        """Whether a longer sequence always takes more."""
        return self.window is None and self.bytes_per_token > 0

    @property
    def constant_bytes(self) -> int:
        """Bytes of a sequence that is longer than any window, where they stop growing."""
        if self.state is not None:
            return self.state.bytes_per_rank(1)
        return (self.window or 0) * self.bytes_per_token

    def bytes_per_token_per_rank(self, tensor_parallel: int) -> int:
        """Bytes of one token on one tensor-parallel rank.

        Heads are divided, and repeated once there are fewer of them than ranks (vLLM,
        config/model.py, get_num_kv_heads); a latent vector is one head.

        Raises:
            ModelError: the heads cannot be divided so.
        """
        if self.heads == 0:
            return 0
        if self.heads % tensor_parallel and tensor_parallel % self.heads:
            raise ModelError(
                f"{self.heads} KV heads cannot be divided over a tensor-parallel size of "
                f"{tensor_parallel}; choose one that divides {self.heads} or is a multiple of it"
            )
        return max(1, self.heads // tensor_parallel) * self.head_bytes
