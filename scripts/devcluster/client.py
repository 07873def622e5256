"""The cluster as its users meet it, through Backend.AI's own client library.

Runs in the environment that `scripts/cluster up` makes; everything else here runs before that.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from http import HTTPStatus
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendAPIError
from ai.backend.client.session import Session as ApiSession
from ai.backend.common.dto.manager.session.types import MountOption
from ai.backend.common.types import MountPermission

from . import configuration, images, settings
from .console import SetupError

SMALL_IMAGE = f"local/{images.SMALL}"

type Variables = Mapping[str, str]

_READ_ONLY = MountOption(permission=MountPermission.READ_ONLY)

_SESSION_QUERY = """
query($id: UUID!) {
  compute_session(id: $id) { status containers { id container_id live_stat } }
}
"""

_SESSIONS_QUERY = """
query { compute_session_list(limit: 100, offset: 0) { items { id status } } }
"""

_SERVICES_QUERY = """
query { endpoint_list(limit: 100, offset: 0) { items { endpoint_id name lifecycle_stage } } }
"""

_ENDED = frozenset({"TERMINATED", "CANCELLED", "ERROR"})


def wait_until[T](what: str, probe: Callable[[], T | None], timeout: float, every: float = 1) -> T:
    """Asks until there is an answer other than None.

    Raises:
        SetupError: there was none within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while (answer := probe()) is None:
        if time.monotonic() > deadline:
            raise SetupError(f"{what}: nothing within {timeout:.0f} s")
        time.sleep(every)
    return answer


def model_definition(start_command: list[str], port: int = 8000) -> str:
    """The model-definition.yaml of a model folder that is served by the given command."""
    service = {
        "start_command": start_command,
        "port": port,
        # Probing starts at once; the delay is how long a loading engine is given.
        "health_check": {"path": "/health", "interval": 5, "initial_delay": 300},
    }
    return yaml.safe_dump({
        "models": [{"name": "model", "model_path": "/models", "service": service}]
    })


class Client:
    """One user of the cluster."""

    def __init__(self, api: ApiSession) -> None:
        # To a type checker its functions are coroutines; in a synchronous session they are not.
        self.api: Any = api

    def ensure_folder(self, name: str, usage_mode: str = "general") -> Path:
        """Makes a folder if there is none of that name; returns its path on this machine."""
        present = {folder["name"]: folder for folder in self.api.VFolder.list()}
        folder: Mapping[str, str] = present.get(name) or self.api.VFolder.create(
            name, usage_mode=usage_mode
        )
        scope = folder["quota_scope_id"].partition(":")[2].replace("-", "")
        return settings.VOLUME / scope / folder["id"][:2] / folder["id"][2:4] / folder["id"][4:]

    def upload(self, folder: str, directory: Path, files: Sequence[Path]) -> None:
        """Uploads files at the top of a directory into a folder."""
        # The client library prints a bar for each file, whatever it is told.
        with (
            Path(os.devnull).open("w") as nowhere,
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
        ):
            self.api.VFolder(folder).upload(files, basedir=directory)

    def start_session(
        self,
        name: str,
        *,
        image: str = SMALL_IMAGE,
        project: str = "default",
        mounts: Mapping[str, str | None],
        environ: Variables | None = None,
        resources: Mapping[str, str | int] | None = None,
        resource_opts: Mapping[str, str | int] | None = None,
        read_only: tuple[str, ...] = (),
    ) -> str:
        """Asks for an interactive session and returns its id.

        Args:
            mounts: folder name → path in the container; None: under /home/work.
            read_only: the folders among them that are mounted read-only.
        """
        session = self.api.ComputeSession.get_or_create(
            image,
            name=name,
            group_name=project,
            no_reuse=True,
            mounts=list(mounts),
            mount_map={folder: path for folder, path in mounts.items() if path},
            mount_options=dict.fromkeys(read_only, _READ_ONLY),
            envs=dict(environ or {}),
            resources={"cpu": 1, "mem": "512m", **(resources or {})},
            resource_opts=dict(resource_opts or {}),
            enqueue_only=True,
        )
        return str(session.id)

    def session(self, session_id: str) -> Mapping[str, Any]:
        """Status and kernels of a session, as the manager reports them."""
        answer = self.api.Admin.query(_SESSION_QUERY, {"id": session_id})["compute_session"]
        return dict(answer or {"status": "TERMINATED", "containers": []})

    def wait_for_container(self, session_id: str, timeout: float = 120) -> Mapping[str, str]:
        """Waits until the session runs; returns its main kernel: id and container_id."""

        def running() -> Mapping[str, str] | None:
            session = self.session(session_id)
            if session["status"] in _ENDED:
                raise SetupError(f"Session {session_id} has ended: {session['status']}")
            if session["status"] != "RUNNING":
                return None
            kernel: Mapping[str, str] = session["containers"][0]
            return kernel

        return wait_until(f"Session {session_id}", running, timeout)

    def live_stat(self, session_id: str) -> dict[str, str]:
        """Metric name → current value, as the manager reports it."""
        containers = self.session(session_id)["containers"]
        statistics = json.loads((containers and containers[0]["live_stat"]) or "{}")
        return {name: str(metric["current"]) for name, metric in statistics.items()}

    def active_sessions(self) -> list[str]:
        """The ids of this user's sessions that have not ended."""
        items = self.api.Admin.query(_SESSIONS_QUERY, {})["compute_session_list"]["items"]
        return [str(item["id"]) for item in items if item["status"] not in _ENDED]

    def _has_ended(self, session_id: str) -> bool:
        return self.session(session_id)["status"] in _ENDED

    def stop_sessions(self, session_ids: Sequence[str], timeout: float = 120) -> None:
        """Ends them all at the same time, and waits for it."""
        ending = [s for s in session_ids if not self._has_ended(s)]
        for session_id in ending:
            self.api.ComputeSession.from_session_id(UUID(session_id)).destroy(forced=True)

        def ended() -> bool | None:
            return all(map(self._has_ended, ending)) or None

        wait_until(f"The end of {', '.join(ending)}", ended, timeout)

    def stop_session(self, session_id: str) -> None:
        self.stop_sessions([session_id])

    def ensure_service(self, name: str, **options: Any) -> str:
        """Creates a model service if there is none of that name; returns its id."""
        if service_id := self.services().get(name):
            return service_id
        created = self.api.Service.create(
            service_name=name,
            initial_session_count=1,
            domain_name="default",
            group_name="default",
            scaling_group="default",
            expose_to_public=True,
            extra_mount_options={},
            **options,
        )
        return str(created["endpoint_id"])

    def services(self) -> dict[str, str]:
        """Name → id of the services that are not gone or going."""
        answer = self.api.Admin.query(_SERVICES_QUERY, {})["endpoint_list"]["items"]
        return {
            service["name"]: service["endpoint_id"]
            for service in answer
            if not service["lifecycle_stage"].upper().endswith(("DESTROYING", "DESTROYED"))
        }

    def scale_service(self, service_id: str, replicas: int) -> None:
        self.api.Service(service_id).scale(replicas)

    def _service(self, service_id: str) -> Mapping[str, Any]:
        """What the manager says of a service; nothing while it is still being set up."""
        try:
            return dict(self.api.Service(service_id).info())
        except BackendAPIError as e:
            # A service that has no active revision yet is "not found".
            if e.status != HTTPStatus.NOT_FOUND:
                raise
            return {}

    def service_sessions(self, service_id: str) -> list[str]:
        """The running sessions of a service's replicas."""
        routes = self._service(service_id).get("active_routes", ())
        # A replica that failed stays listed beside the one that replaced it.
        sessions = [str(route["session_id"]) for route in routes if route["session_id"]]
        return [s for s in sessions if self.session(s)["status"] == "RUNNING"]

    def service_session(self, service_id: str) -> str | None:
        """The running session of a service's only replica; None while there is none."""
        return next(iter(self.service_sessions(service_id)), None)

    def service_url(self, service_id: str) -> str | None:
        """The public address without a slash at its end; None while there is none."""
        url = self._service(service_id).get("service_endpoint")
        return str(url).rstrip("/") if url else None

    def delete_service(self, service_id: str) -> None:
        try:
            self.api.Service(service_id).delete()
        except BackendAPIError as e:
            raise SetupError(f"Service {service_id} cannot be deleted: {e}") from e


@contextmanager
def connect(role: str = "user") -> Iterator[Client]:
    """A client with the keys of one of the cluster's users."""
    environment = configuration.client_environment(role)
    config = APIConfig(
        endpoint=environment["BACKEND_ENDPOINT"],
        endpoint_type=environment["BACKEND_ENDPOINT_TYPE"],
        access_key=environment["BACKEND_ACCESS_KEY"],
        secret_key=environment["BACKEND_SECRET_KEY"],
        domain="default",
        group="default",
    )
    with ApiSession(config=config) as api:
        yield Client(api)
