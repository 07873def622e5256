"""The table of start commands, and the shells themselves as the judge of what is read of them.

tests/data/commands/start-commands.json has commands as people write them; expected.json says of
these and of others of their kinds what is read, or why nothing is.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.kvcache.engine.arguments import Dialect, certain_arguments
from ai.backend.kvcache.engine.command import EngineCommand, Program, find_engine
from ai.backend.kvcache.engine.sglang import SGLANG
from ai.backend.kvcache.engine.vllm import DYNAMO, VLLM
from ai.backend.kvcache.errors import StartCommandError

COMMANDS = Path(__file__).parents[2] / "data" / "commands"
ROWS: list[dict[str, Any]] = json.loads((COMMANDS / "expected.json").read_text())
GIVEN: list[list[str]] = json.loads((COMMANDS / "start-commands.json").read_text())
DIALECTS: Mapping[Program, Dialect] = {
    Program.VLLM: VLLM,
    Program.SGLANG: SGLANG,
    Program.DYNAMO: DYNAMO,
}

#: More than one word in the last of them, so that quotes matter.
ADDED = ("--config", "/home/config/kvcache/vllm.yaml", "--served-model-name", "it's mine")
LINK = "/home/config/kvcache/model"


def read(row: Mapping[str, Any]) -> tuple[EngineCommand, list[str]]:
    # The agent hands commands over as tuples.
    command = find_engine(tuple(row["command"]), (), row.get("environ"))
    return command, certain_arguments(command.arguments, DIALECTS[command.program])


def name(row: Mapping[str, Any]) -> str:
    return " ".join(row["command"])[:60]


READABLE = [row for row in ROWS if "program" in row]


class TestTable:
    def test_has_all_that_people_write(self) -> None:
        assert [row["command"] for row in ROWS[: len(GIVEN)]] == GIVEN
        assert len(GIVEN) == 85

    @pytest.mark.parametrize("row", READABLE, ids=name)
    def test_is_read(self, row: Mapping[str, Any]) -> None:
        command, arguments = read(row)
        assert str(command.program) == row["program"]
        assert arguments == row["arguments"]
        assert dict(command.environment) == row.get("sets", {})
        assert str(command.directory) == row.get("directory", ".")

    @pytest.mark.parametrize("row", [r for r in ROWS if "program" not in r], ids=name)
    def test_is_left_alone(self, row: Mapping[str, Any]) -> None:
        with pytest.raises(StartCommandError) as raised:
            read(row)
        assert str(raised.value) == row["left_alone_because"]


class RealShells:
    """Runs commands with programs in the engines' places that record what they are given."""

    STUBS = ("vllm", "sglang", "python", "python3", "python3.12")
    #: Their options are read by their manuals, so here they record their arguments as well.
    LAUNCHERS = ("uv", "numactl", "conda", "opentelemetry-instrument")
    INITS = ("tini", "dumb-init")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._record = directory / "record"
        programs = directory / "venv" / "bin"
        for made in (programs, directory / "work", directory / "models"):
            made.mkdir(parents=True)
        for stub in (*self.STUBS, *self.LAUNCHERS):
            path = programs / stub
            path.write_text('#!/bin/sh\nprintf "%s\\0" "$@" > "$RECORD"\n')
            path.chmod(0o755)
        for init in self.INITS:
            path = programs / init
            path.write_text(
                '#!/bin/sh\nwhile :; do case "$1" in -*) shift;; *) exec "$@";; esac; done\n'
            )
            path.chmod(0o755)
        (programs / "sleep").symlink_to("/bin/true")
        (programs / "activate").touch()
        # A login shell begins with the system's own PATH.
        (directory / "work" / ".bash_profile").write_text(f"PATH={programs}:$PATH\n")

    def here(self, words: Sequence[str]) -> list[str]:
        """The command with directories that exist here in the place of a container's."""
        places = {"/opt/venv": "venv", "/home/work": "work", "/models": "models", "/tmp": "work"}
        here: list[str] = []
        for word in words:
            for place, ours in places.items():
                word = re.sub(rf"(?<![\w~]){place}\b", f"<{ours}>", word)
            for ours in places.values():
                word = word.replace(f"<{ours}>", str(self._directory / ours))
            here.append(word)
        return here

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PATH": f"{self._directory}/venv/bin:{os.environ['PATH']}",
            "RECORD": str(self._record),
            "HOME": str(self._directory / "work"),
            "A": "one", "B": "two words", "E": "", "N": "8", "S": " a  b ", "Q": "a'b\"c",
        }  # fmt: skip

    def given(self, command: Sequence[str], environ: Mapping[str, str]) -> list[str] | None:
        """What the first program of the command was given; None: the command runs none."""
        self._record.unlink(missing_ok=True)
        subprocess.run(
            command,
            # What the reader is not told of, as if an image had set it.
            env={**environ, "API_KEY": "k", "PORT": "1"}, cwd=self._directory / "work",
            stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=20,
        )  # fmt: skip
        if not self._record.exists():
            return None
        return self._record.read_bytes().decode(errors="surrogateescape").split("\0")[:-1]


@pytest.fixture(scope="module")
def shells(tmp_path_factory: pytest.TempPathFactory) -> RealShells:
    return RealShells(tmp_path_factory.mktemp("shells"))


def own_words(given: Sequence[str], arguments: Sequence[object]) -> tuple[list[str], list[str]]:
    """(what stands in front of the engine's own arguments, these arguments)."""
    cut = len(given) - len(arguments)
    return list(given[:cut]), list(given[cut:])


class TestAgainstRealShells:
    @pytest.mark.parametrize("row", READABLE, ids=name)
    def test_what_is_read_and_what_is_changed(
        self, row: Mapping[str, Any], shells: RealShells
    ) -> None:
        """The engine gets what is said; of the changed command exactly what was added besides."""
        command = shells.here(row["command"])
        told = {n: shells.here([value])[0] for n, value in row.get("environ", {}).items()}
        environ = {**shells.environ, **told}
        found = find_engine(command, (), environ)
        given = shells.given(command, environ)
        assert given is not None
        front, own = own_words(given, found.arguments)
        for argument, word in zip(found.arguments, own, strict=True):
            assert not argument.is_certain or word == argument.text

        changed = shells.given(found.with_arguments(ADDED, LINK), environ)
        assert changed is not None
        # The model and the config file are the only words that go; both are looked for here by
        # their text, not by their place.
        model = shells.here(["/models"])[0]
        names = {model, f"{model}/My Model", ".", f"{environ['HOME']}/models"}
        kept = [w for w in own if w not in names and w != f"--model={model}"]
        left = [w for w in changed[len(front) :] if w not in (LINK, f"--model={LINK}")]
        assert changed[: len(front)] == front
        assert len(left) == len(changed) - len(front) - 1
        assert left == [*kept, *ADDED]

    @pytest.mark.parametrize("row", [r for r in READABLE if "bash" in r["command"][0]], ids=name)
    def test_the_rest_of_the_line_stays(self, row: Mapping[str, Any]) -> None:
        found, _ = read(row)
        changed = found.with_arguments(("--seed", "1"))
        place = next(i for i, word in enumerate(changed) if word != row["command"][i])
        before, _, behind = changed[place].partition(" --seed 1")
        assert before + behind in (row["command"][place], f"{row['command'][place]} ")

    def test_any_line(self, shells: RealShells) -> None:
        """Lines at random: what is read for certain is what bash really gives."""
        atoms = [
            *"ab1-=./'\"\\${}:~#\n\t;|&>`*?[]!", " ", " ", "$A", "${E}", '"$B"', "${X:-d}",
            "${A:+z}", "$((2*N))", "$'a\\n'", "'q r'", "\\\n", "\\ ", " -tp 8", "2>&1",
            "| tee l", "# c",
            "C=4 ", "$C", "$S", '"$@"', "$1", "$*", "\r", "é", "=~", "{a,b}", "$Q", "8>", " &> o",
        ]  # fmt: skip
        chosen = random.Random(20)
        certain = 0
        while certain < 120:
            line = "vllm serve /m " + "".join(chosen.choices(atoms, k=chosen.randint(1, 6)))
            if "$$" in line or "<" in line:
                continue
            command = ["bash", "-c", line, "name", "p q", "r"]
            try:
                arguments = find_engine(command, (), shells.environ).arguments
            except StartCommandError:
                continue
            given = shells.given(command, shells.environ)
            if given is None or not all(argument.is_certain for argument in arguments):
                continue
            assert given[1:] == [argument.text for argument in arguments], line
            certain += 1


class TestChanged:
    def test_own_config_file_is_taken_out(self) -> None:
        found = find_engine(["bash", "-c", "vllm serve /m --config 'my file.yaml' -tp 2 > log"])
        assert found.with_arguments(("--config", "k.yaml"))[2] == (
            "vllm serve /m -tp 2 --config k.yaml > log"
        )

    @pytest.mark.parametrize("line", ["vllm serve $ALL", "vllm serve /m $MORE"])
    def test_what_stands_in_a_variable_cannot_be_replaced(self, line: str) -> None:
        environ = {"ALL": "/m --seed 1", "MORE": "--seed 1 --config my.yaml"}
        found = find_engine(["bash", "-c", line], (), environ)
        with pytest.raises(StartCommandError, match="comes from a variable that holds more"):
            found.with_arguments(("--config", "k.yaml"), LINK)

    def test_a_model_behind_options_comes_to_the_front(self) -> None:
        # With a config file, vLLM takes the first word after "serve" for the model, or none.
        found = find_engine(["vllm", "serve", "--port", "8000", "/m"])
        assert found.with_arguments(("--config", "k.yaml"), "/link") == (
            "vllm", "serve", "/link", "--port", "8000", "--config", "k.yaml",
        )  # fmt: skip
        found = find_engine(["bash", "-c", "vllm serve --port 8000 '/m' | tee log"])
        assert found.with_arguments(("--config", "k.yaml"))[2] == (
            "vllm serve /m --port 8000 --config k.yaml | tee log"
        )

    def test_a_number_in_front_of_a_redirection(self) -> None:
        found = find_engine(["bash", "-c", "vllm serve /m>log"])
        assert found.with_arguments(("--seed", "8"))[2] == "vllm serve /m --seed 8 >log"

    def test_what_is_appended_needs_a_place(self) -> None:
        deaf = find_engine(["bash", "-c", "exec vllm serve /m"], ["-tp", "2"])
        assert deaf.lost == ("-tp", "2")
        assert [a.text for a in deaf.arguments] == ["/m"]
        # Of which the first becomes the shell's name.
        line = 'exec vllm serve /m "$@"'
        open_ = find_engine(["bash", "-c", line, "wrap"], ["-tp", "2"])
        assert open_.lost == ()
        assert [a.text for a in open_.arguments] == ["/m", "-tp", "2"]
        assert open_.with_arguments(ADDED)[3:] == ("wrap",)
        nameless = find_engine(["bash", "-c", line], ["-tp", "2"])
        assert [a.text for a in nameless.arguments] == ["/m", "2"]
        listed = find_engine(["vllm", "serve", "/m"], ["-tp", "2"])
        assert [a.text for a in listed.arguments] == ["/m", "-tp", "2"]
        assert listed.with_arguments(("--seed", "1")) == ("vllm", "serve", "/m", "--seed", "1")


class TestAnyText:
    @given(st.lists(st.text(max_size=40), max_size=6), st.booleans())
    def test_is_read_or_refused(self, words: list[str], is_line: bool) -> None:
        command = ["bash", "-c", "vllm serve /m " + " ".join(words)] if is_line else words
        try:
            found = find_engine(command)
        except StartCommandError:
            return
        found.with_arguments(("--seed", "1"))

    @pytest.mark.parametrize(
        "text",
        [
            "$(" * 15_000,
            "${A:-" * 6_000,
            "`" * 30_000,
            "\\" * 30_000,
            "'" * 30_000,
            "vllm serve /m " + "$A" * 15_000,
            "vllm serve /m $((" + "1+" * 10_000 + "1))",
            "vllm serve /m $((" + "(" * 10_000 + "1))",
            "vllm serve /m --x=$((9**9**9**9))",
            "export A=1;" * 2_500 + "vllm serve /m",
            "vllm serve /m " + "> a " * 7_000,
            "{" * 16_000 + "," + "}" * 16_000,
            "x" * 10**7,
        ],
        ids=lambda text: text[:12],
    )
    def test_takes_no_time(self, text: str) -> None:
        start = time.process_time()
        with contextlib.suppress(StartCommandError):
            find_engine(["bash", "-c", text], (), {"A": "1"})
        # Milliseconds in truth; a second would keep other sessions waiting.
        assert time.process_time() - start < 1
