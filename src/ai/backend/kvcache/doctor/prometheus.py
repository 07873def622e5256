"""Prometheus, which the manager asks for the figures of sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .check import Finding, ok, skipped, warning
from .config_file import ConfigError
from .etcd import EtcdError
from .loops import run
from .network import Answer, UnreachableError, get_json

if TYPE_CHECKING:
    from .host import Host

#: Where the manager looks when nobody told it.
_DEFAULT_ADDRESS = "127.0.0.1:9090"

_LOST = "sessions run, and `kvcache status`, live_stat and the WebUI have no figures of them"


def address_of(levels: Sequence[Mapping[str, Any]]) -> str:
    """The manager's address of Prometheus, as host:port; of several, the last one said counts."""
    address: Any = _DEFAULT_ADDRESS
    for level in levels:
        address = level.get("addr", level.get("address", address))
    if isinstance(address, Mapping):
        return f"{address.get('host')}:{address.get('port')}"
    return str(address)


def judge_answer(address: str, answer: Answer) -> Finding:
    """Whether it is a Prometheus."""
    body = answer.body
    if answer.status == 200 and isinstance(body, dict) and body.get("status") == "success":
        return ok(address)
    return warning(
        f"what answers at {address} is no Prometheus (status {answer.status}): {_LOST}",
        "correct [metric] addr in manager.toml, or config/metric/addr in etcd",
    )


def look_at_prometheus(host: Host) -> Finding:
    file = host.manager_file
    if file is None:
        return skipped("there is no manager.toml")
    try:
        levels = [file.document().get("metric") or {}, *host.etcd().metric]
    except (ConfigError, EtcdError):
        return skipped("its address is in etcd, which was not asked")
    address = address_of(levels)
    try:
        answer = run(get_json(f"http://{address}/api/v1/query?query=vector(1)"))
    except UnreachableError as e:
        return warning(
            f"{address}: {e}: {_LOST}",
            "start it, or correct [metric] addr in manager.toml, or config/metric/addr in etcd",
        )
    return judge_answer(address, answer)
