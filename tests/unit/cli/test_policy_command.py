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
from ai.backend.kvcache.policy.place import Host, parse_host, provisioned_place
from ai.backend.kvcache.policy.policy import check_policy, policy_text

if TYPE_CHECKING:
    from unit.cli.conftest import Answer, Answering, Endpoint

CHAT = "2de2b969-1d04-48a6-af16-0bc8adb3c831"
CODE = "8078b06d-0e45-4e1e-b51b-54fdc638642f"
OTHERS_CODE = "5429e806-e873-44ed-98ee-c7c678d63e7c"
STORE = "7078b06d-0e45-4e1e-b51b-54fdc638642f"
OLD = "1078b06d-0e45-4e1e-b51b-54fdc638642f"

GONE = "0078b06d-0e45-4e1e-b51b-54fdc638642f"

HEX = "586b7d5a29834eb3b94e47eb8a151564"

#: Their folders. That of CHAT is written out in tests/unit/policy/test_place.py.
CHAT_PLACE = str(provisioned_place(Host("local", "volume1"), CHAT))
GONE_PLACE = str(provisioned_place(Host("local", "volume1"), GONE))


def project(key: str, name: str, **facts: Any) -> dict[str, Any]:
    return {
        "id": key,
        "name": name,
        "domain_name": "default",
        "is_active": True,
        "type": "GENERAL",
        **facts,
    }


def vfolder(name: str, group: str, **facts: Any) -> dict[str, Any]:
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
    vfolders: list[dict[str, Any]] = attrs.field(factory=list)
    provisioned: set[str] = attrs.field(factory=set)
    """Places of folders that are there."""
    asked: list[dict[str, Any]] = attrs.field(factory=list)
    """What folders were asked for."""
    using: str | None = None
    """Why folders cannot be removed."""
    is_removed_at_once: bool = True

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
        host = body["host"] or "local:default"
        if host not in ("local:default", "local:volume1", "vast:fast"):
            return 400, {"title": "Invalid.", "msg": f"host = {host!r}: there is no such proxy"}
        self.asked.append(body)
        place = str(provisioned_place(parse_host(host), body["project"]))
        is_new = place not in self.provisioned
        self.provisioned.add(place)
        return 200, {"place": place, "made": is_new}

    def remove(self, place: str) -> Answering:
        def answer(_: dict[str, Any]) -> Answer:
            if self.using is not None:
                return 409, {"title": "The KV folder is in use.", "msg": self.using}
            assert place not in (self.policy or "")
            self.provisioned.discard(place)
            return 200, {"place": place, "gone": self.is_removed_at_once}

        return answer

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
        ("GET", "/folders"): lambda _: (200, manager.vfolders),
        ("POST", "/kvcache/folders"): manager.make,
        ("DELETE", f"/kvcache/folders/local:volume1/{CHAT}"): manager.remove(CHAT_PLACE),
        ("DELETE", f"/kvcache/folders/local:volume1/{GONE}"): manager.remove(GONE_PLACE),
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
    OLD_PLACE = f"local:volume1/project:{CHAT}/{HEX}"

    def test_makes_and_names_it(self, manager: Manager) -> None:
        manager.policy = json.dumps({
            "storage-host": "local:volume1",
            "projects": {CHAT: {"mode": "auto"}},
        })
        assert done("provision", "chat") == (
            "[1/1] chat: made its folder on local:volume1\nThe policy names them now.\n"
        )
        assert manager.asked == [{"project": CHAT, "host": "local:volume1"}]
        assert manager.document == {
            "storage-host": "local:volume1",
            "projects": {CHAT: {"mode": "auto", "folder": CHAT_PLACE}},
        }

    def test_twice_changes_nothing(self, manager: Manager) -> None:
        done("provision", "chat")
        before = manager.policy
        assert done("provision", "chat") == (
            "[1/1] chat: has its folder on local:default\nThe policy named them already.\n"
        )
        assert (manager.policy, manager.writes) == (before, 1)

    def test_stays_where_it_is(self, manager: Manager) -> None:
        """Whatever host is named later, its cache is not lost."""
        done("provision", "chat", "--storage-host", "vast:fast")
        before = manager.policy
        done("provision", "chat", "--storage-host", "local:volume1", "--yes")
        assert manager.policy == before
        assert [asked["host"] for asked in manager.asked] == ["vast:fast", "vast:fast"]

    def test_folder_that_is_there_and_not_named(self, manager: Manager) -> None:
        """As after an interruption."""
        manager.provisioned = {CHAT_PLACE}
        shown = done("provision", "chat", "--storage-host", "local:volume1")
        assert "has its folder on local:volume1" in shown
        assert manager.document == {"projects": {CHAT: {"folder": CHAT_PLACE}}}

    def test_folder_that_is_named_and_gone(self, manager: Manager) -> None:
        manager.policy = json.dumps({"projects": {CHAT: {"folder": CHAT_PLACE}}})
        assert "made its folder on local:volume1 anew" in done("provision", "chat")
        assert manager.provisioned == {CHAT_PLACE}

    @pytest.mark.parametrize(
        ("place", "called"),
        [
            (OLD_PLACE, f"the VFolder kv-cache-2de2b969 ({OLD_PLACE})"),
            # The manager does not show superadmins the VFolders of other users.
            (f"local:volume1/user:{OLD}/{HEX}", f"the folder local:volume1/user:{OLD}/{HEX}"),
            # That of another project is not its own.
            (GONE_PLACE, f"the folder {GONE_PLACE}"),
        ],
    )
    def test_what_others_reach_is_replaced_when_that_is_agreed_to(
        self, manager: Manager, place: str, called: str
    ) -> None:
        manager.vfolders = [vfolder("kv-cache-2de2b969", CHAT)]
        manager.policy = before = json.dumps({"projects": {CHAT: {"folder": place}}})
        result = policy("provision", "chat", CODE)
        assert result.exit_code == 1
        assert f"[1/2] chat: refused: its folder is {called}, which others" in result.stdout
        assert "with --yes" in result.stdout
        assert "starts empty" in result.stdout
        assert "[2/2] code: made its folder" in result.stdout
        assert manager.document["projects"][CHAT] == {"folder": place}

        manager.policy = before
        shown = done("provision", "chat", "--dry-run")
        assert f"[1/1] chat: would make its folder on local:volume1 in the place of {called}" in (
            shown
        )
        assert manager.policy == before

        shown = done("provision", "--yes", "chat")
        assert f"[1/1] chat: made its folder on local:volume1 in the place of {called}. " in shown
        assert "The old one stays as it is" in shown
        assert manager.document == {"projects": {CHAT: {"folder": CHAT_PLACE}}}
        assert "has its folder on local:volume1\n" in done("provision", "--yes", "chat")

    def test_refused_by_the_manager(self, manager: Manager) -> None:
        result = policy("provision", "chat", "--storage-host", "nowhere:volume1")
        assert result.exit_code == 1
        assert result.stdout == (
            "[1/1] chat: refused by the manager: host = 'nowhere:volume1': there is no such proxy\n"
        )
        assert manager.policy is None

    def test_manager_without_the_plugins_routes(self, manager: Manager, endpoint: Endpoint) -> None:
        not_found = {"type": "https://api.backend.ai/probs/url-not-found", "title": "no URL"}
        endpoint.answers["POST", "/kvcache/folders"] = 404, not_found
        result = policy("provision", "chat")
        assert result.exit_code == 1
        assert "it does not have the plugin, which makes the folders" in result.stdout

    def test_project_of_another_domain(self, manager: Manager) -> None:
        assert "made its folder" in done("provision", OTHERS_CODE)

    def test_all(self, manager: Manager) -> None:
        shown = done("provision", "--all")
        assert [line.split(": ")[0] for line in shown.splitlines()[:-1]] == [
            "[1/3] chat",
            "[2/3] code",
            "[3/3] code",
        ]
        assert sorted(manager.document["projects"]) == sorted([CHAT, CODE, OTHERS_CODE])
        assert manager.writes == 1

    def test_dry_run(self, manager: Manager) -> None:
        assert done("provision", "chat", "--dry-run") == (
            "[1/1] chat: would make its folder on the default storage host\n"
        )
        assert (manager.asked, manager.policy) == ([], None)
        shown = done("provision", "chat", "chat", "--storage-host", "vast:fast", "--dry-run")
        assert shown == "[1/1] chat: would make its folder on vast:fast\n"

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
        assert manager.asked == []


class TestUnprovision:
    @pytest.fixture(autouse=True)
    def provisioned(self, manager: Manager) -> None:
        manager.provisioned = {CHAT_PLACE, GONE_PLACE}
        manager.policy = json.dumps({
            "projects": {
                CHAT: {"mode": "auto", "folder": CHAT_PLACE},
                CODE: {"folder": f"local:volume1/project:{CODE}/{HEX}"},
                GONE: {"folder": GONE_PLACE},
            }
        })

    def test_takes_it_out_of_the_policy_and_removes_it(self, manager: Manager) -> None:
        assert done("unprovision", "chat", "--yes") == (
            "chat: the policy does not name its folder any more\n"
            "chat: its folder on local:volume1 is removed\n"
        )
        assert manager.provisioned == {GONE_PLACE}
        assert manager.document["projects"][CHAT] == {"mode": "auto"}

    def test_of_a_project_that_is_gone(self, manager: Manager) -> None:
        manager.using = "the storage proxy 'local' fails"
        assert "is not removed" in refused("unprovision", GONE, "--yes", status=1)
        assert GONE not in manager.document["projects"]
        manager.using = None
        done("unprovision", GONE, "--storage-host", "local:volume1", "--yes")
        assert manager.provisioned == {CHAT_PLACE}

    def test_asks_first(self, manager: Manager) -> None:
        before = manager.policy
        result = policy("unprovision", "chat", stdin="n\n")
        assert result.exit_code == 1
        assert f"Remove {CHAT_PLACE} with all that lies in it?" in result.stdout
        assert (manager.policy, manager.provisioned) == (before, {CHAT_PLACE, GONE_PLACE})

    def test_while_sessions_use_it(self, manager: Manager) -> None:
        """No further session gets it; it is removed when the last one has ended."""
        manager.using = "sessions of the project run with KV cache"
        result = policy("unprovision", "chat", "--yes")
        assert result.exit_code == 1
        assert "sessions of the project run with KV cache" in result.stderr
        assert "unprovision chat --storage-host local:volume1" in result.stderr
        assert CHAT_PLACE in manager.provisioned
        assert manager.document["projects"][CHAT] == {"mode": "auto"}
        manager.using = None
        assert done("unprovision", "chat", "--storage-host", "local:volume1", "--yes") == (
            "chat: its folder on local:volume1 is removed\n"
        )
        assert CHAT_PLACE not in manager.provisioned

    def test_that_takes_long(self, manager: Manager) -> None:
        manager.is_removed_at_once = False
        assert "the storage proxy of local:volume1 goes on removing its folder" in (
            done("unprovision", "chat", "--yes")
        )

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            # A VFolder is not ours to remove.
            ([CODE], "say with --storage-host where its folder is"),
            ([OTHERS_CODE], "say with --storage-host where its folder is"),
            (["nobody"], "'nobody' is no project"),
            (["chat", "--storage-host", "volume1"], "must be a storage host such as local:volume1"),
        ],
    )
    def test_misunderstood(self, manager: Manager, words: list[str], message: str) -> None:
        before = manager.policy
        assert message in refused("unprovision", *words, "--yes")
        assert (manager.policy, manager.provisioned) == (before, {CHAT_PLACE, GONE_PLACE})
