from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

from click.testing import CliRunner

from ai.backend.kvcache.cli import kvcache
from ai.backend.kvcache.engine.select import NAMES
from ai.backend.kvcache.metrics.indicators import INDICATORS
from ai.backend.kvcache.policy.settings import SETTINGS

ROOT = Path(__file__).parents[2]


def test_worked_example_is_what_the_command_prints() -> None:
    text = (ROOT / "docs/sizing.md").read_text()
    match = re.search(r"```console\n\$ backend\.ai kvcache (plan devstral.*)\n```\n\n```\n(.*?)```",
                      text, re.DOTALL)  # fmt: skip
    assert match
    result = CliRunner().invoke(kvcache, shlex.split(match[1]))
    assert result.exit_code == 0
    assert match[2] in result.stdout


def test_commands_of_the_readme_run() -> None:
    commands = re.findall(r"^\$ backend\.ai kvcache (plan .*)$", (ROOT / "README.md").read_text(),
                          re.MULTILINE)  # fmt: skip
    assert commands
    for command in commands:
        if "./my-model" not in command:
            assert CliRunner().invoke(kvcache, shlex.split(command)).exit_code == 0


def test_start_command_of_the_readme_gets_what_is_printed() -> None:
    def lines(text: str) -> list[str]:
        # Which namespace it is says nothing to a reader.
        return re.sub(r"assumed-\w+", "assumed-…", text).splitlines()

    text = (ROOT / "README.md").read_text()
    match = re.search(
        r"^\$ backend\.ai kvcache (plan .* -- .*)\n((?:.*\n)*?)```", text, re.MULTILINE
    )
    assert match
    shown = [line for line in lines(match[2]) if line != "…"]
    assert len(shown) > 10
    printed = iter(lines(CliRunner().invoke(kvcache, shlex.split(match[1])).stdout))
    # In the same order.
    assert [line for line in shown if line not in printed] == []


def test_tables_of_ways_are_those_of_the_code() -> None:
    script = runpy.run_path(str(ROOT / "scripts/compatibility-table"))
    text = (ROOT / "docs/compatibility.md").read_text()
    assert text == script["with_tables"](text)
    for name in script["TABLES"]:
        assert text.count(script["BEGIN"].format(name=name)) == 1
        assert text.count(script["END"].format(name=name)) == 1


def test_every_figure_has_its_line() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    lines = re.findall(r"^\| `(kvcache_\w+)` \| \S+ \| (.*) \|$", text, re.MULTILINE)
    assert lines == [(indicator.key, indicator.meaning) for indicator in INDICATORS]


def test_every_setting_has_its_line() -> None:
    text = (ROOT / "docs/policy.md").read_text().partition("\n## What users may say")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE) == list(SETTINGS)


def test_every_way_is_in_the_documents() -> None:
    for name in ("README.md", "docs/compatibility.md"):
        text = (ROOT / name).read_text()
        assert [way for way in NAMES if f"`{way}`" not in text] == []
