"""What is reported of real engines: under a load that is known, and when they fail."""

from __future__ import annotations

import json
import shlex
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import attrs
import pytest

from devcluster import command, demo, settings
from devcluster.client import Client, wait_until
from devcluster.completion import answers
from devcluster.tinytext import long_prompt

from .conftest import Other, RunningSession, running

#: Of vLLM on CPUs, and of LMCache: what they find, they find in whole ones of these.
BLOCK_TOKENS, CHUNK_TOKENS = 128, 256

#: A figure is in live_stat after the agent's next tick and Prometheus' next scrape.
PATIENCE_SECONDS = 60.0

#: The page of whoever answers at the engine's port; the argument says which.
_PAGES = """
import http.server, sys
PAGES = {
    "large": b"vllm:prompt_tokens_total 9e9\\n" * (50 * 2**20 // 29),
    "garbage": bytes(range(256)) * 400,
    "absurd": b"vllm:prompt_tokens_total -1\\nvllm:kv_cache_usage_perc NaN\\n",
}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PAGES[sys.argv[1]])
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""

_PROCESSES = """
import json, os
found = []
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    try:
        words = open(f"/proc/{pid}/cmdline").read().split("\\0")[:-1]
    except OSError:
        continue
    found.append([pid, words])
print(json.dumps(found))
"""


def in_prometheus(session_id: str) -> dict[str, float]:
    """Figure → value, as the cluster's Prometheus has scraped it from the agent."""
    query = (
        "backendai_container_utilization"
        f'{{session_id="{session_id}",value_type="current",container_metric_name=~"kvcache_.+"}}'
    )
    url = (
        f"http://{settings.HOST}:{settings.PORTS['prometheus']}/api/v1/query?"
        f"{urllib.parse.urlencode({'query': query})}"
    )
    with urllib.request.urlopen(url, timeout=10) as response:
        found = json.load(response)["data"]["result"]
    return {r["metric"]["container_metric_name"]: float(r["value"][1]) for r in found}


def in_live_stat(client: Client, session_id: str) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in client.live_stat(session_id).items()
        if key.startswith("kvcache_")
    }


def wait_for_figures(
    client: Client,
    session_id: str,
    expected: Mapping[str, float],
    timeout: float = PATIENCE_SECONDS,
) -> dict[str, float]:
    """All figures, once those that are expected are so, in Prometheus and in live_stat."""
    seen: list[dict[str, float]] = []

    def reported() -> dict[str, float] | None:
        for figures in (in_prometheus(session_id), in_live_stat(client, session_id)):
            seen.append(figures)
            for key, value in expected.items():
                if figures.get(key) != pytest.approx(value, abs=0.001):
                    return None
        return seen[-1]

    try:
        return wait_until(f"{expected}", reported, timeout, every=0.5)
    except Exception as e:
        raise AssertionError(f"expected {expected}, last seen {seen[-1]}") from e


@attrs.frozen
class Load:
    """A session that is asked."""

    client: Client
    url: str
    session: str

    def ask(self, prompt: str) -> int:
        """The prompt's tokens."""
        return demo.ask(self.url, prompt).prompt_tokens

    def wait_for(
        self, expected: Mapping[str, float], timeout: float = PATIENCE_SECONDS
    ) -> dict[str, float]:
        return wait_for_figures(self.client, self.session, expected, timeout)


def new_prompt() -> str:
    return long_prompt(1500, seed=time.time_ns())


@pytest.fixture(scope="module")
def load(client: Client, result: demo.Result) -> Load:
    return Load(client, result.url, result.session)


@attrs.define
class Elsewhere:
    """The session beside it, which is asked what its figures do not show already."""

    load: Load
    asked: str
    """A prompt that its engine has in memory."""
    is_new: bool = True
    """Whether its figures are those of a prompt that was new."""

    def check(self) -> None:
        """Its figures follow as ever."""
        if self.is_new:
            tokens = self.load.ask(self.asked)
            # vLLM computes the last token at least.
            found = (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
            self.load.wait_for({"kvcache_engine_util": 100 * found / tokens})
        else:
            self.load.ask(new_prompt())
            self.load.wait_for({"kvcache_computed_util": 100, "kvcache_engine_util": 0})
        self.is_new = not self.is_new


@pytest.fixture(scope="module")
def elsewhere(client: Client, other: Other, prompt: str) -> Elsewhere:
    return Elsewhere(Load(client, other.url, other.session), prompt)


class TestScriptedLoad:
    def test_new_context_then_known_one(
        self, client: Client, load: Load, result: demo.Result
    ) -> None:
        folder = client.ensure_folder(demo.KV_FOLDER) / "ns" / result.namespace
        prompt = new_prompt()

        tokens = load.ask(prompt)
        figures = load.wait_for({
            "kvcache_computed_util": 100,
            "kvcache_util": 0,
            "kvcache_engine_util": 0,
            "kvcache_loaded_tokens": result.loaded_tokens,
        })
        assert figures["kvcache_first_token_cold"] > 0
        assert figures["kvcache_preempted"] == 0
        assert figures["kvcache_transport"] == 1

        # Whole chunks of both prompts are files of one size.
        chunks = result.prompt_tokens // CHUNK_TOKENS + tokens // CHUNK_TOKENS
        sizes: list[int] = []

        def stored() -> bool | None:
            sizes[:] = [path.stat().st_size for path in folder.glob("*.data")]
            return len(sizes) == chunks or None

        wait_until(f"{chunks} chunks in the folder", stored, PATIENCE_SECONDS)
        assert len(set(sizes)) == 1
        # The namespace is looked at once a minute.
        figures = load.wait_for(
            {
                "kvcache_mem": sum(sizes),
                "kvcache_files": chunks,
                "kvcache_blocks": chunks,
                "kvcache_unfinished": 0,
                "kvcache_store_mem": sizes[0],
                "kvcache_failed_stores": 0,
            },
            timeout=120,
        )
        assert figures["kvcache_oldest_seconds"] > 0

        load.ask(prompt)
        # vLLM computes the last token at least.
        found = (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        load.wait_for({
            "kvcache_engine_util": 100 * found / tokens,
            "kvcache_util": 0,
            "kvcache_computed_util": 100 * (tokens - found) / tokens,
            "kvcache_loaded_tokens": result.loaded_tokens,
        })


def processes(session: RunningSession) -> list[tuple[int, list[str]]]:
    """(id, command line) of all that run in a session."""
    return [(pid, words) for pid, words in json.loads(session.run("python3", "-c", _PROCESSES))]


def signal_all(session: RunningSession, pids: Iterable[int], name: str) -> None:
    session.run("sh", "-c", f"kill -{name} {' '.join(map(str, pids))} || true")


@contextmanager
def impostor(session: RunningSession, page: str) -> Iterator[None]:
    """Another program where the engine was."""
    command.run(["docker", "exec", "--detach", session.container_id, "python3", "-c", _PAGES, page])

    def found() -> list[int] | None:
        return [pid for pid, words in processes(session) if _PAGES in words] or None

    pids = wait_until("The other program", found, 20, every=0.2)
    try:
        yield
    finally:
        signal_all(session, pids, "KILL")


@attrs.frozen
class Engine:
    """The processes of a session's engine."""

    session: RunningSession
    pids: tuple[int, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def of(cls, session: RunningSession) -> Engine:
        found = processes(session)
        (start,) = [
            (pid, words)
            for pid, words in found
            if words[:2] == ["sh", "/home/config/kvcache/with-server.sh"]
        ]
        pids = tuple(
            pid
            for pid, words in found
            if pid == start[0] or any("vllm" in w or "VLLM" in w or "lmcache" in w for w in words)
        )
        variables = session.read(f"/proc/{start[0]}/environ").split("\0")
        return cls(
            session, pids, tuple(start[1]), dict(v.split("=", 1) for v in variables if "=" in v)
        )

    def signal(self, name: str) -> None:
        signal_all(self.session, self.pids, name)

    def start(self) -> None:
        """The same command again, beside the kernel runner that does not do it."""
        variables = [part for k, v in self.environment.items() for part in ("--env", f"{k}={v}")]
        line = f"cd /models && exec {shlex.join(self.command)} > /tmp/again.log 2>&1"
        command.run([
            "docker",
            "exec",
            "--detach",
            *variables,
            self.session.container_id,
            "sh",
            "-c",
            line,
        ])


@pytest.fixture
def engine(client: Client, load: Load) -> Engine:
    return Engine.of(running(client, load.session))


def unchanged(figures: Mapping[str, float]) -> dict[str, float]:
    """Without those that are of time or of the folder alone, which go on."""
    return {
        key: value
        for key, value in figures.items()
        if key not in ("kvcache_oldest_seconds", "kvcache_mem", "kvcache_files", "kvcache_blocks")
    }


def at_rest(load: Load) -> dict[str, float]:
    """The figures of an engine that had nothing to do for a tick, so that all rates are 0."""
    rates = ("kvcache_store_rate", "kvcache_load_rate", "kvcache_evicted_rate")
    return unchanged(load.wait_for(dict.fromkeys(rates, 0)))


class TestEngineThatFails:
    """One engine: it hangs, goes on, is killed, has impostors in its place, and comes back."""

    def test_that_hangs(
        self, load: Load, elsewhere: Elsewhere, engine: Engine, client: Client
    ) -> None:
        before = at_rest(load)
        engine.signal("STOP")
        try:
            elsewhere.check()
            assert unchanged(in_prometheus(load.session)) == before
        finally:
            engine.signal("CONT")
        load.ask(new_prompt())
        load.wait_for({"kvcache_computed_util": 100, "kvcache_engine_util": 0})

    def test_that_is_gone_and_comes_back(
        self, load: Load, elsewhere: Elsewhere, engine: Engine, client: Client
    ) -> None:
        before = at_rest(load)
        engine.signal("KILL")
        elsewhere.check()
        assert unchanged(in_prometheus(load.session)) == before
        for page in ("large", "garbage", "absurd"):
            with impostor(engine.session, page):
                elsewhere.check()
                assert unchanged(in_prometheus(load.session)) == before

        engine.start()
        wait_until("The engine", lambda: answers(load.url) or None, 180)
        # It counts from nothing, and so do its figures.
        load.ask(new_prompt())
        figures = load.wait_for({"kvcache_computed_util": 100, "kvcache_loaded_tokens": 0})
        assert all(value >= 0 for value in figures.values())
