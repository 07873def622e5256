"""Whatever is broken of the plugin, the client's own commands stay as they are.

Each case is a process of its own that has something broken in front of what it imports. It loads
all entry points as ``backend.ai`` does, then asks every command of the client for its help.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from ai.backend.kvcache.cli.extend import CARRIERS

#: Prints {words of a command: [exit status, help]}. Groups of other programs are large, and
#: nobody extends them.
WALK = """
import json, sys, warnings, click
from click.testing import CliRunner
warnings.simplefilter("ignore")
from ai.backend.cli.loader import load_entry_points
main = load_entry_points(blocklist=set(sys.argv[1:]))
shown = {}
def walk(group, words):
    context = click.Context(group)
    for name in group.list_commands(context):
        if words or name in {"session", "service", "deployment", "v2", "vfolder", "create", "run"}:
            command = group.get_command(context, name)
            result = CliRunner().invoke(main, [*words, name, "--help"], terminal_width=80)
            shown[" ".join([*words, name])] = [result.exit_code, result.output]
            if isinstance(command, click.Group) and len(words) < 3 and result.exit_code == 0:
                walk(command, [*words, name])
walk(main, [])
for words in (["--help"], ["kvcache", "--help"], ["kvcache", "plan", "--list-models"]):
    result = CliRunner().invoke(main, words)
    shown[" ".join(words)] = [result.exit_code, result.output]
print(json.dumps(shown))
"""

#: Makes a module raise when it is imported.
BREAK = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise {error}
sys.meta_path.insert(0, Broken())
"""

OF_THE_PLUGIN = {"--help", "kvcache --help", "kvcache plan --list-models"}
EXTENDED = {" ".join(path) for path in CARRIERS}

type Shown = dict[str, tuple[int, str]]


def shown(*blocked: str, path: Path | None = None) -> Shown:
    environ = {**os.environ, "PYTHONPATH": str(path)} if path else dict(os.environ)
    done = subprocess.run(
        [sys.executable, "-c", WALK, *blocked], capture_output=True, text=True, env=environ
    )
    assert done.returncode == 0, done.stderr
    commands: dict[str, Any] = json.loads(done.stdout)
    return {words: (status, text) for words, (status, text) in commands.items()}


@cache
def without_plugin() -> Shown:
    return shown("ai.backend.kvcache")


def broken(tmp_path: Path, module: str, error: str) -> Shown:
    (tmp_path / "sitecustomize.py").write_text(BREAK.format(module=module, error=error))
    return shown(path=tmp_path)


def other_than_without(commands: Shown) -> set[str]:
    before = without_plugin()
    assert len(before) > 300
    both = before.keys() & commands.keys()
    # Those below a group that is broken itself are in neither.
    assert all(words.startswith("deployment ") for words in before.keys() ^ commands.keys())
    return {words for words in both if before[words] != commands[words]}


def test_whole_plugin() -> None:
    commands = shown()
    assert other_than_without(commands) == EXTENDED | OF_THE_PLUGIN
    for words in EXTENDED:
        status, text = commands[words]
        assert status == 0
        assert text.count("--kv-cache ") == 1
    assert commands["kvcache plan --list-models"][0] == 0
    assert commands["kvcache --help"][0] == 0


def test_flags_are_broken(tmp_path: Path) -> None:
    commands = broken(tmp_path, "ai.backend.kvcache.cli.extend", "SyntaxError('half a file')")
    assert other_than_without(commands) == OF_THE_PLUGIN
    assert commands["kvcache plan --list-models"][0] == 0


def test_flags_and_commands_are_broken(tmp_path: Path) -> None:
    commands = broken(tmp_path, "ai.backend.kvcache.sizes", "AttributeError('other version')")
    assert other_than_without(commands) == OF_THE_PLUGIN
    status, text = commands["kvcache --help"]
    assert status == 0
    assert "plan cannot be loaded: AttributeError: other version" in text
    status, text = commands["kvcache plan --list-models"]
    assert status == 1
    assert text == "Error: plan cannot be loaded: AttributeError: other version\n"


def test_one_command_is_broken(tmp_path: Path) -> None:
    commands = broken(tmp_path, "ai.backend.kvcache.cli.doctor", "RuntimeError('broken')")
    assert other_than_without(commands) == EXTENDED | OF_THE_PLUGIN
    assert "doctor cannot be loaded: RuntimeError: broken" in commands["kvcache --help"][1]
    assert commands["kvcache plan --list-models"][0] == 0


def test_clients_command_is_broken(tmp_path: Path) -> None:
    """Somebody else's fault: it fails as it would without us, and the others keep their flags."""
    commands = broken(tmp_path, "ai.backend.client.cli.deployment", "ImportError('gone')")
    assert other_than_without(commands) == (
        (EXTENDED | OF_THE_PLUGIN | {"deployment"})
        - {"deployment create", "deployment revision add"}
    )
    assert commands["deployment"][0] == 1
    assert commands["--help"][0] == 0
