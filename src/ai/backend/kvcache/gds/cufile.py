"""cufile.json, by which cuFile is told how to read and write."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import trafaret as t

from ..errors import KVCacheError

#: The environment names another file than the usual one. Containers get the usual one.
_ENVIRONMENT = "CUFILE_ENV_PATH_JSON"
USUAL_FILE = Path("/etc/cufile.json")

#: A text, or a comment of either kind, which JSON does not have and NVIDIA's own file does.
_TEXT_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


class CufileError(KVCacheError):
    """A file that cuFile would not read either."""


@attrs.frozen
class CufileSettings:
    """What decides whether data goes past host memory. Defaults are cuFile's."""

    allow_compat_mode: bool = True
    """Whether it may go through host memory where it cannot go past."""
    force_compat_mode: bool = False
    use_pci_p2pdma: bool = False
    """Whether local NVMe does without nvidia-fs."""
    rdma_addresses: tuple[str, ...] = ()


_properties_iv = t.Dict({
    t.Key("allow_compat_mode", optional=True): t.Bool(),
    t.Key("force_compat_mode", optional=True): t.Bool(),
    t.Key("use_pci_p2pdma", optional=True): t.Bool(),
    t.Key("rdma_dev_addr_list", to_name="rdma_addresses", optional=True): t.List(t.Any()),
}).ignore_extra("*")


def usual_file() -> Path:
    """Where cuFile looks."""
    return Path(os.environ.get(_ENVIRONMENT) or USUAL_FILE)


def _without_comments(text: str) -> str:
    return _TEXT_OR_COMMENT.sub(lambda match: match[1] or " ", text)


def parse_cufile(text: str) -> CufileSettings:
    """What it says.

    Raises:
        CufileError: it cannot be read; the message goes on from its name.
    """
    try:
        document: Any = json.loads(_without_comments(text))
    except (ValueError, RecursionError) as e:
        raise CufileError(f"is no JSON: {e}") from e
    properties = document.get("properties", {}) if isinstance(document, Mapping) else None
    try:
        checked = _properties_iv.check(properties)
    except t.DataError as e:
        raise CufileError(f"has properties that cannot be used: {e.as_dict()}") from e
    # An address is a text, or a list of a text and its weight.
    addresses = checked.pop("rdma_addresses", [])
    return CufileSettings(rdma_addresses=tuple(str(a) for a in addresses), **checked)
