"""What becomes of a service whose KV folder or LMCache server fails, shown on a real engine.

In short: a service goes on answering, and answers right, as long as its folder and its LMCache
server fail outright; it computes what it cannot load. What is worth knowing:

- Without the seal that the plugin orders, LMCache takes a changed file for a good one, and the
  service answers with nonsense.
- A damaged file stays. Until somebody removes it, its prompt is computed on every visit.
- A file that hangs, as on a file server that does not answer, holds the request that wants it for
  as long as it hangs, and a handful of them hold every request. No timeout of vLLM's or LMCache's
  ends that.
- A server that is gone comes back after a while, and one that does not start costs the service its
  KV cache and nothing else.

The faults are real: files are changed where they lie, the folder fills up or is renamed away, and
processes get signals. One engine lives through nearly all of them, on a small disk of its own.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import attrs
import pytest

from ai.backend.kvcache.agent.netns import InsidePage, read_inside
from ai.backend.kvcache.engine.adapters.lmcache_mp import LAUNCHER_FILE, LMCacheMultiProcess
from ai.backend.kvcache.folder.usage import namespace_usage
from ai.backend.kvcache.metrics.indicators import engine_indicators
from ai.backend.kvcache.metrics.interval import between
from ai.backend.kvcache.metrics.reading import Reading, read_page
from ai.backend.kvcache.plan.decide import Preparation
from ai.backend.kvcache.plan.session import Session
from devcluster.completion import Answer
from devcluster.tinytext import long_prompt

from .engine_container import EngineContainer, docker, log_of, started
from .session_container import prepared, running_session, session_of

pytestmark = pytest.mark.faults

CHUNK = LMCacheMultiProcess.chunk_tokens
#: Every prompt here.
WHOLE = 2 * CHUNK
_PROMPT_WORDS = WHOLE + 50
_BEGINNING_WORDS = CHUNK + 25

_DISK_BYTES = 256 * 2**20
#: For what goes on behind an answer.
_PATIENCE_SECONDS = 60.0
#: vLLM looks after a server every 10 s and gives it as long to answer.
_RECOVERY_SECONDS = 90.0
#: Shorter than it could hang, longer than any answer here takes.
_HANG_SECONDS = 5.0

_FIND_SERVER = """
import json, os
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    words = open(f"/proc/{pid}/cmdline").read().split("\\0")[:-1]
    if "lmcache.v1.multiprocess.http_server" in words:
        print(json.dumps({"pid": pid, "command": words}))
"""
#: For files: those that asyncio starts by default.
_COUNT_THREADS = "import os; print(min(32, os.cpu_count() + 4))"
_CLEAR_SERVER = """
import sys, urllib.request
url = f"http://{sys.argv[1]}:{sys.argv[2]}/cache/clear"
urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30)
"""


def wait_for(what: str, condition: Callable[[], bool], seconds: float = _PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)


@dataclass(frozen=True)
class Reply:
    text: str
    loaded: float
    """Tokens of the prompt that came out of LMCache."""
    seconds: float


@dataclass(frozen=True)
class Stored:
    """A prompt with two chunks in the folder."""

    prompt: str
    reply: Reply
    second_chunk: Path


@dataclass
class LMCacheServer:
    """The process beside vLLM, inside of the container."""

    engine: EngineContainer
    pid: int
    command: list[str]

    @classmethod
    def of(cls, engine: EngineContainer) -> LMCacheServer:
        return cls(engine, **json.loads(engine.run("python3", "-c", _FIND_SERVER)))

    def signal(self, number: signal.Signals) -> None:
        self.engine.run("python3", "-c", f"import os; os.kill({self.pid}, {number.value})")

    def forget(self) -> None:
        """Empties its memory. What is in the folder stays."""
        host, port = self.http_address()
        self.engine.run("python3", "-c", _CLEAR_SERVER, host, str(port))

    def http_address(self) -> tuple[str, int]:
        host, port = (
            self.command[self.command.index(option) + 1]
            for option in ("--http-host", "--http-port")
        )
        return host, int(port)


@dataclass
class Service:
    engine: EngineContainer
    storage: Path
    server: LMCacheServer = field(init=False)
    _prompts: Iterator[int] = field(default_factory=lambda: iter(range(1, 500)))

    def __post_init__(self) -> None:
        self.server = LMCacheServer.of(self.engine)

    def new_prompt(self) -> str:
        return long_prompt(_PROMPT_WORDS, seed=next(self._prompts))

    def loaded_tokens(self) -> float:
        return self.engine.metric(
            "vllm:prompt_tokens_by_source_total", source="external_kv_transfer"
        )

    def ask(self, prompt: str) -> Reply:
        """The answer; only with HTTP 200 is there one."""
        loaded_before = self.loaded_tokens()
        began = time.monotonic()
        answer = self.engine.complete(prompt)
        seconds = time.monotonic() - began
        assert answer.prompt_tokens // CHUNK in (1, 2)
        print(f"An answer after {seconds:.1f} s")
        return Reply(answer.text, self.loaded_tokens() - loaded_before, seconds)

    def ask_from_folder(self, prompt: str) -> Reply:
        """The answer of an engine that has nothing in its memory, as after a restart."""
        self.forget()
        return self.ask(prompt)

    def forget(self) -> None:
        self.server.forget()
        self.forget_in_vllm()

    def forget_in_vllm(self) -> None:
        wait_for(
            "vLLM lets go of its blocks",
            lambda: bool(self.engine.post("/reset_prefix_cache")["success"]),
        )

    def files(self) -> set[Path]:
        return set(self.storage.glob("*.data"))

    def store(self, prompt: str | None = None) -> Stored:
        """Asks something new and waits for its chunks, first the one and then the other."""
        prompt = prompt or self.new_prompt()
        beginning = " ".join(prompt.split()[:_BEGINNING_WORDS])
        before = self.files()
        self.ask(beginning)
        wait_for("the first chunk is stored", lambda: len(self.files() - before) == 1)
        before = self.files()
        reply = self.ask(prompt)
        wait_for("the second chunk is stored", lambda: len(self.files() - before) == 1)
        (second_chunk,) = self.files() - before
        return Stored(prompt, reply, second_chunk)

    def reading(self) -> Reading:
        """The page of LMCache's server, read as the agent does."""
        pid = int(docker("inspect", "--format", "{{.State.Pid}}", self.engine.name))
        host, port = self.server.http_address()
        return read_page(read_inside(pid, InsidePage(host, port, "/metrics"), 10, 2**20))

    def wait_for_figures(self, before: Reading, expected: Mapping[str, float]) -> None:
        """The server counts behind its answers."""

        def arrived() -> bool:
            found = engine_indicators(between(before, self.reading(), 10, self.block_bytes()))
            print({key: found.get(key) for key in expected})
            return all(found.get(key) == value for key, value in expected.items())

        wait_for(f"the server's page says {expected}", arrived)

    def block_bytes(self) -> float | None:
        folder = self.storage.parent.parent
        return namespace_usage(folder, self.storage.name, "lmcache-mp-fs-aesgcm").block_bytes

    def failures(self, words: str) -> int:
        return log_of(self.engine.name).count(words)


@contextmanager
def running_service(
    image: str, session: Session, preparation: Preparation, config_dir: Path, folder: Path
) -> Iterator[Service]:
    namespace = preparation.plan.namespace
    assert namespace is not None
    # For an interface that empties vLLM's memory.
    environment = {**preparation.environment, "VLLM_SERVER_DEV_MODE": "1"}
    preparation = attrs.evolve(preparation, environment=environment)
    with running_session(image, session, preparation, config_dir) as engine:
        yield Service(engine, folder / "ns" / namespace.name)


def _session(model: Path, folder: Path) -> Session:
    # In 32 bits, where answers do not depend on how a prompt is cut into batches.
    return session_of(model, folder, at="/models", arguments=("--dtype", "float32"))


def _with_server_arguments(
    preparation: Preparation, change: Callable[[list[str]], None]
) -> Preparation:
    """The same session with other arguments for LMCache's server."""
    launcher = preparation.files[LAUNCHER_FILE]
    (line,) = [line for line in launcher.splitlines() if "http_server" in line]
    program, between, arguments = line.partition(" --host ")
    words = shlex.split(between + arguments)
    change(words)
    changed = launcher.replace(line, f"{program} {shlex.join(words)}")
    return attrs.evolve(preparation, files={**preparation.files, LAUNCHER_FILE: changed})


def _unseal(arguments: list[str]) -> None:
    position = arguments.index("--l2-adapter") + 1
    storage = json.loads(arguments[position])
    del storage["serde"]
    arguments[position] = json.dumps(storage)


# How files are damaged.


def _halve(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _empty(file: Path) -> None:
    os.truncate(file, 0)


def _delete(file: Path) -> None:
    file.unlink()


def _replace(file: Path) -> None:
    file.write_bytes(random.Random(1).randbytes(file.stat().st_size))


def _flip(file: Path) -> None:
    """One bit. Where the file is plain numbers, the highest bit of the exponent of a small one."""
    content = bytearray(file.read_bytes())
    numbers = struct.iter_unpack("<f", content[: len(content) // 4 * 4])
    candidates = (index for index, (number,) in enumerate(numbers) if 0.5 <= abs(number) < 1)
    content[4 * next(candidates) + 3] ^= 0x40
    file.write_bytes(content)


@dataclass(frozen=True)
class Damage:
    stored: Stored
    reply: Reply
    """To the same prompt with the damage done."""
    size: int
    """Of the damaged file; 0 when there is none."""

    @property
    def right(self) -> bool:
        return self.reply.text == self.stored.reply.text


def _damages(service: Service, ways: Mapping[str, Callable[[Path], None]]) -> dict[str, Damage]:
    damages = {}
    for name, damage in ways.items():
        stored = service.store()
        damage(stored.second_chunk)
        size = stored.second_chunk.stat().st_size if stored.second_chunk.exists() else 0
        damages[name] = Damage(stored, service.ask_from_folder(stored.prompt), size)
    return damages


@pytest.fixture(scope="module")
def unsealed(
    image: str, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Damage]:
    """Damage to files without a seal, which is LMCache's default."""
    folder = tmp_path_factory.mktemp("unsealed")
    session = _session(model, folder)
    preparation = _with_server_arguments(prepared(session), _unseal)
    config_dir = tmp_path_factory.mktemp("config")
    with running_service(image, session, preparation, config_dir, folder) as service:
        return _damages(service, {"replaced": _replace, "flipped": _flip})


class TestUnsealedFolder:
    """What the seal is for."""

    @pytest.mark.parametrize("way", ["replaced", "flipped"])
    def test_a_changed_file_is_loaded_like_a_good_one(
        self, unsealed: dict[str, Damage], way: str
    ) -> None:
        assert unsealed[way].reply.loaded == WHOLE

    @pytest.mark.parametrize("way", ["replaced", "flipped"])
    def test_and_answered_from(self, unsealed: dict[str, Damage], way: str) -> None:
        assert unsealed[way].stored.reply.text.strip()
        assert not unsealed[way].right


class TestServerThatDoesNotStart:
    def test_costs_the_session_its_kv_cache_only(
        self, image: str, model: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        folder = tmp_path_factory.mktemp("kv-folder")
        session = _session(model, folder)
        preparation = _with_server_arguments(
            prepared(session), lambda arguments: arguments.append("--no-such-option")
        )
        config_dir = tmp_path_factory.mktemp("config")
        with running_session(image, session, preparation, config_dir) as engine:
            assert engine.complete(long_prompt(_PROMPT_WORDS, seed=1)).text.strip()
        log = started[-1].log
        assert "unrecognized arguments: --no-such-option" in log
        assert "No KV cache: LMCache's server did not start" in log
        assert list(folder.glob("ns/*/*.data")) == []


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system that can be filled up."""
    folder = tmp_path_factory.mktemp("disk")
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", folder], check=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(scope="module")
def service(
    image: str, model: Path, disk: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """A service as the plugin prepares it."""
    session = _session(model, disk)
    config_dir = tmp_path_factory.mktemp("config")
    with running_service(image, session, prepared(session), config_dir, disk) as running:
        yield running


class TestForeignFiles:
    def test_do_not_matter(self, service: Service) -> None:
        stored = service.store()
        odd = [
            service.storage / "läs mich @ nicht.data",
            service.storage / "model@1@2@3@4@5@6.data",
            service.storage / "-SEP-models@0x01000100@0@nothex.data",
        ]
        for path in odd:
            path.write_text("not of LMCache")
        (service.storage / "directory.data").mkdir()
        (service.storage / "dangling.data").symlink_to("nowhere")
        reply = service.ask_from_folder(stored.prompt)
        assert reply.loaded == WHOLE
        assert reply.text == stored.reply.text


class TestServersPage:
    """What the agent makes of it."""

    def test_blocks_that_are_stored_and_loaded(self, service: Service) -> None:
        before = service.reading()
        stored = service.store()
        size = stored.second_chunk.stat().st_size
        # Two files in ten seconds, and what they are in the mean.
        service.wait_for_figures(
            before,
            {
                "kvcache_store_rate": 2 * size / 10,
                "kvcache_store_mem": size,
                "kvcache_failed_stores": 0,
            },
        )
        before = service.reading()
        assert service.ask_from_folder(stored.prompt).loaded == WHOLE
        service.wait_for_figures(
            before, {"kvcache_load_rate": 2 * size / 10, "kvcache_load_mem": size}
        )

    @pytest.mark.parametrize(
        ("damage", "lost"),
        [
            (_halve, 1),
            (_empty, 1),
            # LMCache gives up all files of a load with the one whose seal is broken.
            (_flip, 2),
        ],
    )
    def test_blocks_that_cannot_be_loaded(
        self, service: Service, damage: Callable[[Path], None], lost: int
    ) -> None:
        stored = service.store()
        damage(stored.second_chunk)
        before = service.reading()
        service.ask_from_folder(stored.prompt)
        service.wait_for_figures(before, {"kvcache_failed_loads": lost})


@pytest.fixture(scope="module")
def damages(service: Service) -> dict[str, Damage]:
    ways = {
        "halved": _halve,
        "emptied": _empty,
        "replaced": _replace,
        "flipped": _flip,
        "deleted": _delete,
    }
    damages = _damages(service, ways)
    # The last to be stored. When it is there, none of the others is still about to be.
    wait_for("the deleted file is back", damages["deleted"].stored.second_chunk.exists)
    return damages


class TestDamagedFile:
    """Of two files of a prompt, the second is damaged."""

    @pytest.mark.parametrize("way", ["halved", "emptied", "deleted", "replaced", "flipped"])
    def test_does_not_change_the_answer(self, damages: dict[str, Damage], way: str) -> None:
        assert damages[way].stored.reply.text.strip()
        assert damages[way].right

    @pytest.mark.parametrize("way", ["halved", "emptied", "deleted"])
    def test_that_is_too_short_leaves_what_comes_before_it(
        self, damages: dict[str, Damage], way: str
    ) -> None:
        assert damages[way].reply.loaded == CHUNK

    @pytest.mark.parametrize("way", ["replaced", "flipped"])
    def test_that_breaks_the_seal_costs_the_whole_prompt(
        self, damages: dict[str, Damage], way: str
    ) -> None:
        """LMCache gives up all files of a load with the one."""
        assert damages[way].reply.loaded == 0

    def test_is_stored_again_if_it_is_gone(
        self, service: Service, damages: dict[str, Damage]
    ) -> None:
        assert service.ask_from_folder(damages["deleted"].stored.prompt).loaded == WHOLE

    @pytest.mark.parametrize("way", ["halved", "emptied", "replaced", "flipped"])
    def test_stays_until_it_is_removed(
        self, service: Service, damages: dict[str, Damage], way: str
    ) -> None:
        """LMCache looks only for the name before it stores."""
        damage = damages[way]
        file = damage.stored.second_chunk
        assert file.stat().st_size == damage.size
        assert service.ask_from_folder(damage.stored.prompt).loaded < WHOLE

        file.unlink()
        service.ask_from_folder(damage.stored.prompt)
        wait_for("the file is back", file.exists)
        again = service.ask_from_folder(damage.stored.prompt)
        assert again.loaded == WHOLE
        assert again.text == damage.stored.reply.text


class TestFullFolder:
    def test_keeps_no_new_prompt_and_serves_the_old_ones(
        self, service: Service, disk: Path
    ) -> None:
        old = service.store()
        new = service.new_prompt()
        files = service.files()
        ballast = disk / "ballast"
        failures = service.failures("No space left on device")
        reading = service.reading()
        with ballast.open("wb") as file:
            space = os.statvfs(disk)
            os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize)
        try:
            first = service.ask(new)
            wait_for(
                "storing fails", lambda: service.failures("No space left on device") > failures
            )
            assert first.text.strip()
            assert service.files() == files
            service.wait_for_figures(reading, {"kvcache_failed_stores": 2})
            reply = service.ask_from_folder(old.prompt)
            assert reply.loaded == WHOLE
            assert reply.text == old.reply.text
        finally:
            ballast.unlink()

        # With room again, the next visit stores it.
        service.forget()
        assert service.store(new).reply.text == first.text
        assert service.ask_from_folder(new).loaded == WHOLE


class TestFolderThatIsAway:
    def test_costs_only_what_it_held_and_may_come_back(self, service: Service, disk: Path) -> None:
        old = service.store()
        new = service.new_prompt()
        failures = service.failures("No such file or directory")
        away = (disk / "ns").rename(disk / "away")
        try:
            reply = service.ask_from_folder(old.prompt)
            assert reply.loaded == 0
            assert reply.text == old.reply.text
            first = service.ask(new)
            wait_for(
                "storing fails", lambda: service.failures("No such file or directory") > failures
            )
            assert not (disk / "ns").exists()
        finally:
            away.rename(disk / "ns")

        reply = service.ask_from_folder(old.prompt)
        assert reply.loaded == WHOLE
        assert reply.text == old.reply.text
        assert service.store(new).reply.text == first.text
        assert service.ask_from_folder(new).loaded == WHOLE


def _hang(file: Path) -> None:
    """A pipe without a writer: opening it takes as long as a file server that is away."""
    file.unlink()
    os.mkfifo(file)


def _release(files: Iterable[Path], answers: Iterable[Future[Answer]]) -> None:
    """Whoever waits for a writer sees one come and go, until all have their answers."""

    def answered() -> bool:
        for file in files:
            os.close(os.open(file, os.O_RDWR))
        return all(answer.done() for answer in answers)

    wait_for("answers after files hung", answered)


class TestFileThatHangs:
    def test_holds_its_own_request_and_no_other(self, service: Service) -> None:
        stuck, good = service.store(), service.store()
        service.forget()
        _hang(stuck.second_chunk)
        with ThreadPoolExecutor() as executor:
            answer = executor.submit(service.engine.complete, stuck.prompt)
            try:
                time.sleep(_HANG_SECONDS)
                loaded = service.ask(good.prompt)
                assert loaded.loaded == WHOLE
                assert loaded.text == good.reply.text
                assert service.ask(service.new_prompt()).text.strip()
                assert not answer.done()
            finally:
                _release([stuck.second_chunk], [answer])
            assert answer.result().text == stuck.reply.text

    def test_and_one_for_each_of_the_servers_threads_holds_every_request(
        self, service: Service
    ) -> None:
        """Also of a prompt that nobody has stored: looking for its files takes a thread, too."""
        threads = int(service.engine.run("python3", "-c", _COUNT_THREADS))
        stuck = [service.store() for _ in range(threads)]
        service.forget()
        files = [stored.second_chunk for stored in stuck]
        for file in files:
            _hang(file)
        with ThreadPoolExecutor(threads + 1) as executor:
            answers = [executor.submit(service.engine.complete, item.prompt) for item in stuck]
            try:
                time.sleep(_HANG_SECONDS)
                answers.append(executor.submit(service.engine.complete, service.new_prompt()))
                time.sleep(_HANG_SECONDS)
                assert not any(answer.done() for answer in answers)
            finally:
                _release(files, answers)
            *texts, new = [answer.result().text for answer in answers]
            assert texts == [stored.reply.text for stored in stuck]
            assert new.strip()


class TestHungServer:
    """vLLM asks every 10 s whether the server lives, and waits as long for the answer. What it asks
    the server in between takes the adapter's MESSAGE_TIMEOUT_SECONDS to fail, more than once for
    one request if it comes to that.
    """

    def test_holds_a_request_until_vllm_notices_and_is_used_again_later(
        self, service: Service
    ) -> None:
        stored = service.store()
        service.forget()
        service.server.signal(signal.SIGSTOP)
        try:
            first, second = service.ask(stored.prompt), service.ask(service.new_prompt())
        finally:
            service.server.signal(signal.SIGCONT)
        assert first.text == stored.reply.text
        assert first.loaded == 0
        assert second.text.strip()
        assert second.seconds < first.seconds

        _wait_for_recovery(service, stored)
        assert service.ask_from_folder(service.store().prompt).loaded == WHOLE


class TestKilledServer:
    """The last of its engine's faults."""

    def test_costs_one_slow_answer_and_comes_back(self, service: Service) -> None:
        stored = service.store()
        service.forget()
        files = service.files()
        killed = service.server.pid
        service.server.signal(signal.SIGKILL)
        first, second = service.ask(stored.prompt), service.ask(service.new_prompt())
        assert first.text == stored.reply.text
        assert second.text.strip()
        assert first.loaded == 0
        assert service.files() >= files

        _wait_for_recovery(service, stored)
        service.server = LMCacheServer.of(service.engine)
        assert service.server.pid != killed
        assert service.ask_from_folder(service.store().prompt).loaded == WHOLE


def _wait_for_recovery(service: Service, stored: Stored) -> None:
    began = time.monotonic()

    def loads() -> bool:
        service.forget_in_vllm()
        reply = service.ask(stored.prompt)
        assert reply.text == stored.reply.text
        return reply.loaded == WHOLE

    wait_for("vLLM loads again", loads, _RECOVERY_SECONDS)
    print(f"vLLM loads again after {time.monotonic() - began:.1f} s")
