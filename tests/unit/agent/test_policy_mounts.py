"""Folders that the policy mounts, through the plugin's callbacks and a real HTTP server.

The store of projects is a dictionary here; test_projects.py has the real one, tests/cluster all of
the real parts.
"""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from ai.backend.agent.resources import Mount
from ai.backend.common.types import MountPermission, MountTypes

from ai.backend.kvcache.agent import storage
from ai.backend.kvcache.agent.plugin import KVCachePlugin
from ai.backend.kvcache.agent.projects import Projects
from ai.backend.kvcache.agent.storage import StorageProxies
from ai.backend.kvcache.plan.project import key_of

from .storage_server import Etcd, StorageProxy, serve

type KernelMaker = Callable[..., Any]

PROJECT = "2de2b969-1d04-48a6-af16-0bc8adb3c831"
SESSION = "f3dd774e-caa5-4753-9607-b696d11ce834"
USER = "dfa9da54-4b28-432f-be29-c0d680c7a412"

VFID = f"project:{PROJECT}/cebf99436f3746efb37451f346bdfd50"
FOLDER = f"local:volume1/{VFID}"

AUTO = {"mode": "auto", "projects": {PROJECT: {"folder": FOLDER}}}
ASKS = {"BACKENDAI_KVCACHE": "auto"}


@attrs.define
class Store:
    """Stands in for the manager's word on projects."""

    told: dict[str, bytes] = attrs.field(factory=dict)
    asked: int = 0

    async def execute_command(self, args: Sequence[str]) -> bytes | None:
        self.asked += 1
        return self.told.get(args[1])

    async def close(self) -> None:
        pass


@attrs.define
class Site:
    """The plugin among its servers."""

    plugin: KVCachePlugin
    proxy: StorageProxy
    etcd: Etcd
    store: Store
    folder: Path

    async def set(self, policy: Any) -> None:
        await self.plugin.update_plugin_config({"policy": json.dumps(policy)})


@pytest.fixture
async def site(
    plugin: KVCachePlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Site]:
    """With a folder for the project, of which the session's project is told."""
    folder = tmp_path / "project-folder"
    folder.mkdir()
    store = Store({key_of(SESSION): PROJECT.encode()})

    async def connect() -> Any:
        return store

    async with serve() as proxy:
        proxy.folders[VFID] = folder
        etcd: Any = proxy.etcd()
        monkeypatch.setattr(plugin, "_storage", StorageProxies(lambda: etcd))
        monkeypatch.setattr(plugin, "_projects", Projects(connect))
        site = Site(plugin, proxy, etcd, store, folder)
        await site.set(AUTO)
        yield site


@pytest.fixture
def service(make_kernel: KernelMaker) -> KernelMaker:
    """Model services without a KV folder of their own."""

    def make(*, session_type: str = "inference", **options: Any) -> Any:
        kernel = make_kernel(**{"with_folder": False, **options})
        kernel.context.kernel_config |= {
            "session_id": SESSION,
            "session_type": session_type,
            "owner_user_id": USER,
            # As Backend.AI 26.4 has it.
            "owner_project_id": None,
            "scaling_group": "default",
        }
        kernel.resource_spec.mounts = []
        return kernel

    return make


def plan_of(kernel: Any) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads((kernel.source_path / "plan.json").read_text())
    return plan


def mounted(folder: Path, scope: str, at: str = "/kvcache") -> list[Mount]:
    source = folder / "scopes" / scope
    return [Mount(MountTypes.BIND, source, Path(at), MountPermission.READ_WRITE)]


async def refused(kernel: Any) -> str:
    """The reason why a kernel has no KV cache, after all else was found as it was."""

    def seen() -> Any:
        return copy.deepcopy((kernel.environ, kernel.context.kernel_config))

    before = seen()
    await kernel.create()
    assert seen() == before
    assert kernel.docker_args == {}
    assert list(kernel.resource_spec.mounts) == []
    assert [path.name for path in kernel.source_path.iterdir()] == ["plan.json"]
    plan = plan_of(kernel)
    assert plan["kv_cache"] is False
    return str(plan["no_kv_cache_because"])


class TestService:
    async def test_gets_its_projects_part_of_the_folder(
        self, site: Site, service: KernelMaker
    ) -> None:
        kernel = service()
        await kernel.create()
        scope = f"project-{PROJECT}"
        assert kernel.resource_spec.mounts == mounted(site.folder, scope)
        plan = plan_of(kernel)
        assert plan["kv_cache"] is True
        assert plan["folder"] == "kv-cache"
        assert plan["storage"] == f"/kvcache/ns/{plan['namespace']['name']}"
        namespace = site.folder / "scopes" / scope / "ns" / plan["namespace"]["name"]
        assert namespace.is_dir()
        assert [path.name for path in site.folder.iterdir()] == ["scopes"]

    @pytest.mark.parametrize(
        ("sharing", "scope"), [("user", f"user-{USER}"), ("session", f"session-{SESSION}")]
    )
    async def test_gets_its_own_part(
        self, site: Site, service: KernelMaker, sharing: str, scope: str
    ) -> None:
        await site.set({**AUTO, "sharing": sharing})
        kernel = service()
        await kernel.create()
        assert kernel.resource_spec.mounts == mounted(site.folder, scope)

    async def test_that_refuses_is_left_alone(self, site: Site, service: KernelMaker) -> None:
        kernel = service(environ={"BACKENDAI_KVCACHE": "off"})
        await kernel.create()
        assert not kernel.source_path.exists()
        assert kernel.resource_spec.mounts == []
        assert (site.store.asked, site.proxy.asked) == (0, [])

    async def test_with_a_folder_of_its_own_keeps_it(
        self, site: Site, service: KernelMaker
    ) -> None:
        kernel = service(with_folder=True)
        await kernel.create()
        assert plan_of(kernel)["folder"] == "kv"
        assert kernel.resource_spec.mounts == []
        assert site.proxy.asked == []

    async def test_of_another_project_has_no_folder(self, site: Site, service: KernelMaker) -> None:
        another = "00000000-0000-4000-8000-000000000000"
        site.store.told[key_of(SESSION)] = another.encode()
        assert f"policy provision {another}" in await refused(service())
        assert site.proxy.asked == []


class TestOtherSession:
    async def test_is_left_alone(self, site: Site, service: KernelMaker) -> None:
        kernel = service(session_type="interactive")
        await kernel.create()
        assert not kernel.source_path.exists()

    async def test_that_asks(self, site: Site, service: KernelMaker) -> None:
        await site.set({"projects": {PROJECT: {"folder": FOLDER}}})
        kernel = service(session_type="interactive", environ=ASKS)
        await kernel.create()
        assert kernel.resource_spec.mounts == mounted(site.folder, f"project-{PROJECT}")

    async def test_where_the_policy_knows_no_projects(
        self, site: Site, service: KernelMaker
    ) -> None:
        await site.set({})
        kernel = service(session_type="interactive")
        await kernel.create()
        assert site.store.asked == 0


class TestProjectThatNobodyTold:
    async def test_has_a_folder_of_its_own(self, site: Site, service: KernelMaker) -> None:
        site.store.told.clear()
        reason = await refused(service())
        assert "nobody has told this agent which project the session is of" in reason

    async def test_shares_the_sites(self, site: Site, service: KernelMaker) -> None:
        site.store.told.clear()
        await site.set({"mode": "auto", "folder": FOLDER})
        assert "sharing = project needs to know" in await refused(service())

    async def test_does_not_matter_to_users_of_the_sites_folder(
        self, site: Site, service: KernelMaker
    ) -> None:
        site.store.told.clear()
        await site.set({"mode": "auto", "folder": FOLDER, "sharing": "user"})
        kernel = service()
        await kernel.create()
        assert kernel.resource_spec.mounts == mounted(site.folder, f"user-{USER}")


class TestFaults:
    async def test_of_the_storage_proxy_pass(
        self, site: Site, service: KernelMaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(storage, "FAILURE_SECONDS", 0.0)
        secret, address = site.etcd.entry["secret"], site.etcd.entry["manager_api"]
        site.etcd.entry["secret"] = "another"
        assert "refuses the secret" in await refused(service())
        # Port 1 is closed.
        site.etcd.entry |= {"secret": secret, "manager_api": "http://127.0.0.1:1"}
        assert "does not answer" in await refused(service())
        del site.etcd.entry["manager_api"]
        assert "etcd has no volumes/proxies/local" in await refused(service())
        site.etcd.entry["manager_api"] = address
        site.proxy.folders.clear()
        assert "knows no folder" in await refused(service())
        site.proxy.folders[VFID] = site.folder
        kernel = service()
        await kernel.create()
        assert kernel.resource_spec.mounts == mounted(site.folder, f"project-{PROJECT}")

    async def test_of_a_slow_one_are_waited_for_by_nobody_else(
        self, site: Site, service: KernelMaker
    ) -> None:
        site.proxy.delay_seconds = 5
        async with asyncio.timeout(4.5):
            reasons = await asyncio.gather(*(refused(service()) for _ in range(10)))
        assert all("does not answer" in reason for reason in reasons)
        # Two tries, for all of them.
        assert len(site.proxy.asked) == 2
        async with asyncio.timeout(1):
            assert await refused(service()) == reasons[0]

    async def test_of_the_volume(self, site: Site, service: KernelMaker) -> None:
        site.folder.rmdir()
        assert "not there on this node; is its volume mounted?" in await refused(service())

    async def test_link_in_the_place_of_the_scopes(
        self, site: Site, service: KernelMaker, tmp_path: Path
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        (site.folder / "scopes").symlink_to(tmp_path / "elsewhere")
        assert "cannot be prepared" in await refused(service())
        assert list((tmp_path / "elsewhere").iterdir()) == []

    async def test_of_the_model(self, site: Site, service: KernelMaker) -> None:
        kernel = service()
        kernel.context.kernel_config["mounts"] = ()
        assert "'/models' is not in a folder mounted into the session" in await refused(kernel)

    async def test_agent_whose_mounts_cannot_be_added_to(
        self, site: Site, service: KernelMaker
    ) -> None:
        kernel = service()
        kernel.resource_spec = SimpleNamespace(
            allocations=kernel.resource_spec.allocations, mounts=()
        )
        environ = dict(kernel.environ)
        await kernel.create()
        assert kernel.environ == environ
        assert "a fault of the plugin: AttributeError" in plan_of(kernel)["no_kv_cache_because"]

    async def test_of_our_own(
        self, site: Site, service: KernelMaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A bug cannot be caused otherwise.
        async def broken(*_: Any) -> None:
            raise RuntimeError("bug")

        monkeypatch.setattr(StorageProxies, "path_of", broken)
        assert await refused(service()) == "a fault of the plugin: RuntimeError('bug')"


class TestAgentThatCannotBeCaptured:
    """Callbacks outside of the agent's own method: what is known lies in the kernel's folder."""

    @pytest.mark.parametrize(
        ("policy", "with_folder", "reason"),
        [
            (AUTO, False, "it cannot change the start command"),
            ({"projects": {PROJECT: {"mode": "off"}}}, True, "has switched KV cache off"),
        ],
    )
    async def test_settings_of_the_project_apply(
        self, site: Site, service: KernelMaker, policy: Any, with_folder: bool, reason: str
    ) -> None:
        await site.set(policy)
        kernel = service(with_folder=with_folder)
        config = {**kernel.context.kernel_config, "environ": kernel.environ}
        (kernel.config_dir / "kconfig.dat").write_bytes(pickle.dumps(config))
        (kernel.config_dir / "environ.txt").write_text("A=1\n")
        kernel.source_path.mkdir()
        await site.plugin.generate_mounts(kernel.source_path, {})
        await site.plugin.generate_resource_data({})
        assert reason in plan_of(kernel)["no_kv_cache_because"]
        assert (kernel.config_dir / "environ.txt").read_text() == "A=1\n"


class TestPolicyThatChanges:
    async def test_each_session_has_one(
        self, site: Site, service: KernelMaker, tmp_path: Path
    ) -> None:
        """Twenty start while the policy changes every few milliseconds, between their waits."""
        policies, folders = {}, {}
        for i, name in enumerate(("one", "two")):
            folders[name] = tmp_path / name
            folders[name].mkdir()
            vfid = f"project:{PROJECT}/{i:032x}"
            site.proxy.folders[vfid] = folders[name]
            policies[name] = {
                "mode": "auto",
                "mount-point": f"/kv-{name}",
                "folder-name": f"folder-{name}",
                "sharing": {"one": "project", "two": "user"}[name],
                "projects": {PROJECT: {"folder": f"local:volume1/{vfid}"}},
            }
        site.proxy.delay_seconds = 0.05
        await site.set(policies["one"])

        async def change() -> None:
            while True:
                for name in ("two", "one"):
                    await asyncio.sleep(0.003)
                    await site.set(policies[name])

        async def start(kernel: Any, after: float) -> None:
            await asyncio.sleep(after)
            await kernel.create()

        kernels = [service() for _ in range(20)]
        changing = asyncio.create_task(change())
        await asyncio.gather(*(start(kernel, i * 0.002) for i, kernel in enumerate(kernels)))
        changing.cancel()
        scopes = {"one": f"project-{PROJECT}", "two": f"user-{USER}"}
        seen = set()
        for kernel in kernels:
            plan = plan_of(kernel)
            name = plan["folder"].removeprefix("folder-")
            seen.add(name)
            assert plan["storage"] == f"/kv-{name}/ns/{plan['namespace']['name']}"
            assert kernel.resource_spec.mounts == mounted(
                folders[name], scopes[name], f"/kv-{name}"
            )
            manifests = folders[name] / "scopes" / scopes[name] / ".kvcache" / "namespaces"
            assert (manifests / f"{plan['namespace']['name']}.json").exists()
        assert seen == {"one", "two"}

    async def test_that_is_bad_leaves_the_last_good(
        self, site: Site, service: KernelMaker, caplog: pytest.LogCaptureFixture
    ) -> None:
        await site.set({"mode": "auto", "projects": {PROJECT: {"folder": "somewhere"}}})
        assert "keeping the previous policy" in caplog.text
        kernel = service()
        await kernel.create()
        assert kernel.resource_spec.mounts == mounted(site.folder, f"project-{PROJECT}")
