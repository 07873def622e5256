"""Tells one model's weights from another's without reading terabytes.

The descriptions (config, tokenizer, index) are hashed whole. Of each weight file its size, its
head (for safetensors: the names, types and offsets of all tensors), its tail and evenly spaced
blocks between are hashed. Two fine-tunes differ in nearly every block; a change that touches a
fraction ``p`` of a file's bytes in one place goes unseen with a chance of at most about
``1 - p * (SAMPLES + 1)``, so an edit of a single small tensor in place, keeping the file's size,
may go unseen.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import lru_cache
from itertools import batched
from pathlib import Path

import xxhash

from ..beneath import open_file
from ..errors import ModelError
from .config import MAX_JSON_BYTES
from .files import FileFacts, ModelFiles

#: Bytes read at the head, where a safetensors file names its tensors.
HEAD_BYTES = 64 * 2**10

#: Blocks between head and tail, and the bytes of each and of the tail.
SAMPLES = 16
SAMPLE_BYTES = 4 * 2**10


#: How many weight files are open at the same time.
OPEN_FILES = 64


def _offsets(size: int) -> list[tuple[int, int]]:
    """(offset, length) of everything that is read of a weight file of this size."""
    if size <= HEAD_BYTES + (SAMPLES + 1) * SAMPLE_BYTES:
        return [(0, size)]
    last = size - SAMPLE_BYTES
    step = (last - HEAD_BYTES) / (SAMPLES + 1)
    between = [(HEAD_BYTES + int(step * i), SAMPLE_BYTES) for i in range(1, SAMPLES + 1)]
    return [(0, HEAD_BYTES), *between, (last, SAMPLE_BYTES)]


def _announce(fd: int, size: int) -> None:
    """Has the kernel fetch the samples, without waiting for them."""
    for offset, length in _offsets(size):
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)


def _hash_weights(digest: xxhash.xxh3_128, fd: int, size: int) -> None:
    for offset, length in _offsets(size):
        digest.update(os.pread(fd, length, offset))


@lru_cache(maxsize=256)
def _fingerprint(
    root: Path, directory: Path, descriptions: tuple[FileFacts, ...], weights: tuple[FileFacts, ...]
) -> str:
    # The files' times and inodes are in the arguments so that a changed file is read again;
    # they are not in the hash, so that a copy of the model has the same fingerprint.
    digest = xxhash.xxh3_128()
    try:
        for facts in descriptions:
            digest.update(f"{facts.name}\0{facts.size}\0".encode())
            with os.fdopen(open_file(root, directory / facts.name), "rb") as file:
                digest.update(file.read(MAX_JSON_BYTES))
        for batch in batched(weights, OPEN_FILES):
            with ExitStack() as stack:
                opened: list[tuple[FileFacts, int]] = []
                for facts in batch:
                    fd = open_file(root, directory / facts.name)
                    stack.callback(os.close, fd)
                    opened.append((facts, fd))
                # Samples are small and far apart: a disk or a file server is asked for all at once.
                for facts, fd in opened:
                    _announce(fd, facts.size)
                for facts, fd in opened:
                    digest.update(f"{facts.name}\0{facts.size}\0".encode())
                    _hash_weights(digest, fd, facts.size)
    except OSError as e:
        raise ModelError(f"{facts.name} of the model cannot be read: {e.strerror}") from e
    return digest.hexdigest()


def fingerprint(files: ModelFiles) -> str:
    """32 hex digits that say which weights, tokenizer and configuration these are.

    The same for a copy elsewhere; remembered by path, size, time and inode, so that a restart of
    a session costs only the listing of the folder.

    Raises:
        ModelError: a file cannot be read.
    """
    return _fingerprint(files.root, files.directory, files.descriptions, files.weights)
