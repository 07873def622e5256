"""The files of a model folder that decide what its KV cache means: weights and descriptions."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import attrs

from ..errors import ModelError

#: Endings of weight files, in the order in which engines prefer them.
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")

#: Anything that changes what a token is or what the layers compute. Some publishers describe the
#: quantization beside the configuration, and the types of the cache with it. Keys hold an image by
#: what came in, so what makes tokens of images counts. vLLM takes the temperature of Llama 4's
#: attention from the configuration of its generation.
DESCRIPTION_FILES = (
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "params.json",
    "preprocessor_config.json",
    "processor_config.json",
    "quant_config.json",
    "quantize_config.json",
    "video_preprocessor_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
)

#: Code that comes with a model and computes its layers, with ``--trust-remote-code``.
CODE_SUFFIX = ".py"

INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


@attrs.frozen
class FileFacts:
    """One file, and what shows that it was replaced or changed."""

    name: str
    size: int
    mtime_ns: int
    inode: int


@attrs.frozen
class ModelFiles:
    """The files of one model folder, sorted by name."""

    root: Path
    """The mounted folder; links may lead to other places in it."""
    directory: Path
    descriptions: tuple[FileFacts, ...]
    weights: tuple[FileFacts, ...]


def list_model(root: Path, directory: Path) -> ModelFiles:
    """Looks at a model folder's top level, where every engine looks.

    Args:
        root: the mounted folder.
        directory: the model's directory in it, or the folder itself.

    Raises:
        ModelError: the folder cannot be listed.
    """
    descriptions: list[FileFacts] = []
    by_suffix: dict[str, list[FileFacts]] = {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                suffix = Path(entry.name).suffix
                is_description = entry.name in DESCRIPTION_FILES or suffix == CODE_SUFFIX
                if not is_description and suffix not in WEIGHT_SUFFIXES:
                    continue
                try:
                    status = entry.stat()
                except OSError:
                    # A dangling or looping link: engines cannot open it either.
                    continue
                if not stat.S_ISREG(status.st_mode):
                    continue
                facts = FileFacts(entry.name, status.st_size, status.st_mtime_ns, status.st_ino)
                if is_description:
                    descriptions.append(facts)
                else:
                    by_suffix.setdefault(suffix, []).append(facts)
    except OSError as e:
        raise ModelError(f"the model folder cannot be listed: {e.strerror}") from e
    weights = next((by_suffix[s] for s in WEIGHT_SUFFIXES if s in by_suffix), [])
    return ModelFiles(
        root,
        directory,
        tuple(sorted(descriptions, key=lambda f: f.name)),
        tuple(sorted(weights, key=lambda f: f.name)),
    )
