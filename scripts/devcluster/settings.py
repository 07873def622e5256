"""Names, ports and secrets of the cluster. The secrets are public: it listens on loopback only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

from .paths import CACHE, CLONE, STATE, digest_of

VERSION = "26.4.16"
PYTHON = "3.13"

TEMPLATES = CLONE / "configs" / "cluster"
CONFIG = STATE / "config"
DATA = STATE / "data"
LOGS = STATE / "logs"
RUN = STATE / "run"
IPC = STATE / "ipc"
VENV = STATE / "venv"
VOLUME = DATA / "volume1"
#: What the web server serves: the WebUI, and the pages that plugins add to it.
WEB_STATIC = STATE / "web"

HOST = "127.0.0.1"

#: None is a usual one: a PostgreSQL or Backend.AI of the machine's own stays undisturbed.
PORTS: Mapping[str, int] = {
    "postgres": 18100,
    "redis": 18110,
    "etcd": 18120,
    "etcd_peer": 18121,
    "prometheus": 18130,
    "manager": 18201,
    "manager_internal": 18202,
    "storage_client": 18211,
    "storage_manager": 18212,
    "storage_internal": 18213,
    "agent_rpc": 18221,
    "agent_internal": 18222,
    "agent_sock": 18223,
    "agent_metadata": 18224,
    "coordinator": 18231,
    "worker": 18232,
    "gateway": 18261,
    "web": 18262,
    "manager_monitor": 18241,
    "manager_monitor_web": 18242,
    "agent_monitor": 18243,
    "agent_monitor_web": 18244,
    "storage_monitor": 18245,
    "storage_monitor_web": 18246,
    "coordinator_monitor": 18247,
    "coordinator_monitor_web": 18248,
    "worker_monitor": 18249,
    "worker_monitor_web": 18250,
    #: Public addresses of model services and applications.
    "apps_first": 18300,
    "apps_last": 18399,
    #: Where containers' service ports appear on the host.
    "kernels_first": 18400,
    "kernels_last": 18899,
}

DB_USER = "postgres"
DB_PASSWORD = "develove"
REGISTRY_PROJECT = "stable"

#: Tells the containers of this clone's agent from those of any other agent on the machine.
AGENT_ID = f"i-{digest_of(str(CLONE))[:8]}"

#: Two cores are offered as eight, so that several small sessions run side by side.
CPU_OVERCOMMIT = 4

#: The seconds between two measurements, on the agent and in Prometheus.
STAT_INTERVAL = 5


def manager_url() -> str:
    return f"http://{HOST}:{PORTS['manager']}"


def web_url() -> str:
    return f"http://{HOST}:{PORTS['web']}"


def values() -> dict[str, str]:
    """What the placeholders in the configuration templates stand for."""
    return {
        **{f"{name}_port": str(port) for name, port in PORTS.items()},
        "host": HOST,
        "config": str(CONFIG),
        "data": str(DATA),
        "ipc": str(IPC),
        "state": str(STATE),
        "volume": str(VOLUME),
        "web_static": str(WEB_STATIC),
        "cache": str(CACHE),
        "agent_id": AGENT_ID,
        "db_user": DB_USER,
        "db_password": DB_PASSWORD,
        "registry_project": REGISTRY_PROJECT,
        "stat_interval": str(STAT_INTERVAL),
        "alert_rules": str(CLONE / "configs/prometheus/kvcache-alerts.yml"),
        "storage_secret": "storage-proxy-of-a-development-cluster",
        "proxy_api_secret": "app-proxy-of-a-development-cluster",
        "proxy_jwt_secret": "app-proxy-tokens-of-a-development-cluster",
        "proxy_permit_secret": "app-proxy-permits-of-a-development-cluster",
    }


def rendered(template: Path) -> str:
    """A template's text with every placeholder filled in; an unknown one is a programming error."""
    return Template(template.read_text()).substitute(values())
