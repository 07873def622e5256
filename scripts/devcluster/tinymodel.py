"""Makes a small Llama with random weights: a real model for engines, without a download.

`python -m devcluster.tinymodel FOLDER --seed 1` needs numpy and tokenizers, which every engine
image has; `image.make_tiny_model` runs it there. What such a model says means nothing, but it says
it reproducibly, and two prompts or two seeds get two answers. That is what tests of a KV cache
compare.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .tinytext import words

#: What training on the corpus reaches, so that every token the model can say has a text.
_VOCABULARY_SIZE = 1280
_BEGIN, _END, _PADDING = _SPECIAL = ("<s>", "</s>", "<pad>")
_BYTES = 256
_SAFETENSORS_DTYPES = {"float32": "F32", "bfloat16": "BF16"}

#: Attention must look at some tokens far more than at others. With weights of plain unit gain a
#: head averages thousands of tokens to nearly nothing, and every prompt gets the same answer.
_ATTENTION_GAIN = 2.0

_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


@dataclass(frozen=True)
class Shape:
    """The numbers that make one Llama different from another."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    max_position: int
    dtype: str

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def intermediate(self) -> int:
        """Llama's ratio of about 8/3, in steps that matrix kernels like."""
        return math.ceil(self.hidden * 8 / 3 / 64) * 64


def write_model(folder: Path, shape: Shape, *, seed: int, shards: int) -> None:
    """Writes everything an engine reads from a model folder. Equal arguments give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder, shape)
    _write_json(folder / "config.json", _config(shape))
    _write_json(folder / "generation_config.json", _special_ids())
    _write_weights(folder, dict(_weights(shape, seed)), shape.dtype, shards)


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position,
        "vocab_size": _VOCABULARY_SIZE,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": shape.dtype,
        **_special_ids(),
    }


def _special_ids() -> dict[str, int]:
    return {f"{name}_token_id": id for id, name in enumerate(("bos", "eos", "pad"))}


def _write_tokenizer(folder: Path, shape: Shape) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY_SIZE,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _BEGIN,
        "eos_token": _END,
        "pad_token": _PADDING,
        "model_max_length": shape.max_position,
        "chat_template": _CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _corpus() -> Iterator[str]:
    """Sentences to learn merges from. No two models differ here: their tokens must be the same."""
    source = random.Random("corpus")
    for _ in range(2000):
        yield " ".join(source.choices(words(), k=16))


def _weights(shape: Shape, seed: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """All tensors, in the order in which a checkpoint has them."""
    source = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> NDArray[np.float32]:
        scale = np.float32(gain / math.sqrt(columns))
        return source.standard_normal((rows, columns), dtype=np.float32) * scale

    hidden, ones = shape.hidden, np.ones(shape.hidden, dtype=np.float32)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", matrix(_VOCABULARY_SIZE, hidden, math.sqrt(hidden))
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", ones
        yield f"{prefix}.self_attn.q_proj.weight", matrix(queries, hidden, _ATTENTION_GAIN)
        yield f"{prefix}.self_attn.k_proj.weight", matrix(keys, hidden, _ATTENTION_GAIN)
        yield f"{prefix}.self_attn.v_proj.weight", matrix(keys, hidden, _ATTENTION_GAIN)
        yield f"{prefix}.self_attn.o_proj.weight", matrix(hidden, queries)
        yield f"{prefix}.post_attention_layernorm.weight", ones
        yield f"{prefix}.mlp.gate_proj.weight", matrix(shape.intermediate, hidden)
        yield f"{prefix}.mlp.up_proj.weight", matrix(shape.intermediate, hidden)
        yield f"{prefix}.mlp.down_proj.weight", matrix(hidden, shape.intermediate)
    yield "model.norm.weight", ones
    head = matrix(_VOCABULARY_SIZE, hidden)
    # A logit of exactly 0 never wins against a thousand random ones. So no answer ends early, and
    # none has half of a UTF-8 character: the tokenizer's first tokens are these two kinds.
    head[: len(_SPECIAL) + _BYTES] = 0
    yield "lm_head.weight", head


def _write_weights(
    folder: Path, weights: Mapping[str, NDArray[np.float32]], dtype: str, shards: int
) -> None:
    parts = [list(weights)[part::shards] for part in range(shards)]
    if shards == 1:
        _write_safetensors(folder / "model.safetensors", weights, dtype)
        return
    files = [f"model-{part + 1:05}-of-{shards:05}.safetensors" for part in range(shards)]
    for file, names in zip(files, parts, strict=True):
        _write_safetensors(folder / file, {name: weights[name] for name in names}, dtype)
    index = {
        "metadata": {"total_size": sum(len(_as_bytes(w, dtype)) for w in weights.values())},
        "weight_map": {
            name: file for file, names in zip(files, parts, strict=True) for name in names
        },
    }
    _write_json(folder / "model.safetensors.index.json", index)


def _write_safetensors(path: Path, weights: Mapping[str, NDArray[np.float32]], dtype: str) -> None:
    """A length, a JSON header and raw bytes. By hand, because numpy has no bfloat16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs: list[bytes] = []
    offset = 0
    for name, weight in weights.items():
        blob = _as_bytes(weight, dtype)
        header[name] = {
            "dtype": _SAFETENSORS_DTYPES[dtype],
            "shape": list(weight.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(blobs)


def _as_bytes(weight: NDArray[np.float32], dtype: str) -> bytes:
    if dtype == "float32":
        return weight.tobytes()
    bits = weight.view(np.uint32)
    nearest_even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (nearest_even >> np.uint32(16)).astype(np.uint16).tobytes()


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tinymodel", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--dtype", choices=sorted(_SAFETENSORS_DTYPES), default="float32")
    parser.add_argument("--max-position", type=int, default=8192)
    parser.add_argument("--shards", type=int, default=1)
    options = parser.parse_args(arguments)
    shape = Shape(
        layers=options.layers,
        hidden=options.hidden,
        heads=options.heads,
        kv_heads=options.kv_heads,
        max_position=options.max_position,
        dtype=options.dtype,
    )
    write_model(options.folder, shape, seed=options.seed, shards=options.shards)


if __name__ == "__main__":
    main()
