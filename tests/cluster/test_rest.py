"""What the real manager answers under /kvcache, to whom, and what it writes."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import requests
from ai.backend.common.etcd import AsyncEtcd, ConfigScopes
from ai.backend.common.types import HostPortPair

from ai.backend.kvcache.manager.body import MAX_BODY_BYTES
from ai.backend.kvcache.manager.errors import InvalidRequestError, PolicyConflictError
from ai.backend.kvcache.manager.policy_store import PolicyStore
from ai.backend.kvcache.manager.routes import ROUTES
from ai.backend.kvcache.policy.place import provisioned_place
from ai.backend.kvcache.policy.policy import ETCD_KEY
from ai.backend.kvcache.policy.settings import SETTINGS
from devcluster import command, etcd, settings
from devcluster.client import Client, connect, wait_until

from .conftest import RunningSession, new_folders, session_starter
from .projects import OTHER_USER, VOLUME, find_project, project_admin
from .rest import BASE, Answer, Signed, ask

PARTS = {
    "session_id": uuid.UUID(int=6),
    "digest": "0123456789abcdef",
    "name": "page.js",
    "host": "local:volume1",
    "project": uuid.UUID(int=8),
}
PATHS = [(method, path.format_map(PARTS)) for method, path, _ in ROUTES]
FOR_SUPERADMINS = [
    (method, path)
    for method, path in PATHS
    if path.startswith(("/policy", "/folders", "/projects"))
]


def policy() -> dict[str, Any]:
    answer = ask("admin", "GET", "/policy")
    assert answer.status == HTTPStatus.OK
    stored: dict[str, Any] = answer.body
    return stored


def patch(change: dict[str, Any], **body: Any) -> Answer:
    return ask("admin", "PATCH", "/policy", {"patch": change, **body})


def version() -> str:
    return str(policy()["version"])


class TestWhoMay:
    @pytest.mark.parametrize(("method", "path"), PATHS)
    def test_nobody_unsigned(self, method: str, path: str) -> None:
        answer = ask(None, method, path, {})
        assert answer.status == HTTPStatus.UNAUTHORIZED
        assert answer.body["error_code"] == "user_auth_unauthorized"

    @pytest.mark.parametrize("role", ["user", "domain-admin"])
    @pytest.mark.parametrize(("method", "path"), FOR_SUPERADMINS)
    def test_others_than_superadmins(self, role: str, method: str, path: str) -> None:
        answer = ask(role, method, path, {"version": version(), "policy": {}, "patch": {}})
        assert answer.status == HTTPStatus.FORBIDDEN
        assert answer.body["error_code"] == "backendai_generic_forbidden"

    def test_everybody_may_read_the_document(self) -> None:
        answer = ask("user", "GET", "/openapi.json")
        assert (answer.status, answer.body["openapi"]) == (HTTPStatus.OK, "3.1.0")


@pytest.fixture
def kept_policy() -> Iterator[dict[str, Any]]:
    """What is stored, which is there again afterwards."""
    before = policy()
    yield before
    if before["policy"]:
        etcd.put(ETCD_KEY, json.dumps(before["policy"]))
    else:
        etcd.delete(ETCD_KEY)


@pytest.fixture
def group(kept_policy: dict[str, Any]) -> str:
    """A resource group that is not there: what is said for it changes nothing for anybody."""
    return f"test-{uuid.uuid4().hex[:8]}"


class TestPolicy:
    def test_has_all_settings(self) -> None:
        assert [setting["name"] for setting in policy()["settings"]] == list(SETTINGS)
        assert policy()["settings"][0]["choices"] == ["explicit", "auto", "off"]

    def test_what_is_put_is_there(self, group: str) -> None:
        before = policy()
        wanted = {**before["policy"], "resource-groups": {group: {"mode": "off"}}}
        answer = ask("admin", "PUT", "/policy", {"version": before["version"], "policy": wanted})
        assert answer.status == HTTPStatus.OK
        assert answer.body["version"] != before["version"]
        assert answer.body == policy() == {**before, "policy": wanted, "version": version()}

    def test_two_admins_at_the_same_time(self, group: str) -> None:
        before = policy()

        def put(tier: str) -> Answer:
            document = {**before["policy"], "resource-groups": {group: {"cpu-tier": tier}}}
            return ask(
                "admin", "PUT", "/policy", {"version": before["version"], "policy": document}
            )

        with ThreadPoolExecutor() as pool:
            answers = list(pool.map(put, ["1GiB", "2GiB"]))
        (winner,) = (answer for answer in answers if answer.status == HTTPStatus.OK)
        (loser,) = (answer for answer in answers if answer.status == HTTPStatus.CONFLICT)
        assert loser.body["error_code"] == "plugin_update_conflict"
        assert policy() == winner.body

    def test_changes_without_a_version_are_all_kept(self, group: str) -> None:
        names = ["io-threads", "concurrent-transfers", "cpu-tier", "mode"]

        def change(name: str) -> int:
            said = {name: "off" if name in ("cpu-tier", "mode") else 3}
            return patch({"resource-groups": {group: said}}).status

        with ThreadPoolExecutor() as pool:
            assert set(pool.map(change, names)) == {HTTPStatus.OK}
        assert set(policy()["policy"]["resource-groups"][group]) == set(names)

    def test_a_change_of_another_version(self, group: str) -> None:
        old = version()
        assert patch({"resource-groups": {group: {"mode": "off"}}}).status == HTTPStatus.OK
        answer = patch({"resource-groups": {group: {"mode": "auto"}}}, version=old)
        assert answer.status == HTTPStatus.CONFLICT
        assert policy()["policy"]["resource-groups"][group] == {"mode": "off"}
        answer = patch({"resource-groups": {group: {"mode": "auto"}}}, version=version())
        assert answer.status == HTTPStatus.OK
        assert policy()["policy"]["resource-groups"][group] == {"mode": "auto"}

    @pytest.mark.parametrize("method", ["PUT", "PATCH"])
    def test_what_cannot_be_used(self, method: str) -> None:
        before = policy()
        document = {
            "mode": "sometimes",
            "speed": 5,
            "resource-groups": {"g": {"io-threads": 0}},
        }
        key = "policy" if method == "PUT" else "patch"
        answer = ask("admin", method, "/policy", {"version": before["version"], key: document})
        assert answer.status == HTTPStatus.BAD_REQUEST
        for named in (
            "mode = 'sometimes': must be one of explicit, auto, off",
            "speed = 5: speed is not allowed key",
            "resource-groups.g.io-threads = 0: value is less than 1",
        ):
            assert named in answer.message
        assert policy() == before

    def test_a_body_that_is_too_large(self) -> None:
        content = b'{"patch": {"%s": 1}}' % (b"x" * MAX_BODY_BYTES)
        response = requests.patch(f"{BASE}/policy", content, auth=Signed("admin"), timeout=30)
        assert response.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        assert response.json()["msg"] == "more than 2097152 bytes"

    def test_one_that_was_written_past_the_routes(self, group: str) -> None:
        """What it says goes, and a change repairs it."""
        etcd.put(ETCD_KEY, "[no policy")
        stored = policy()
        assert stored["policy"] == {}
        assert stored["problem"].startswith(f"{ETCD_KEY} holds no usable JSON")
        for path in ("/projects", "/folders"):
            answer = ask("admin", "GET", path)
            assert answer.status == HTTPStatus.CONFLICT
            assert answer.message == stored["problem"]
        assert patch({"resource-groups": {group: {"mode": "off"}}}).body["problem"] is None


@pytest.fixture
async def store() -> Any:
    """A key of its own, which is not there."""
    key = f"test/{uuid.uuid4().hex}"
    address = HostPortPair(settings.HOST, settings.PORTS["etcd"])
    connection = AsyncEtcd(address, "local", {ConfigScopes.GLOBAL: ""})
    async with connection:
        yield PolicyStore(connection, key)
        await connection.delete(key)


class TestFirstPolicy:
    """Where no key is there yet, which the tests above cannot be sure of."""

    async def test_only_one_can_be_the_first(self, store: PolicyStore) -> None:
        absent = await store.read()
        assert absent.document == {}
        first = await store.change(lambda _: {"mode": "off"}, absent.version)
        assert await store.read() == first
        with pytest.raises(PolicyConflictError):
            await store.change(lambda _: {"mode": "auto"}, absent.version)
        assert (await store.read()).document == {"mode": "off"}

    async def test_a_key_that_came_between(self, store: PolicyStore) -> None:
        """Who saw none does not write over it, but makes the change anew."""
        await store.read()

        seen: list[dict[str, Any]] = []

        def make(document: dict[str, Any]) -> dict[str, Any]:
            seen.append(document)
            if len(seen) == 1:
                etcd.put(store._key, '{"io-threads": 2}')
            return {**document, "mode": "off"}

        changed = await store.change(make)
        assert seen == [{}, {"io-threads": 2}]
        assert changed.document == {"io-threads": 2, "mode": "off"}

    async def test_a_key_that_went_away(self, store: PolicyStore) -> None:
        stored = await store.change(lambda _: {"mode": "off"})
        etcd.delete(store._key)
        with pytest.raises(PolicyConflictError):
            await store.change(lambda _: {"mode": "auto"}, stored.version)
        assert (await store.read()).text is None

    async def test_what_is_no_policy_is_not_written(self, store: PolicyStore) -> None:
        with pytest.raises(InvalidRequestError, match="sometimes"):
            await store.change(lambda _: {"mode": "sometimes"})
        assert (await store.read()).text is None


def listed(session_id: str, role: str) -> dict[str, Any] | None:
    answer = ask(role, "GET", "/sessions")
    assert answer.status == HTTPStatus.OK
    return next((s for s in answer.body["sessions"] if s["id"] == session_id), None)


@pytest.fixture(scope="module")
def session(client: Client, model_folder: tuple[str, Path]) -> Iterator[RunningSession]:
    """One of "user", with a plan and with what can be measured where no engine runs."""
    with new_folders(client, model_folder[0]) as folders, session_starter(client) as start:
        session = start(folders.mounts)
        wait_until("Its figures", lambda: measured(session), 60)
        yield session


def measured(session: RunningSession) -> dict[str, Any] | None:
    found = listed(session.id, "user")
    return found if found and found["plan"] and "kvcache_mem" in found["figures"] else None


class TestSessions:
    def test_its_owner_sees_it(self, client: Client, session: RunningSession) -> None:
        found = measured(session)
        assert found is not None
        plan = session.plan()
        assert found["plan"] == {
            "kv_cache": True,
            "no_kv_cache_because": None,
            "folder": plan["folder"],
            "engine": plan["engine"],
            "folder_cap_bytes": plan["folder_cap_bytes"],
            "host_bytes": plan["host_bytes"],
        }
        assert (found["user"], found["project"]["name"]) == ("user@lablup.com", "default")
        assert found["status"] == "RUNNING"
        assert 0 < found["age_seconds"] < 600
        live = client.live_stat(session.id)
        keys = [key for key in live if key.startswith("kvcache_")]
        assert sorted(found["figures"]) == sorted(keys)
        assert found["figures"]["kvcache_mem"] == float(live["kvcache_mem"])

    @pytest.mark.parametrize("role", ["admin", "domain-admin"])
    def test_admins_see_it(self, session: RunningSession, role: str) -> None:
        found, own = listed(session.id, role), listed(session.id, "user")
        assert found is not None
        assert own is not None
        assert found["plan"] == own["plan"]

    def test_others_do_not(self, session: RunningSession) -> None:
        assert listed(session.id, "other-user") is None

    def test_an_admin_of_the_project_sees_it(self, session: RunningSession) -> None:
        default = find_project("default")
        assert default is not None
        with project_admin(default, OTHER_USER):
            assert listed(session.id, "other-user") is not None
        assert listed(session.id, "other-user") is None

    def test_of_a_plan_that_is_none_nothing_is_shown(self, session: RunningSession) -> None:
        key = f"kvcache.plan.{session.kernel_id}"
        redis = ["redis-cli", "-p", str(settings.PORTS["redis"]), "--raw"]
        stored = command.run([*redis, "get", key]).strip()
        command.run([*redis, "set", key, '{"kv_cache": "yes"}', "ex", "60"])
        try:
            found = listed(session.id, "user")
            assert found is not None
            assert found["plan"] is None
        finally:
            command.run([*redis, "set", key, stored, "ex", "3600"])


@pytest.fixture
def model_store(kept_policy: dict[str, Any]) -> str:
    """The id of a project in which nobody runs sessions."""
    projects = ask("admin", "GET", "/projects").body["projects"]
    (project,) = (project["id"] for project in projects if project["name"] == "model-store")
    return str(project)


class TestProjects:
    def test_what_applies_to_them(self, model_store: str) -> None:
        patch({"projects": {model_store: {"mode": "off", "cpu-tier": "1GiB"}}})
        projects = ask("admin", "GET", "/projects").body["projects"]
        found = {project["id"]: project for project in projects}
        assert found[model_store] == {
            "id": model_store,
            "name": "model-store",
            "domain": "default",
            "mode": "off",
            "said": {"mode": "off", "cpu-tier": "1GiB"},
        }
        (default,) = (project for project in projects if project["name"] == "default")
        assert default["said"] == policy()["policy"].get("projects", {}).get(default["id"], {})


class TestFolders:
    def test_what_lies_in_them(self, model_store: str) -> None:
        gone = str(uuid.uuid4())
        name = f"kv-{uuid.uuid4().hex[:8]}"
        with connect("user") as user:
            path = user.ensure_folder(name)
            (folder,) = (f for f in user.api.VFolder.list() if f["name"] == name)
        (path / "block").write_bytes(b"x" * 10_000)
        (path / "other").write_bytes(b"x" * 234)
        place = f"local:volume1/{folder['quota_scope_id']}/{folder['id'].replace('-', '')}"
        nowhere = str(provisioned_place(VOLUME, gone))
        try:
            patch({
                "projects": {
                    model_store: {"folder": place, "folder-cap": "2MiB"},
                    gone: {"folder": nowhere},
                }
            })
            found = {f["project"]["id"]: f for f in ask("admin", "GET", "/folders").body["folders"]}
        finally:
            with connect("user") as user:
                user.api.VFolder(name).delete()
        assert found[model_store] == {
            "project": {"id": model_store, "name": "model-store"},
            "place": place,
            "provisioned": False,
            "cap_bytes": 2 * 2**20,
            "used_bytes": 10_234,
            "files": 2,
        }
        assert found[gone] == {
            "project": {"id": gone, "name": None},
            "place": nowhere,
            "provisioned": True,
            "cap_bytes": None,
            "used_bytes": None,
            "files": None,
        }


def plan(**asked: Any) -> Answer:
    return ask("user", "POST", "/plan", asked)


def printed(*arguments: str | Path) -> Any:
    """What the command prints."""
    program = Path(sys.executable).with_name("backend.ai")
    argv = [program, "kvcache", "plan", *arguments, "--format", "json"]
    return json.loads(command.run(argv))


class TestPlan:
    def test_of_the_catalog(self) -> None:
        answer = plan(model="devstral-2-123b", gpus=8, gpu_memory="80GiB", max_model_len=131072)
        assert answer.status == HTTPStatus.OK
        assert answer.body["budget"]["offload"] is True
        assert answer.body == printed(
            "devstral-2-123b", "--gpus", "8", "--gpu-memory", "80GiB", "--max-model-len", "131072"
        )

    def test_of_a_description_with_all_options(self, tmp_path: Path) -> None:
        data = Path(__file__).parents[1] / "data" / "models" / "devstral-2-123b.config.json"
        config = json.loads(data.read_text())
        (tmp_path / "config.json").write_text(json.dumps(config))
        options: dict[str, Any] = {
            "gpus": 8,
            "gpu_memory": "141GiB",
            "tensor_parallel": 4,
            "pipeline_parallel": 2,
            "decode_context_parallel": 1,
            "gpu_memory_utilization": 0.85,
            "max_model_len": 65536,
            "kv_cache_dtype": "fp8",
            "weights": "128GiB",
            "overhead": "3GiB",
            "concurrent_transfers": 1,
            "context": 32768,
            "chunk_size": 512,
            "lmcache_version": "0.4.3",
            "vllm_version": "0.20.0",
        }
        answer = plan(model=config, pin_utilization=True, **options)
        assert answer.status == HTTPStatus.OK
        flags = [
            part
            for name, value in options.items()
            for part in (f"--{name.replace('_', '-')}", str(value))
        ]
        assert answer.body == printed(tmp_path / "config.json", "--pin-utilization", *flags)

    def test_that_says_no(self) -> None:
        answer = plan(model="qwen3-8b", gpus=1, gpu_memory="8GiB")
        assert answer.status == HTTPStatus.OK
        assert answer.body["budget"]["offload"] is False
        assert answer.body["budget"]["reasons"]

    @pytest.mark.parametrize(
        ("asked", "message"),
        [
            ({}, "model: is required"),
            ({"model": "no-such-model"}, "no model of the catalog"),
            ({"model": "/etc/passwd"}, "no model of the catalog"),
            ({"model": {}}, "config.json: model_type is missing"),
            ({"model": "qwen3-8b", "gpus": 1.5}, "gpus: is neither a number of GPUs nor a part"),
            ({"model": "qwen3-8b", "gpus": True}, "gpus: is not a number"),
            ({"model": "qwen3-8b", "gpus": 4, "tensor_parallel": 8}, "which take 8 GPUs"),
            ({"model": "qwen3-8b", "gpu_memory": "lots"}, "'lots' is not a size"),
            ({"model": "qwen3-8b", "gpu_memory_utilization": "nan"}, "is not a number"),
            ({"model": "qwen3-8b", "context": 50000}, "longer than the longest of 40960"),
            ({"model": "qwen3-8b", "vllm_version": "0.6.0"}, "vLLM 0.6.0 is too old"),
            ({"model": "qwen3-8b", "speed": 1}, "speed is not allowed key"),
        ],
    )
    def test_what_cannot_be_used(self, asked: dict[str, Any], message: str) -> None:
        answer = plan(**asked)
        assert answer.status == HTTPStatus.BAD_REQUEST
        assert message in answer.message
