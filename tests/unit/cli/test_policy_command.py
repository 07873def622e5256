"""``policy``, on a manager that keeps its policy, projects and folders in memory.

tests/cluster/test_cli.py does the same on a real one; here are the cases that a shared cluster is
not to be brought into.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import pytest
from click.testing import CliRunner, Result

from ai.backend.kvcache.cli import kvcache
from ai.backend.kvcache.errors import PolicyError
from ai.backend.kvcache.manager.policy_store import StoredPolicy
from ai.backend.kvcache.policy.policy import check_policy, policy_text

if TYPE_CHECKING:
    from unit.cli.conftest import Answer, Endpoint

CHAT = "2de2b969-1d04-48a6-af16-0bc8adb3c831"
CODE = "8078b06d-0e45-4e1e-b51b-54fdc638642f"
OTHERS_CODE = "5429e806-e873-44ed-98ee-c7c678d63e7c"
STORE = "7078b06d-0e45-4e1e-b51b-54fdc638642f"
OLD = "1078b06d-0e45-4e1e-b51b-54fdc638642f"

HEX = "586b7d5a29834eb3b94e47eb8a151564"


def project(key: str, name: str, **facts: Any) -> dict[str, Any]:
    return {
        "id": key,
        "name": name,
        "domain_name": "default",
        "is_active": True,
        "type": "GENERAL",
        **facts,
    }


def folder(name: str, group: str, **facts: Any) -> dict[str, Any]:
    return {
        "id": HEX,
        "name": name,
        "host": "local:volume1",
        "quota_scope_id": f"project:{group}",
        "group": group,
        "ownership_type": "group",
        "usage_mode": "general",
        "status": "ready",
        **facts,
    }


@attrs.define
class Manager:
    """What a manager keeps."""

    policy: str | None = None
    writes: int = 0
    between: str | None = None
    """What somebody else writes between reading and writing."""
    folders: list[dict[str, Any]] = attrs.field(factory=list)
    made: list[dict[str, Any]] = attrs.field(factory=list)
    """What folders were asked for."""

    def get(self, _: dict[str, Any]) -> Answer:
        stored = StoredPolicy(self.policy)
        return 200, {
            "version": stored.version,
            "policy": stored.document,
            "problem": stored.problem,
        }

    def put(self, body: dict[str, Any]) -> Answer:
        if self.between is not None:
            self.policy = self.between
        try:
            check_policy(body["policy"])
        except PolicyError as e:
            return 400, {"title": "Missing or invalid API parameters.", "msg": str(e)}
        if body["version"] != StoredPolicy(self.policy).version:
            return 409, {"title": "The KV cache policy was changed meanwhile."}
        self.policy = policy_text(body["policy"])
        self.writes += 1
        return self.get({})

    def graphql(self, _: dict[str, Any]) -> Answer:
        projects = [
            project(CHAT, "chat"),
            project(CODE, "code"),
            project(OTHERS_CODE, "code", domain_name="other"),
            project(STORE, "models", type="MODEL_STORE"),
            project(OLD, "old", is_active=False),
        ]
        groups = [{"name": "default"}, {"name": "h100"}]
        return 200, {"data": {"groups": projects, "scaling_groups": groups}}

    def make(self, body: dict[str, Any]) -> Answer:
        if body["group"] == OTHERS_CODE:
            return 404, {
                "title": "No such project.",
                "msg": f"Project with {OTHERS_CODE} not found.",
            }
        if any(f["name"] == body["name"] for f in self.folders):
            return 400, {"title": "Invalid.", "msg": "The virtual folder already exists"}
        self.made.append(body)
        number = f"{len(self.made):032x}"
        made = folder(body["name"], body["group"], id=number, host=body["host"] or "local:default")
        self.folders.append(made)
        return 201, made

    @property
    def document(self) -> Any:
        return json.loads(self.policy or "null")


@pytest.fixture
def manager(endpoint: Endpoint) -> Manager:
    manager = Manager()
    endpoint.answers.update({
        ("GET", "/kvcache/policy"): manager.get,
        ("PUT", "/kvcache/policy"): manager.put,
        ("POST", "/admin/gql"): manager.graphql,
        ("GET", "/folders"): lambda _: (200, manager.folders),
        ("POST", "/folders"): manager.make,
    })
    return manager


def policy(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(kvcache, ["policy", *words], input=stdin)


def done(*words: str) -> str:
    result = policy(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: str, status: int = 2) -> str:
    result = policy(*words)
    assert result.exit_code == status, result.output
    return result.stderr


class TestSet:
    def test_levels(self, manager: Manager) -> None:
        assert done("set", "mode", "auto") == "mode is now auto for the site\n"
        assert done("set", "mode", "off", "--project", "chat") == (
            "mode is now off for project chat\n"
        )
        assert done("set", "cpu-tier", "40GiB", "--resource-group", "h100") == (
            "cpu-tier is now 40GiB for resource group h100\n"
        )
        done("set", "direct-io", "true", "--project", CHAT.upper())
        assert manager.document == {
            "mode": "auto",
            "projects": {CHAT: {"mode": "off", "direct-io": "true"}},
            "resource-groups": {"h100": {"cpu-tier": "40GiB"}},
        }

    def test_twice_writes_once(self, manager: Manager) -> None:
        done("set", "mode", "auto")
        assert done("set", "mode", "auto") == "mode was already auto for the site\n"
        assert manager.writes == 1

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["mode", "on"], "mode = 'on': must be one of explicit, auto, off"),
            (["watermarks", "90-70"], "must be two percentages, the lower first"),
            (["cpu_tier", "1g"], "'cpu_tier' is no setting; did you mean cpu-tier?"),
            (["mode", "auto", "--project", "chats"], "'chats' is no project; did you mean chat?"),
            (["mode", "auto", "--project", CHAT[:-1] + "0"], "is no project"),
            (["mode", "auto", "--resource-group", "H100"], "'H100' is no resource group"),
            (["mode", "auto", "--project", "code"], f"{OTHERS_CODE} (domain other)"),
            (["mode", "auto", "--project", "a", "--resource-group", "b"], "not both"),
            (["mode"], "say KEY and VALUE, or --file"),
            ([], "say KEY and VALUE, or --file"),
        ],
    )
    def test_refused(self, manager: Manager, words: list[str], message: str) -> None:
        manager.policy = '{"mode":"auto"}'
        assert message in refused("set", *words)
        assert manager.policy == '{"mode":"auto"}'
        assert manager.writes == 0

    def test_beside_what_cannot_be_used(self, manager: Manager) -> None:
        """Written past us; it is named, and can be taken away."""
        manager.policy = '{"mode":"on"}'
        assert "mode = 'on'" in refused("set", "sharing", "user")
        done("unset", "mode")
        done("set", "sharing", "user")
        assert manager.document == {"sharing": "user"}

    def test_somebody_else_writes_meanwhile(self, manager: Manager) -> None:
        manager.policy, manager.between = '{"mode":"auto"}', '{"mode":"off"}'
        assert "somebody else has changed the policy meanwhile, and nothing was written" in refused(
            "set", "sharing", "user", status=1
        )
        assert manager.document == {"mode": "off"}

    def test_manager_that_refuses(self, manager: Manager, endpoint: Endpoint) -> None:
        endpoint.answers["GET", "/kvcache/policy"] = (403, {"title": "Forbidden operation."})
        assert "the manager refused" in refused("set", "mode", "auto", status=1)
        assert manager.writes == 0

    def test_manager_without_the_plugin(self, manager: Manager, endpoint: Endpoint) -> None:
        problem = {"type": "https://api.backend.ai/probs/url-not-found", "title": "Unknown path."}
        endpoint.answers["GET", "/kvcache/policy"] = (404, problem)
        message = refused("set", "mode", "auto", status=1)
        assert "install backend.ai-kvcache[manager] there and restart it" in message


class TestFile:
    YAML = """
    mode: off
    concurrent-transfers: 3
    utilization-floor: 0.5
    direct-io: yes
    projects:
      2de2b969-1d04-48a6-af16-0bc8adb3c831: {mode: auto, cpu-tier: off}
    """

    def test_yaml_as_people_write_it(self, manager: Manager, tmp_path: Path) -> None:
        file = tmp_path / "policy.yaml"
        file.write_text(self.YAML)
        assert done("set", "--file", str(file)) == f"the policy is now that of {file}\n"
        assert manager.document == {
            "mode": "off",
            "concurrent-transfers": "3",
            "utilization-floor": "0.5",
            "direct-io": "yes",
            "projects": {CHAT: {"mode": "auto", "cpu-tier": "off"}},
        }

    def test_json(self, manager: Manager, tmp_path: Path) -> None:
        document = {"concurrent-transfers": 3, "direct-io": True}
        file = tmp_path / "policy.json"
        file.write_text(json.dumps(document, indent="\t"))
        done("set", "--file", str(file))
        assert manager.document == document

    def test_standard_input(self, manager: Manager) -> None:
        assert policy("set", "--file", "-", stdin="mode: auto").exit_code == 0
        assert manager.document == {"mode": "auto"}

    def test_what_show_prints(self, manager: Manager, tmp_path: Path) -> None:
        manager.policy = json.dumps({"mode": "auto", "projects": {CHAT: {"direct-io": True}}})
        file = tmp_path / "policy.json"
        file.write_text(done("show", "--json"))
        before = manager.document
        done("set", "--file", str(file))
        assert manager.document == before

    @pytest.mark.parametrize("stored", ["{", "[]", '{"mode": "on"}', '{"projects": 3}'])
    def test_in_the_place_of_what_is_no_policy(self, manager: Manager, stored: str) -> None:
        manager.policy = stored
        assert refused("show")
        assert policy("set", "--file", "-", stdin="mode: auto").exit_code == 0
        assert manager.document == {"mode": "auto"}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "it maps no names to values"),
            ("- mode", "it maps no names to values"),
            ("mode: [", "is no policy"),
            ("mode: on", "mode = 'on'"),
            ("mode: auto\nprojects: {chat: {mode: off}}", "'chat' is none"),
            ("!!python/object/apply:os.getcwd []", "it maps no names to values"),
            ("mode: null", "mode = 'null'"),
            ("a: &a {b: *a}", "is no policy"),
            ("[" * 100_000, "is no policy"),
        ],
    )
    def test_refused(self, manager: Manager, text: str, message: str) -> None:
        result = policy("set", "--file", "-", stdin=text)
        assert result.exit_code == 2
        assert message in result.stderr
        assert manager.policy is None

    @pytest.mark.parametrize("words", [["mode", "auto"], ["--project", "chat"]])
    def test_goes_with_nothing_else(self, manager: Manager, words: list[str]) -> None:
        assert "goes with nothing else" in refused("set", "--file", "-", *words)


class TestUnset:
    def test_some(self, manager: Manager) -> None:
        manager.policy = json.dumps({
            "mode": "auto",
            "projects": {CHAT: {"mode": "off", "sharing": "user"}},
        })
        assert done("unset", "mode", "sharing", "--project", "chat") == (
            "mode, sharing: not set any more for project chat\n"
        )
        assert manager.document == {"mode": "auto"}
        assert done("unset", "mode", "--project", "chat") == "mode: was not set for project chat\n"
        assert manager.writes == 1

    @pytest.mark.parametrize(
        ("kind", "option", "name", "shown"),
        [
            ("projects", "--project", "00000000-0000-0000-0000-000000000000", "which is gone"),
            ("resource-groups", "--resource-group", "gone", "resource group gone"),
        ],
    )
    def test_of_what_is_gone(
        self, manager: Manager, kind: str, option: str, name: str, shown: str
    ) -> None:
        manager.policy = json.dumps({kind: {name: {"mode": "off"}}})
        assert shown in done("unset", "mode", option, name)
        assert manager.document == {}

    def test_refused(self, manager: Manager) -> None:
        assert "'modes' is no setting; did you mean mode?" in refused("unset", "modes")
        assert "'nobody' is no project" in refused("unset", "mode", "--project", "nobody")


def rows(text: str) -> list[list[str]]:
    return [re.split(r" {2,}", line) for line in text.splitlines()]


class TestShow:
    DOCUMENT: ClassVar[dict[str, Any]] = {
        "mode": "auto",
        "sharing": "user",
        "resource-groups": {"h100": {"mode": "off"}},
        "projects": {CHAT: {"sharing": "session"}, OTHERS_CODE: {"mode": "explicit"}},
    }

    @pytest.fixture(autouse=True)
    def stored(self, manager: Manager) -> None:
        manager.policy = json.dumps(self.DOCUMENT)

    def test_all(self) -> None:
        shown = rows(done("show"))
        assert shown[:4] == [
            ["setting", "from", "value"],
            ["mode", "the site", "auto"],
            ["folder", "default", "-"],
            ["mount-point", "default", "/kvcache"],
        ]
        # 16 settings below the head, then what narrower levels say.
        assert shown[17:] == [
            ["mode", "resource group h100", "off"],
            ["sharing", "project chat", "session"],
            ["mode", "project code", "explicit"],
        ]

    def test_effective(self) -> None:
        shown = rows(done("show", "--effective", "--project", "chat", "--resource-group", "h100"))
        assert ["mode", "resource group h100", "off"] in shown
        assert ["sharing", "project chat", "session"] in shown
        assert len(shown) == 17

    def test_effective_of_the_site(self) -> None:
        assert len(rows(done("show", "--effective"))) == 17

    def test_json(self, manager: Manager) -> None:
        assert json.loads(done("show", "--json")) == self.DOCUMENT

    def test_effective_json(self) -> None:
        answer = json.loads(done("show", "--effective", "--json", "--project", "chat"))
        assert (answer["project"], answer["resource_group"]) == (CHAT, None)
        assert answer["settings"]["sharing"] == {"value": "session", "from": f"project {CHAT}"}
        assert answer["settings"]["folder"] == {"value": None, "from": "default"}

    def test_nothing_is_stored(self, manager: Manager) -> None:
        manager.policy = None
        assert all(row[1] == "default" for row in rows(done("show"))[1:])
        assert done("show", "--json") == "{}\n"

    def test_refused(self) -> None:
        assert "go with --effective" in refused("show", "--project", "chat")
        assert "'nobody' is no project" in refused("show", "--effective", "--project", "nobody")


class TestProvision:
    NAME = "kv-cache-2de2b969"
    PLACE = f"local:volume1/project:{CHAT}/{HEX}"

    def test_makes_and_names_it(self, manager: Manager) -> None:
        manager.policy = json.dumps({
            "storage-host": "local:volume1",
            "projects": {CHAT: {"mode": "auto"}},
        })
        assert done("provision", "chat") == (
            f"[1/1] chat: made {self.NAME} on local:volume1\nThe policy names them now.\n"
        )
        (asked,) = manager.made
        assert asked == {
            "name": self.NAME,
            "host": "local:volume1",
            "unmanaged_path": None,
            "group": CHAT,
            "usage_mode": "general",
            "permission": "ro",
            "cloneable": False,
        }
        assert manager.document == {
            "storage-host": "local:volume1",
            "projects": {
                CHAT: {"mode": "auto", "folder": f"local:volume1/project:{CHAT}/{1:032x}"}
            },
        }

    def test_twice_changes_nothing(self, manager: Manager) -> None:
        done("provision", "chat")
        before = manager.policy
        assert done("provision", "chat") == (
            f"[1/1] chat: has {self.NAME} on local:default\nThe policy named them already.\n"
        )
        assert (manager.policy, manager.writes, len(manager.made)) == (before, 1, 1)

    def test_folder_that_is_there_and_not_named(self, manager: Manager) -> None:
        """As after an interruption."""
        manager.folders = [folder(self.NAME, CHAT, usage_mode="data")]
        assert "has kv-cache-2de2b969" in done("provision", "chat")
        assert manager.document == {"projects": {CHAT: {"folder": self.PLACE}}}

    def test_one_in_the_trash_of_the_same_name(self, manager: Manager) -> None:
        manager.folders = [
            folder(self.NAME, CHAT, status="delete-pending", id="f" * 32),
            folder(self.NAME, CHAT),
        ]
        assert f"has {self.NAME}" in done("provision", "chat")
        assert manager.document == {"projects": {CHAT: {"folder": self.PLACE}}}

    def test_folder_that_is_named_and_called_otherwise(self, manager: Manager) -> None:
        manager.folders = [folder("renamed", CHAT)]
        manager.policy = json.dumps({"projects": {CHAT: {"folder": self.PLACE}}})
        assert "has renamed on local:volume1" in done("provision", "chat")
        assert manager.made == []

    @pytest.mark.parametrize("status", ["delete-ongoing", "delete-complete", "delete-error"])
    def test_folder_that_is_named_and_gone(self, manager: Manager, status: str) -> None:
        manager.folders = [folder("old", CHAT, status=status)]
        manager.policy = json.dumps({"projects": {CHAT: {"folder": self.PLACE}}})
        assert f"made {self.NAME}" in done("provision", "chat")
        assert manager.document["projects"][CHAT]["folder"] != self.PLACE

    @pytest.mark.parametrize(
        ("facts", "message"),
        [
            (
                {"usage_mode": "model"},
                "is a folder of usage mode model, and a KV folder is a",
            ),
            ({"status": "delete-pending"}, "is in the trash; restore it, or delete it for good"),
            ({"quota_scope_id": "None"}, "lies where no folder of a storage proxy does"),
        ],
    )
    def test_refused(self, manager: Manager, facts: dict[str, Any], message: str) -> None:
        manager.folders = [folder(self.NAME, CHAT, **facts)]
        result = policy("provision", "chat", CODE)
        assert result.exit_code == 1
        assert f"[1/2] chat: refused: {self.NAME} {message}" in result.stdout
        assert "[2/2] code: made kv-cache-8078b06d" in result.stdout
        assert list(manager.document["projects"]) == [CODE]

    def test_folder_of_another_project(self, manager: Manager) -> None:
        """The manager refuses the name, and says why."""
        manager.folders = [folder(self.NAME, CODE)]
        result = policy("provision", "chat")
        assert result.exit_code == 1
        assert result.stdout == (
            "[1/1] chat: refused by the manager: The virtual folder already exists\n"
        )
        assert manager.policy is None

    def test_project_of_another_domain(self, manager: Manager) -> None:
        result = policy("provision", OTHERS_CODE)
        assert result.exit_code == 1
        assert "for projects of the caller's own domain alone, and this one is of 'other'" in (
            result.stdout
        )

    def test_all(self, manager: Manager) -> None:
        result = policy("provision", "--all")
        assert [line.split(": ")[0] for line in result.stdout.splitlines()[:-1]] == [
            "[1/3] chat",
            "[2/3] code",
            "[3/3] code",
        ]
        assert sorted(manager.document["projects"]) == sorted([CHAT, CODE])
        assert manager.writes == 1

    def test_dry_run(self, manager: Manager) -> None:
        assert done("provision", "chat", "--dry-run") == (
            f"[1/1] chat: would make {self.NAME} on the default storage host\n"
        )
        assert (manager.made, manager.policy) == ([], None)

    def test_storage_host(self, manager: Manager) -> None:
        manager.policy = json.dumps({"storage-host": "local:volume1", "folder-name": "contexts"})
        shown = done("provision", "chat", "chat", "--storage-host", "vast:fast", "--dry-run")
        assert shown == "[1/1] chat: would make contexts-2de2b969 on vast:fast\n"
        done("provision", "chat", "--storage-host", "vast:fast")
        assert manager.made[0]["host"] == "vast:fast"

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ([], "say which projects, or --all"),
            (["chat", "--all"], "say which projects, or --all"),
            (["nobody"], "'nobody' is no project"),
            (["chat", "--storage-host", "volume1"], "must be a storage host such as local:volume1"),
        ],
    )
    def test_misunderstood(self, manager: Manager, words: list[str], message: str) -> None:
        assert message in refused("provision", *words)
        assert manager.made == []
