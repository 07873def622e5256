"""What options are called, by version of the engine."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from packaging.version import InvalidVersion, Version

from ..errors import EngineVersionError

#: What this package was made and tested with.
DEFAULT_LMCACHE = "0.5.6"
DEFAULT_VLLM = "0.32.0"

#: Name of the transfer buffer's size → first version of LMCache with that name, oldest first.
BUFFER_OPTIONS: Mapping[str, str] = {
    "cufile_buffer_size": "0.3.0",
    "gds_buffer_size": "0.4.4",
}

#: The first vLLM of those looked at that can be told to compute what could not be loaded
#: (kv_load_failure_policy; absent in 0.12.0, and unknown fields are refused).
OLDEST_VLLM = "0.15.0"


@attrs.frozen
class Versions:
    """What is in an image. None: not known."""

    vllm: str | None = None
    lmcache: str | None = None


def variable(option: str) -> str:
    """The environment variable of an option of LMCache."""
    return f"LMCACHE_{option.upper()}"


def release_of(version: str) -> Version | None:
    """The release that a version counts as: a candidate or a local build has its options.

    Returns:
        None where it is no version.
    """
    try:
        return Version(Version(version).base_version)
    except InvalidVersion:
        return None


def _release(engine: str, text: str, oldest: str) -> Version:
    release = release_of(text)
    if release is None:
        raise EngineVersionError(
            f"{engine} version {text[:40]!r} is no version; write it as {oldest}"
        )
    if release < Version(oldest):
        raise EngineVersionError(f"{engine} {text} is too old; {oldest} or later is needed")
    return release


def buffer_option(version: str) -> str:
    """What a version of LMCache calls its transfer buffer.

    Args:
        version: such as ``0.4.3``.

    Raises:
        EngineVersionError: the version is none, or too old to have one.
    """
    release = _release("LMCache", version, min(BUFFER_OPTIONS.values(), key=Version))
    return [name for name, first in BUFFER_OPTIONS.items() if release >= Version(first)][-1]


def check_vllm(version: str) -> None:
    """Whether a version of vLLM can be used.

    Raises:
        EngineVersionError: the version is none, or too old.
    """
    _release("vLLM", version, OLDEST_VLLM)
