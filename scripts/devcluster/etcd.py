"""Backend.AI's shared settings, in etcd."""

from __future__ import annotations

from .command import run
from .settings import HOST, PORTS, values

_PREFIX = "/sorna/local"


def write() -> None:
    """Writes all keys that the daemons need. The same values may be written any number of times."""
    for key, value in _keys().items():
        put(key, value)


def put(key: str, value: str) -> None:
    _etcdctl("put", f"{_PREFIX}/{key}", value)


def get(key: str) -> str | None:
    """None: there is no such key."""
    return _etcdctl("get", "--print-value-only", f"{_PREFIX}/{key}").removesuffix("\n") or None


def delete(key: str) -> None:
    _etcdctl("del", f"{_PREFIX}/{key}")


def _etcdctl(*arguments: str) -> str:
    endpoint = f"--endpoints={HOST}:{PORTS['etcd']}"
    return run(["etcdctl", endpoint, *arguments], env={"ETCDCTL_API": "3"})


def _keys() -> dict[str, str]:
    return {
        "config/redis/addr": f"{HOST}:{PORTS['redis']}",
        "config/redis/redis_helper_config/socket_timeout": "5.0",
        "config/redis/redis_helper_config/socket_connect_timeout": "2.0",
        "config/redis/redis_helper_config/reconnect_poll_timeout": "0.3",
        "config/api/allow-graphql-schema-introspection": "yes",
        "config/plugins/accelerator/mock/allocation_mode": "discrete",
        "volumes/_types/user": "",
        "volumes/_types/group": "",
        "volumes/default_host": "local:volume1",
        "volumes/exposed_volume_info": "percentage",
        "volumes/proxies/local/client_api": f"http://{HOST}:{PORTS['storage_client']}",
        "volumes/proxies/local/manager_api": f"http://{HOST}:{PORTS['storage_manager']}",
        "volumes/proxies/local/secret": values()["storage_secret"],
        "volumes/proxies/local/ssl_verify": "false",
    }
