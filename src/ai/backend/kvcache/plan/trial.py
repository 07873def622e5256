"""What a start command would get in a session: the whole decision, without a cluster.

A session is made up of what a person says about it, and the decision is the one that every real
session gets (``decide``). What only a real session has, and what was assumed in its place, is said
in the trial's notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
import yaml

from ..engine.adapter import Transport
from ..engine.command import Program
from ..engine.select import TRANSPORTS
from ..engine.versions import NEWEST, TITLES, Versions, release_of
from ..errors import (
    DeclinedError,
    EngineVersionError,
    KVCacheError,
    SizeError,
    StartCommandError,
)
from ..folder.entries import Owner
from ..model.source import ModelSource, is_model
from ..policy.policy import Policy
from ..policy.request import FOLDER, SWITCH, TRANSPORT
from ..policy.settings import Settings, Sharing
from ..sizes import gib
from .decide import Preparation, decide, without_kv_cache
from .entitle import entitle
from .masks import masked_line, masked_settings, masked_words
from .plan import PLAN_FILE
from .session import Gpus, Image, Mount, Service, Session
from .sizing import ASSUMED_MEMORY_BYTES
from .start import EngineStart, parallel_of, read_start

#: Whose session it is. What belongs to one session alone follows from it.
SESSION_ID = "00000000-0000-0000-0000-000000000000"

#: In the place of a version: the image does not hold the package.
NOT_IN_IMAGE = "none"

#: Where Backend.AI mounts a service's model folder unless its definition says otherwise.
DEFAULT_MODEL_PATH = PurePosixPath("/models")

#: Begins what stands for the name, and the seed, of a namespace that cannot be known.
ASSUMED = "assumed-"

#: The packages that an image holds by itself, by what it runs.
_PACKAGES: Mapping[Program, tuple[str, ...]] = {
    Program.VLLM: ("vllm", "lmcache"),
    Program.SGLANG: ("sglang",),
    Program.DYNAMO: ("vllm", "kvbm"),
}


@attrs.frozen
class TrialRequest:
    """Everything that a person can say about the session."""

    model: ModelSource | Path
    """The model's directory on this host, or what is known of a model that has none."""
    command: tuple[str, ...]
    environ: Mapping[str, str] = attrs.field(factory=dict)
    versions: Mapping[str, str] = attrs.field(factory=dict)
    """Package → its version in the image, or NOT_IN_IMAGE. The others are assumed."""
    gpus: Decimal | None = None
    """How many; below 1, a share of one; 0: none. None: as many as the command needs."""
    gpu_memory_bytes: int | None = None
    """Of one whole GPU. None: assumed."""
    memory_bytes: int | None = None
    """The session's limit of host memory."""
    shared_memory_bytes: int | None = None
    """The size of /dev/shm. None: left to the plugin."""
    model_path: PurePosixPath | None = None
    """Where the model lies in the session. None: where the command says that it is."""
    policy: Policy = attrs.field(factory=Policy)


@attrs.frozen
class Trial:
    """The decision."""

    preparation: Preparation
    namespace_assumed_because: str | None
    """Why no session has this namespace. None: one like this has."""
    notes: tuple[str, ...]
    """What was assumed, and what a real session may have otherwise."""

    def to_json(self) -> dict[str, Any]:
        """The decision for programs and people, without the secrets of the start command."""
        made, plan = self.preparation, self.preparation.plan
        document = {
            "kv_cache": plan.no_kv_cache_because is None,
            "reason": plan.no_kv_cache_because,
            "way": plan.adapter,
            "refused": dict(plan.refused),
            "namespace": plan.namespace and plan.namespace.name,
            "start_command": made.start_command and masked_words(made.start_command),
            "environment": {name: masked_line(value) for name, value in made.environment.items()},
            "files": {
                name: _masked_file(name, content)
                for name, content in made.files.items()
                if name != PLAN_FILE
            },
            "links": dict(made.links),
            "shared_memory_bytes": made.shared_memory_bytes,
            "plan": plan.to_json(),
            "notes": list(self.notes),
        }
        if plan.namespace is not None and self.namespace_assumed_because is not None:
            name, seed = plan.namespace.name, str(plan.namespace.hash_seed)
            document = _replaced(document, name, f"{ASSUMED}{name}")
            document = _replaced(document, seed, f"{ASSUMED}{seed}")
        return document


def _masked_file(name: str, content: str) -> str:
    """A file for the engine. One in YAML holds the user's own settings too."""
    if PurePosixPath(name).suffix != ".yaml":
        return content
    return yaml.safe_dump(masked_settings(yaml.safe_load(content)), sort_keys=False)


def _replaced(value: Any, old: str, new: str) -> Any:
    """A JSON value with one text replaced in all its texts."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, dict):
        return {key: _replaced(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, old, new) for item in value]
    return value


def _check_versions(versions: Mapping[str, str]) -> None:
    for package, version in versions.items():
        if version != NOT_IN_IMAGE and release_of(version) is None:
            raise EngineVersionError(
                f"{TITLES[package]} version {version[:40]!r} is no version; write it as "
                f"{NEWEST[package]}, or {NOT_IN_IMAGE} where the image does not have it"
            )


def _check_command(command: Sequence[str]) -> None:
    """
    Raises:
        StartCommandError: it is empty, or a whole line in one word.
    """
    if not command:
        raise StartCommandError(
            "the start command is empty; write it behind --, as in -- vllm serve /models"
        )
    if len(command) == 1 and len(words := command[0].split()) > 1:
        raise StartCommandError(
            f"the start command is one word, {masked_line(command[0][:200])!r}; Backend.AI takes a "
            "start command that is a text for the name of one program, so write it as a list in "
            f"the model's definition, and without quotes here: -- {words[0]} …"
        )


def _mount(request: TrialRequest, path: PurePosixPath) -> Mount:
    """The model's folder at a path of the container."""
    model = request.model
    return Mount(
        name="model",
        host_path=model if isinstance(model, Path) else Path("/nonexistent"),
        container_path=path,
        writable=False,
        is_model=True,
        # Who gives a path on a command line may read all that it links to.
        links_into=Path("/"),
        known_model=None if isinstance(model, Path) else model,
    )


def _start(session: Session) -> EngineStart | None:
    """The engine's start; None where the decision is going to say what is wrong with it."""
    try:
        return read_start(session)
    except KVCacheError:
        return None


def _mounted(request: TrialRequest, session: Session) -> Session:
    """The session with its model where the command says that it is."""
    path = request.model_path or DEFAULT_MODEL_PATH
    session = attrs.evolve(session, mounts=(*session.mounts, _mount(request, path)))
    start = _start(session)
    if request.model_path is not None or start is None or start.arguments.model is None:
        return session
    named = PurePosixPath(start.arguments.model)
    whole = not isinstance(request.model, Path) or is_model(request.model)
    if not (named.is_absolute() and whole):
        # Some place in the folder, or a name that the engine would download.
        return session
    return attrs.evolve(session, mounts=(*session.mounts[:-1], _mount(request, named)))


def _versions(request: TrialRequest, start: EngineStart | None) -> tuple[Versions, tuple[str, ...]]:
    """(what the image holds, what was assumed of it)."""
    program = Program.VLLM if start is None else start.program
    assumed = [package for package in _PACKAGES[program] if package not in request.versions]
    said = {p: version for p, version in request.versions.items() if version != NOT_IN_IMAGE}
    versions = Versions({**{p: NEWEST[p] for p in assumed}, **said}, is_complete=True)
    if not assumed:
        return versions, ()
    options = " and ".join(f"--{package}-version" for package in assumed)
    return versions, (
        f"the image is assumed to have {versions.named(tuple(assumed))}; say what it has by "
        f"{options}",
    )


def _gpus(
    request: TrialRequest, session: Session, start: EngineStart | None
) -> tuple[Gpus | None, tuple[str, ...]]:
    """(the session's GPUs, what was assumed of them).

    Raises:
        SizeError: GPUs of a size are wanted for a session without any.
    """
    if request.gpus == 0:
        if request.gpu_memory_bytes is not None:
            raise SizeError("a session without GPUs (gpus = 0) has no GPU memory; leave it out")
        return None, ()
    is_read = start is not None and start.command is not None
    needed = 1
    if start is not None:
        needed = parallel_of(session, start)[0].gpus * start.arguments.data_parallel
    count = needed if request.gpus is None else max(1, int(request.gpus))
    memory = request.gpu_memory_bytes or ASSUMED_MEMORY_BYTES
    if request.gpus is not None and request.gpus < 1:
        memory = max(1, int(request.gpus * memory))
    notes: list[str] = []
    if request.gpus is None:
        why = ", as many as the start command needs" if is_read else ""
        notes.append(
            f"{count} GPU{'s are' if count > 1 else ' is'} assumed{why}; say how many by --gpus "
            "(0: none)"
        )
    elif not is_read:
        pass
    elif count < needed:
        notes.append(
            f"the start command needs {needed} GPUs, and the session has {count}: unless it runs "
            "on several nodes, the engine does not start"
        )
    elif count > needed:
        notes.append(f"only {needed} of {count} GPUs are used, as the start command says")
    if request.gpu_memory_bytes is None:
        notes.append(f"{gib(ASSUMED_MEMORY_BYTES)} of memory per GPU are assumed")
    return Gpus("cuda", count, memory), tuple(notes)


def _session(request: TrialRequest) -> tuple[Session, tuple[str, ...]]:
    """(a session like the one that is described, what was assumed of it)."""
    said = {p: version for p, version in request.versions.items() if version != NOT_IN_IMAGE}
    kv_folder = Mount(
        name=request.environ.get(FOLDER) or "kv-folder",
        host_path=Path("/nonexistent"),
        container_path=request.policy.settings_for(None, None).mount_point,
        writable=True,
        is_model=False,
    )
    session = _mounted(
        request,
        Session(
            kernel_id=SESSION_ID,
            mounts=(kv_folder,),
            environ=request.environ,
            image=Image("the image", {}, Versions(said)),
            gpus=None,
            service=Service(request.command, request.model_path or DEFAULT_MODEL_PATH),
            owner=Owner(),
            shared_memory_bytes=request.shared_memory_bytes,
            memory_bytes=request.memory_bytes,
            session_id=SESSION_ID,
            user_id=SESSION_ID,
            project_id=SESSION_ID,
            is_inference=True,
        ),
    )
    start = _start(session)
    of_folder = f"the session is assumed to have a KV folder, at {kv_folder.container_path}"
    versions, of_versions = _versions(request, start)
    gpus, of_gpus = _gpus(request, session, start)
    image = attrs.evolve(session.image, found=versions)
    return (
        attrs.evolve(session, image=image, gpus=gpus),
        (of_folder, *of_versions, *of_gpus),
    )


def _namespace_assumed(request: TrialRequest, settings: Settings) -> str | None:
    """Why nobody can say which namespace a session would have; None where it is certain."""
    if not isinstance(request.model, Path):
        missing = "the model's weights, which are not here; give its whole directory to know it"
    elif settings.sharing is not Sharing.PROJECT:
        missing = f"the {settings.sharing} (sharing = {settings.sharing})"
    else:
        return None
    return (
        f"no session has a namespace that begins with {ASSUMED!r}: its name follows from "
        f"{missing}; two start commands that get the same one here would share theirs"
    )


def _notes(preparation: Preparation) -> Iterator[str]:
    """What a real session may have otherwise."""
    plan = preparation.plan
    if plan.adapter and TRANSPORTS[plan.adapter] is Transport.GDS:
        yield (
            "whether the node has GPUDirect Storage is not known here; what a session gets on a "
            f"node without it, --env {TRANSPORT}={Transport.POSIX} shows: its namespace is another"
        )
    if plan.metrics:
        yield (
            "addresses, ports and names of temporary files are each session's own; those shown "
            f"are of the session {SESSION_ID}"
        )


def try_start(request: TrialRequest) -> Trial:
    """Decides for a session with this start command.

    Raises:
        StartCommandError: there is no command to speak of.
        EngineVersionError: a version is none.
        SizeError: sizes contradict each other.
    """
    _check_command(request.command)
    _check_versions(request.versions)
    session, assumed = _session(request)
    assumed_because: str | None = None
    try:
        entitlement = entitle(session, request.policy)
        if entitlement is None:
            raise DeclinedError(f"the session declines it: {SWITCH} = {request.environ[SWITCH]}")
        preparation = decide(session, entitlement.settings)
        if preparation.plan.namespace is not None:
            assumed_because = _namespace_assumed(request, entitlement.settings)
    except KVCacheError as e:
        # As an agent does.
        preparation = without_kv_cache(SESSION_ID, str(e))
    reasons = () if assumed_because is None else (assumed_because,)
    return Trial(preparation, assumed_because, (*assumed, *reasons, *_notes(preparation)))
