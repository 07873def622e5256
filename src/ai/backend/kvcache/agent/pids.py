"""Which process a container is, as the host counts."""

from __future__ import annotations

from collections.abc import Collection

import aiodocker


class ContainerPids:
    """Asks Docker once for each container: a container keeps its first process for life."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._docker: aiodocker.Docker | None = None

    async def of(self, container_id: str) -> int:
        """The container's first process.

        Raises:
            aiodocker.DockerError: Docker knows no such container, or does not answer.
            ProcessLookupError: it does not run.
        """
        if container_id not in self._pids:
            if self._docker is None:
                self._docker = aiodocker.Docker()
            container = await self._docker.containers.get(container_id)
            pid = int(container["State"]["Pid"])
            if pid <= 0:
                raise ProcessLookupError(f"container {container_id[:12]} does not run")
            self._pids[container_id] = pid
        return self._pids[container_id]

    def forget(self, container_id: str) -> None:
        """Asks anew the next time."""
        self._pids.pop(container_id, None)

    def keep(self, containers: Collection[str]) -> None:
        """Forgets all others."""
        self._pids = {cid: pid for cid, pid in self._pids.items() if cid in containers}

    async def close(self) -> None:
        if self._docker is not None:
            await self._docker.close()
