"""The flags on the real client's commands; what they send is caught behind HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ai.backend.client.cli
import click
import pytest
from ai.backend.cli.main import main
from click.testing import CliRunner, Result

from ai.backend.kvcache.cli.extend import CARRIERS, Options, add_session_flags, extend
from ai.backend.kvcache.cli.session_flags import FLAGS

if TYPE_CHECKING:
    from unit.cli.conftest import Endpoint

MODEL_ID = "d6ba721f-5964-455f-9835-e20787a84e19"
FOLDER_ID = "586b7d5a-2983-4eb3-b94e-47eb8a151564"
DEPLOYMENT_ID = "2de2b969-1d04-48a6-af16-0bc8adb3c831"

# The client says some options twice.
pytestmark = pytest.mark.filterwarnings("ignore:The parameter .* is used more than once")

CREATED = {"sessionId": FOLDER_ID, "status": "PENDING", "servicePorts": [], "created": True}

add_session_flags()


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.fixture
def sessions(endpoint: Endpoint) -> Endpoint:
    endpoint.answers["POST", "/session"] = (201, CREATED)
    endpoint.answers["POST", "/services"] = (200, {"endpoint_id": FOLDER_ID, "name": "s"})
    return endpoint


def configuration(endpoint: Endpoint, *words: str) -> dict[str, Any]:
    """What a command that creates a session asks the server for."""
    result = run(*words)
    assert result.exit_code == 0, result.output
    config: dict[str, Any] = endpoint.sent("POST", "/session")["config"]
    return config


class TestSessionCreate:
    @pytest.mark.parametrize("words", [["session", "create"], ["create"], ["start"]])
    def test_folder(self, sessions: Endpoint, words: list[str]) -> None:
        config = configuration(
            sessions, *words, "img", "--kv-cache", "my-kv", "-e", "A=1", "-v", "data:/data"
        )
        assert config["environ"] == {"A": "1", "BACKENDAI_KVCACHE_FOLDER": "my-kv"}
        assert sorted(config["mounts"]) == ["data", "my-kv"]
        assert config["mount_map"] == {"data": "/data", "my-kv": "/kvcache"}

    def test_all_flags(self, sessions: Endpoint) -> None:
        config = configuration(
            sessions,
            *("session", "create", "img", "--kv-cache", "auto", "--kv-cache-buffer", "24GiB"),
            *("--kv-cache-transport", "gds", "--kv-cache-cpu", "64GiB"),
            *("--kv-cache-share", "user"),
        )
        assert config["environ"] == {
            "BACKENDAI_KVCACHE": "auto",
            "BACKENDAI_KVCACHE_BUFFER": "24GiB",
            "BACKENDAI_KVCACHE_TRANSPORT": "gds",
            "BACKENDAI_KVCACHE_CPU": "64GiB",
            "BACKENDAI_KVCACHE_SHARE": "user",
        }
        assert config["mounts"] == []

    def test_without_flags(self, sessions: Endpoint) -> None:
        config = configuration(sessions, "session", "create", "img", "-e", "BACKENDAI_KVCACHE=x")
        assert config["environ"] == {"BACKENDAI_KVCACHE": "x"}
        assert config["mounts"] == []

    def test_folder_that_the_user_mounts(self, sessions: Endpoint) -> None:
        config = configuration(
            sessions, "session", "create", "img", "--kv-cache", "my-kv", "-v", "my-kv:/data"
        )
        assert config["mounts"] == ["my-kv"]
        assert config["mount_map"] == {"my-kv": "/data"}
        assert config["environ"] == {"BACKENDAI_KVCACHE_FOLDER": "my-kv"}

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--kv-cache-buffer", "much"], "--kv-cache-buffer: 'much' is not a size"),
            (["--kv-cache-share", "all"], "'all' is not one of 'session', 'user', 'project'"),
            (["--kv-cache", "1st"], "--mount of this client takes no such name"),
            (["--kv-cache", "my.kv"], "--mount of this client takes no such name"),
            (["--kv-cache", "my-kv", "-v", "o:/kvcache"], "and o is already"),
            (["--kv-cache", "my-kv", "-v", "?"], "--mount: Virtual folder mount parsing error"),
            (["--kv-cache", "auto", "-e", "BACKENDAI_KVCACHE=off"], "contradict each other"),
        ],
    )
    def test_refused_before_anything_is_sent(
        self, endpoint: Endpoint, words: list[str], message: str
    ) -> None:
        result = run("session", "create", "img", *words)
        assert result.exit_code == 2
        assert message in result.stderr
        assert endpoint.asked == []


class TestServiceCreate:
    def test_auto(self, sessions: Endpoint) -> None:
        result = run("service", "create", "img", "model", "1", "--kv-cache", "auto", "-e", "A=1")
        assert result.exit_code == 0, result.output
        config = sessions.sent("POST", "/services")["config"]
        assert config["environ"] == {"A": "1", "BACKENDAI_KVCACHE": "auto"}
        assert config["extra_mounts"] == {}

    def test_folder_by_id(self, sessions: Endpoint) -> None:
        folder = "e86b7d5a-2983-4eb3-b94e-47eb8a151564"
        sessions.answers["GET", "/folders"] = (200, [{"id": folder, "name": "my-kv"}])
        assert run("service", "create", "img", "model", "1", "--kv-cache", folder).exit_code == 0
        config = sessions.sent("POST", "/services")["config"]
        assert not config["environ"]
        assert config["extra_mounts"][folder]["mount_destination"] == "/kvcache"


def revision() -> dict[str, Any]:
    return {
        "cluster_config": {"mode": "single-node", "size": 1},
        "resource_config": {"resource_slots": {"cpu": "1"}},
        "image": {"id": MODEL_ID},
        "model_runtime_config": {"runtime_variant": "vllm", "environ": {"A": "1"}},
        "model_mount_config": {"vfolder_id": MODEL_ID},
    }


def v2_revision() -> dict[str, Any]:
    return {
        **revision(),
        "resource_config": {"resource_slots": {"entries": []}},
        "model_runtime_config": {
            "runtime_variant_id": MODEL_ID,
            "environ": {"entries": [{"name": "A", "value": "1"}]},
        },
        "model_mount_config": {"vfolder_id": MODEL_ID, "mount_destination": "/models"},
    }


def written(path: Path, document: dict[str, Any]) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def only(endpoint: Endpoint, method: str = "POST") -> dict[str, Any]:
    """The body of the request that creates something; it is answered with "not found"."""
    (asked,) = (a for a in endpoint.asked if a.method == method)
    return asked.body


class TestDeployments:
    """Their answers are large, so none is given: what matters is what is asked."""

    def test_create(self, endpoint: Endpoint, tmp_path: Path) -> None:
        document = {
            "metadata": {
                "project_id": DEPLOYMENT_ID,
                "domain_name": "default",
                "resource_group_name": "default",
            },
            "network_access": {},
            "default_deployment_strategy": {"type": "ROLLING"},
            "replica_count": 1,
            "initial_revision": revision(),
        }
        path = written(tmp_path / "d.json", document)
        run("deployment", "create", "-f", path, "--kv-cache", FOLDER_ID, "--kv-cache-cpu", "off")
        sent = only(endpoint)["initial_revision"]
        assert sent["model_runtime_config"]["environ"] == {"A": "1", "BACKENDAI_KVCACHE_CPU": "off"}
        (mount,) = sent["extra_mounts"]
        assert (mount["vfolder_id"], mount["mount_destination"]) == (FOLDER_ID, "/kvcache")
        assert json.loads(Path(path).read_text()) == document
        assert sent["image"] == {"id": MODEL_ID}

    def test_add_revision(self, endpoint: Endpoint, tmp_path: Path) -> None:
        path = written(tmp_path / "r.json", {"revision": revision()})
        run("deployment", "revision", "add", DEPLOYMENT_ID, "-f", path, "--kv-cache", "auto")
        sent = only(endpoint)["revision"]
        assert sent["model_runtime_config"]["environ"] == {"A": "1", "BACKENDAI_KVCACHE": "auto"}

    @pytest.mark.parametrize("in_file", [True, False])
    def test_v2_create(self, endpoint: Endpoint, tmp_path: Path, in_file: bool) -> None:
        text = json.dumps(v2_revision())
        if in_file:
            text = "@" + written(tmp_path / "r.json", v2_revision())
        run(
            *("v2", "deployment", "create", "--name", "d", "--project-id", DEPLOYMENT_ID),
            *("--resource-group", "default", "--initial-revision", text, "--kv-cache", "auto"),
        )
        sent = only(endpoint)["initial_revision"]
        assert sent["model_runtime_config"]["environ"] == {
            "entries": [
                {"name": "A", "value": "1"},
                {"name": "BACKENDAI_KVCACHE", "value": "auto"},
            ]
        }

    def test_v2_without_a_revision(self, endpoint: Endpoint) -> None:
        result = run(
            *("v2", "deployment", "create", "--name", "d", "--project-id", DEPLOYMENT_ID),
            *("--resource-group", "default", "--kv-cache", "auto"),
        )
        assert result.exit_code == 2
        assert "--kv-cache: there is no session to set it for yet" in result.stderr
        assert endpoint.asked == []

    def test_v2_add_revision_asks_for_the_folders_id(self, endpoint: Endpoint) -> None:
        endpoint.answers["GET", "/folders/_/id"] = (200, {"id": FOLDER_ID})
        run(
            *("v2", "deployment", "revision", "add", DEPLOYMENT_ID),
            *("--config", json.dumps(v2_revision()), "--kv-cache", "my-kv"),
        )
        assert endpoint.sent("GET", "/folders/_/id") == {"name": "my-kv"}
        sent = only(endpoint)
        assert {"name": "BACKENDAI_KVCACHE_FOLDER", "value": "my-kv"} in (
            sent["model_runtime_config"]["environ"]["entries"]
        )
        assert sent["extra_mounts"][0]["vfolder_id"] == FOLDER_ID
        assert sent["extra_mounts"][0]["mount_destination"] == "/kvcache"

    def test_folder_that_is_none(self, endpoint: Endpoint) -> None:
        result = run(
            *("v2", "deployment", "revision", "add", DEPLOYMENT_ID),
            *("--config", json.dumps(v2_revision()), "--kv-cache", "my-kv"),
        )
        assert result.exit_code == 1
        assert "--kv-cache my-kv: the manager refused" in result.stderr
        assert all(asked.method == "GET" for asked in endpoint.asked)

    def test_v2_session(self, endpoint: Endpoint) -> None:
        payload = {
            "session_name": "s-of-mine",
            "session_type": "interactive",
            "image_id": MODEL_ID,
            "resource_entries": [],
            "project_id": DEPLOYMENT_ID,
        }
        run("v2", "session", "enqueue", json.dumps(payload), "--kv-cache", FOLDER_ID)
        sent = only(endpoint)
        assert sent["mounts"][0]["vfolder_id"] == FOLDER_ID
        assert sent["mounts"][0]["mount_path"] == "/kvcache"

    @pytest.mark.parametrize(
        "text",
        [
            "{",
            "3",
            "[]",
            '"x"',
            "{}",
            '{"model_runtime_config": []}',
            '{"model_runtime_config": {"environ": [1]}}',
            '{"model_runtime_config": {"environ": {"entries": [1]}}}',
            '{"model_runtime_config": {"environ": {"entries": [{}]}}}',
            '{"model_runtime_config": {}, "extra_mounts": [1]}',
            '{"model_runtime_config": {}, "extra_mounts": 1}',
            "[" * 100_000,
            "@/nowhere",
        ],
    )
    def test_document_that_is_none(self, endpoint: Endpoint, text: str) -> None:
        result = run(
            *("v2", "deployment", "revision", "add", DEPLOYMENT_ID, "--config", text),
            *("--kv-cache", FOLDER_ID),
        )
        assert result.exit_code == 2
        assert result.stderr.startswith("Usage: ")
        assert endpoint.asked == []


class TestClientOfAnotherVersion:
    """Commands made here stand for what a client may come to look like."""

    @staticmethod
    def command(*options: str) -> click.Command:
        def callback(**arguments: Any) -> None:
            click.echo(json.dumps(arguments))

        params: list[click.Parameter] = [click.Option([o], multiple=True) for o in options]
        return click.Command("create", params=params, callback=callback)

    def test_option_that_it_has_already(self) -> None:
        command = self.command("--env", "--mount", "--kv-cache-share")
        extend(command, Options())
        assert [p.name for p in command.params] == ["env", "mount", "kv_cache_share"]

    def test_parameter_that_it_has_already(self) -> None:
        command = self.command("--env", "--mount")
        command.params.append(click.Option(["--reuse", "kv_cache"]))
        extend(command, Options())
        assert len(command.params) == 3

    @pytest.mark.parametrize("options", [[], ["--env"], ["--mount"], ["--environ", "--mounts"]])
    def test_option_that_it_has_no_more(self, options: list[str]) -> None:
        command = self.command(*options)
        with pytest.raises(LookupError, match="create does not take env, mount"):
            extend(command, Options())
        assert len(command.params) == len(options)
        assert CliRunner().invoke(command).exit_code == 0

    def test_twice(self) -> None:
        command = self.command("--env", "--mount")
        extend(command, Options())
        extend(command, Options())
        assert len(command.params) == 2 + len(FLAGS)
        result = CliRunner().invoke(command, ["--kv-cache", "auto"])
        assert json.loads(result.stdout) == {"env": ["BACKENDAI_KVCACHE=auto"], "mount": []}

    @pytest.mark.parametrize("renamed", ["new-name", None])
    def test_command_that_is_renamed_or_gone(
        self, monkeypatch: pytest.MonkeyPatch, renamed: str | None
    ) -> None:
        session = main.commands["session"]
        assert isinstance(session, click.Group)
        commands = {k: v for k, v in session.commands.items() if k != "create"}
        if renamed:
            commands[renamed] = self.command("--env", "--mount")
        monkeypatch.setattr(session, "commands", commands)
        assert run("session", "--help").exit_code == 0
        assert run("session", "create", "--help").exit_code == 2
        if renamed:
            assert run("session", renamed).exit_code == 0

    def test_command_that_takes_something_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        session = main.commands["session"]
        assert isinstance(session, click.Group)
        commands = {**session.commands, "create": self.command("--environ")}
        monkeypatch.setattr(session, "commands", commands)
        result = run("session", "create", "--environ", "A=1")
        assert (result.exit_code, result.stderr) == (0, "")
        result = run("session", "create", "--kv-cache", "auto")
        assert result.exit_code == 2
        assert "--kv-cache cannot be used with this client: create does not" in result.stderr

    def test_carriers_are_of_this_client(self) -> None:
        """Each of our entries gives the flags to a command of the client that tests run with."""
        assert ai.backend.client.cli
        for path in CARRIERS:
            assert "--kv-cache-share" in run(*path, "--help").stdout, path
