"""Which versions an image holds, and what options are called in which."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from packaging.version import InvalidVersion, Version

from ..errors import EngineVersionError

#: The latest versions that are known here, by the engine's package. Later ones are taken to behave
#: as these.
NEWEST: Mapping[str, str] = {
    "vllm": "0.33.0",
    "lmcache": "0.5.6",
    "sglang": "0.5.23",
    "kvbm": "1.6.1",
}

#: What the packages are called by people.
TITLES: Mapping[str, str] = {
    "vllm": "vLLM",
    "lmcache": "LMCache",
    "sglang": "SGLang",
    "kvbm": "Dynamo KVBM",
}

#: The labels by which an image says which engine is inside, in which version.
ENGINE_LABEL = "ai.backend.kvcache.engine-version"
LMCACHE_LABEL = "ai.backend.kvcache.lmcache-version"

#: Package → the label that says its version.
LABELS: Mapping[str, str] = {
    "vllm": ENGINE_LABEL,
    "sglang": ENGINE_LABEL,
    "lmcache": LMCACHE_LABEL,
}

#: Name of the transfer buffer's size → first version of LMCache with that name, oldest first.
BUFFER_OPTIONS: Mapping[str, str] = {
    "cufile_buffer_size": "0.3.0",
    "gds_buffer_size": "0.4.4",
}

#: The same for the number of threads that read and write for the GDS backend, among the options
#: in extra_config (storage_backend/gds_backend.py; 0.5.1 knows both names, 0.5.2 only the later).
IO_THREAD_OPTIONS: Mapping[str, str] = {
    "gds_io_threads": "0.3.0",
    "disk_io_threads": "0.5.1",
}

#: The first LMCache in which GPUDirect Storage is an option of its own; before, it is
#: ``use_cufile`` in extra_config (storage_backend/gds_backend.py).
FIRST_USE_GDS = "0.4.4"

#: The first vLLM of those looked at that can be told what to do with a block that could not be
#: loaded (kv_load_failure_policy; absent in 0.12.0, and unknown fields are refused).
OLDEST_VLLM = "0.15.0"


@attrs.frozen
class Versions:
    """What is in an image."""

    packages: Mapping[str, str] = attrs.field(factory=dict)
    """Package → version. What is not here is not known."""
    is_complete: bool = False
    """Whether a package that is not among them is not in the image either."""

    def of(self, package: str) -> str | None:
        """None: not known."""
        return self.packages.get(package)

    def lacks(self, package: str) -> bool:
        """Whether it is certain that the image has no such package."""
        return self.is_complete and package not in self.packages

    def known_release(self, package: str) -> Version | None:
        """The release that counts; None where it is not known, or is no version ("nightly")."""
        version = self.packages.get(package)
        return None if version is None else release_of(version)

    def release_of(self, package: str) -> Version:
        """The release that counts; the newest where it is not known or no version."""
        return self.known_release(package) or Version(NEWEST[package])

    def named(self, packages: tuple[str, ...]) -> str:
        """Those of the packages that are known, for people."""
        return " with ".join(
            f"{TITLES[package]} {self.packages[package]}"
            for package in packages
            if package in self.packages
        )


def variable(option: str) -> str:
    """The environment variable of an option of LMCache."""
    return f"LMCACHE_{option.upper()}"


#: The buffer's size in MiB, by every name it ever had. Each version knows one of them and ignores
#: the others in silence.
BUFFER_VARIABLES = tuple(variable(name) for name in BUFFER_OPTIONS)


def release_of(version: str) -> Version | None:
    """The release that a version counts as: a candidate or a local build has its options.

    Returns:
        None where it is no version.
    """
    try:
        return Version(Version(version).base_version)
    except InvalidVersion:
        return None


def option_name(names: Mapping[str, str], release: Version) -> str:
    """What a release calls an option.

    Args:
        names: name → first version with that name, oldest first.
        release: not older than the first of them.
    """
    return [name for name, first in names.items() if release >= Version(first)][-1]


def _release(engine: str, text: str, oldest: str) -> Version:
    release = release_of(text)
    if release is None:
        raise EngineVersionError(
            f"{engine} version {text[:40]!r} is no version; write it as {oldest}"
        )
    if release < Version(oldest):
        raise EngineVersionError(f"{engine} {text} is too old; {oldest} or later is needed")
    return release


def check_lmcache(version: str) -> None:
    """Whether a version of LMCache can be used.

    Raises:
        EngineVersionError: the version is none, or too old.
    """
    _release("LMCache", version, min(BUFFER_OPTIONS.values(), key=Version))


def check_vllm(version: str) -> None:
    """Whether a version of vLLM can be used.

    Raises:
        EngineVersionError: the version is none, or too old.
    """
    _release("vLLM", version, OLDEST_VLLM)
