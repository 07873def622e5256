from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.kvcache.engine.command import (
    ListCommand,
    ShellCommand,
    expand,
    find_engine,
    without_config,
)

ADDED = ["--config", "/home/config/kvcache/vllm.yaml"]


class TestLists:
    @pytest.mark.parametrize(
        "prefix",
        [
            ("vllm", "serve"),
            ("/usr/local/bin/vllm", "serve"),
            ("python", "-m", "vllm.entrypoints.openai.api_server"),
            ("/usr/bin/python3.12", "-m", "vllm.entrypoints.openai.api_server"),
        ],
    )
    def test_certain(self, prefix: tuple[str, ...]) -> None:
        found = find_engine([*prefix, "/models", "-tp", "2"])
        assert isinstance(found, ListCommand)
        assert found.arguments(["--port", "1"], {}) == ["/models", "-tp", "2", "--port", "1"]
        assert found.with_arguments(ADDED) == (*prefix, "/models", "-tp", "2", *ADDED)

    @pytest.mark.parametrize(
        "arguments", [["--model", "/models"], ["--model=/models"], ["--config", "with-model.yaml"]]
    )
    def test_certain_with_the_model_elsewhere(self, arguments: list[str]) -> None:
        assert find_engine(["vllm", "serve", "--port", "8000", *arguments]) is not None

    @pytest.mark.parametrize(
        "command",
        [
            (),
            ("vllm",),
            ("vllm", "serve"),
            ("vllm", "serve", "--port", "8000", "/models"),
            ("vllm", "bench"),
            ("vllm serve /models",),
            ("python", "-m", "sglang.bench_serving"),
            ("sglang", "generate"),
            ("python", "-m", "dynamo.frontend"),
            ("python", "serve.py"),
            ("pythonic", "-m", "vllm.entrypoints.openai.api_server"),
        ],
    )
    def test_not_certain(self, command: tuple[str, ...]) -> None:
        assert find_engine(command) is None


class TestShells:
    @pytest.mark.parametrize("shell", [("bash", "-c"), ("/bin/sh", "-c"), ("bash", "-lc")])
    @pytest.mark.parametrize("before", ["", "exec ", "HF_HUB_OFFLINE=1 exec "])
    def test_certain(self, shell: tuple[str, ...], before: str) -> None:
        found = find_engine([*shell, f"{before}vllm serve /models -tp 2"])
        assert isinstance(found, ShellCommand)
        assert found.arguments([], {}) == ["/models", "-tp", "2"]
        assert found.with_arguments(ADDED) == (
            *shell,
            f"{before}vllm serve /models -tp 2 --config /home/config/kvcache/vllm.yaml",
        )

    def test_several_lines(self) -> None:
        line = "vllm serve /models \\\n  --max-model-len 8192 \\\n  -tp 2\n"
        found = find_engine(["bash", "-c", line])
        assert found is not None
        assert found.arguments([], {}) == ["/models", "--max-model-len", "8192", "-tp", "2"]

    def test_variables_are_read_and_kept(self) -> None:
        found = find_engine([
            "bash",
            "-c",
            "vllm serve $MODEL -tp ${TP} --port ${PORT:-8000} $MORE",
        ])
        assert found is not None
        environ = {"MODEL": "/models", "TP": "4", "MORE": "--seed 1"}
        assert found.arguments([], environ) == [
            "/models", "-tp", "4", "--port", "8000", "--seed", "1",
        ]  # fmt: skip
        assert (
            "$MODEL -tp ${TP} --port ${PORT:-8000} $MORE --config" in found.with_arguments(ADDED)[2]
        )

    def test_own_config_file_is_taken_out(self) -> None:
        found = find_engine(["bash", "-c", "vllm serve /m --config 'my file.yaml' -tp 2"])
        assert found is not None
        assert found.arguments([], {})[1:3] == ["--config", "my file.yaml"]
        assert found.with_arguments(ADDED)[2] == (
            "vllm serve /m -tp 2 --config /home/config/kvcache/vllm.yaml"
        )

    def test_what_is_appended_needs_a_place(self) -> None:
        line = "exec vllm serve /m"
        deaf = find_engine(["bash", "-c", line])
        assert deaf is not None
        assert not deaf.takes_appended
        assert deaf.arguments(["-tp", "2"], {}) == ["/m"]
        # of which the first becomes the shell's name
        open_ = find_engine(["bash", "-c", f'{line} "$@"', "wrap"])
        assert open_ is not None
        assert open_.takes_appended
        assert open_.arguments(["-tp", "2"], {}) == ["/m", "-tp", "2"]
        assert open_.with_arguments(ADDED)[3:] == ("wrap",)
        nameless = find_engine(["bash", "-c", f'{line} "$@"'])
        assert nameless is not None
        assert nameless.arguments(["-tp", "2"], {}) == ["/m", "2"]

    @pytest.mark.parametrize(
        "line",
        [
            "vllm serve /m && echo done",
            "cd /tmp; vllm serve /m",
            "vllm serve /m | tee log",
            "vllm serve /m > log",
            "vllm serve /m 2>&1",
            "vllm serve /m &",
            "vllm serve $(cat model)",
            "vllm serve `cat model`",
            "(vllm serve /m)",
            "vllm serve /m # mine",
            "pip install x\nvllm serve /m",
            "vllm serve 'unfinished",
            'vllm serve "unfinished',
            "if true; then vllm serve /m; fi",
            "LMCACHE_CONFIG_FILE=/x vllm serve /m",
            "PYTHONHASHSEED=0 exec vllm serve /m",
            "nohup vllm serve /m",
            "./start.sh",
            "",
        ],
    )
    def test_not_certain(self, line: str) -> None:
        assert find_engine(["bash", "-c", line]) is None

    @pytest.mark.parametrize(
        "command",
        [
            ["bash", "start.sh"],
            ["bash", "-c"],
            ["bash", "-n", "vllm serve /m"],
            ["fish", "-c", "x"],
        ],
    )
    def test_other_shells(self, command: list[str]) -> None:
        assert find_engine(command) is None

    def test_operators_in_single_quotes_are_text(self) -> None:
        found = find_engine(["bash", "-c", "vllm serve /m --served-model-name 'a;b|c'"])
        assert found is not None
        assert found.arguments([], {}) == ["/m", "--served-model-name", "a;b|c"]


WORDS = st.text(alphabet="ab1-=./'\"\\$ {}:", max_size=12)


class TestAgainstARealShell:
    """What is read is what the shell really gives."""

    ENVIRON: ClassVar = {"A": "one", "B": "two words", "E": ""}

    def given_by_bash(self, line: str) -> list[str] | None:
        script = "import json, sys; print(json.dumps(sys.argv[1:]))"
        done = subprocess.run(
            ["bash", "-c", line.replace("vllm serve", f"{sys.executable} -c '{script}'", 1)],
            capture_output=True, env=self.ENVIRON, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            return None
        arguments: list[str] = json.loads(done.stdout)
        return arguments

    @pytest.mark.parametrize(
        "rest",
        [
            "/m -tp 2",
            "/m --name 'a b' --other \"c d\"",
            "/m --name=$A --other=\"$A $B\" '$A'",
            '/m ${A} ${B} "${B}"',
            "/m ${X:-default} ${A:-default}",
            '/m a\\ b "q\\"q"',
            "/m x'y'\"z\"$A",
            "/m \"a\\b \\$A\" \\$A ''",
            '/m $E "$E"',
        ],
    )
    def test_words(self, rest: str) -> None:
        found = find_engine(["bash", "-c", f"vllm serve {rest}"])
        assert found is not None
        assert found.arguments([], self.ENVIRON) == self.given_by_bash(f"vllm serve {rest}")

    @given(st.lists(WORDS, max_size=3))
    def test_anything_else_is_no_surprise(self, words: list[str]) -> None:
        with contextlib.suppress(IndexError):
            found = find_engine(["bash", "-c", f"vllm serve /m {' '.join(words)}"])
            if found is not None:
                found.with_arguments(ADDED)
                assert found.arguments([], {})[0] == "/m"


def test_unknown_variable_stays_as_it_is_written() -> None:
    assert expand("$UNKNOWN", {}) == ["$UNKNOWN"]


def test_without_config() -> None:
    arguments = ["/m", "--config", "a.yaml", "-tp", "2", "--config=b"]
    assert without_config(arguments) == ["/m", "-tp", "2", "--config=b"]
