"""A session as a person describes it on a command line, before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path, PurePosixPath

import attrs

from ..engine.command import Program
from ..engine.versions import NEWEST, TITLES, Versions, release_of
from ..errors import EngineVersionError, KVCacheError, SizeError
from ..folder.entries import Owner
from ..model.source import ModelSource, is_model
from ..policy.policy import Policy
from ..policy.request import FOLDER
from ..sizes import gib
from .session import Gpus, Image, Mount, Service, Session
from .sizing_request import ASSUMED_MEMORY_BYTES
from .start import EngineStart, parallel_of, read_start

#: Whose session it is. What belongs to one session alone follows from it.
SESSION_ID = "00000000-0000-0000-0000-000000000000"

#: In the place of a version: the image does not hold the package.
NOT_IN_IMAGE = "none"

#: Where Backend.AI mounts a service's model folder unless its definition says otherwise.
DEFAULT_MODEL_PATH = PurePosixPath("/models")

#: The packages that an image holds by itself, by what it runs.
_PACKAGES: Mapping[Program, tuple[str, ...]] = {
    Program.VLLM: ("vllm", "lmcache"),
    Program.SGLANG: ("sglang",),
    Program.DYNAMO: ("vllm", "kvbm"),
}


@attrs.frozen
class Description:
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
    gpu_model: str | None = None
    """What their vendor calls them. None: not known."""
    image: str | None = None
    """Its whole name. None: not known."""
    memory_bytes: int | None = None
    """The session's limit of host memory."""
    shared_memory_bytes: int | None = None
    """The size of /dev/shm. None: left to the plugin."""
    model_path: PurePosixPath | None = None
    """Where the model lies in the session. None: where the command says that it is."""
    policy: Policy = attrs.field(factory=Policy)

    @property
    def packages(self) -> Mapping[str, str]:
        """Package → version, of those that the image is said to have."""
        return {name: v for name, v in self.versions.items() if v != NOT_IN_IMAGE}


def _check_versions(versions: Mapping[str, str]) -> None:
    for package, version in versions.items():
        if version != NOT_IN_IMAGE and release_of(version) is None:
            raise EngineVersionError(
                f"{TITLES[package]} version {version[:40]!r} is no version; write it as "
                f"{NEWEST[package]}, or {NOT_IN_IMAGE} where the image does not have it"
            )


def _mount(said: Description, path: PurePosixPath) -> Mount:
    """The model's folder at a path of the container."""
    model = said.model
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


def _mounted(said: Description, session: Session) -> Session:
    """The session with its model where the command says that it is."""
    path = said.model_path or DEFAULT_MODEL_PATH
    session = attrs.evolve(session, mounts=(*session.mounts, _mount(said, path)))
    start = _start(session)
    if said.model_path is not None or start is None or start.arguments.model is None:
        return session
    named = PurePosixPath(start.arguments.model)
    whole = not isinstance(said.model, Path) or is_model(said.model)
    if not (named.is_absolute() and whole):
        # Some place in the folder, or a name that the engine would download.
        return session
    return attrs.evolve(session, mounts=(*session.mounts[:-1], _mount(said, named)))


def _versions(said: Description, start: EngineStart | None) -> tuple[Versions, tuple[str, ...]]:
    """(what the image holds, what was assumed of it)."""
    program = Program.VLLM if start is None else start.program
    assumed = [package for package in _PACKAGES[program] if package not in said.versions]
    packages = {**{package: NEWEST[package] for package in assumed}, **said.packages}
    versions = Versions(packages, is_complete=True)
    if not assumed:
        return versions, ()
    options = " and ".join(f"--{package}-version" for package in assumed)
    return versions, (
        f"the image is assumed to have {versions.named(tuple(assumed))}; say what it has by "
        f"{options}",
    )


def _gpus(
    said: Description, session: Session, start: EngineStart | None
) -> tuple[Gpus | None, tuple[str, ...]]:
    """(the session's GPUs, what was assumed of them).

    Raises:
        SizeError: GPUs of a size are wanted for a session without any.
    """
    if said.gpus == 0:
        if said.gpu_memory_bytes is not None:
            raise SizeError("a session without GPUs (gpus = 0) has no GPU memory; leave it out")
        return None, ()
    is_read = start is not None
    needed = 1
    if start is not None:
        needed = parallel_of(start)[0].gpus * start.arguments.data_parallel
    count = needed if said.gpus is None else max(1, int(said.gpus))
    memory = said.gpu_memory_bytes or ASSUMED_MEMORY_BYTES
    is_fraction = said.gpus is not None and said.gpus < 1
    if said.gpus is not None and is_fraction:
        memory = max(1, int(said.gpus * memory))
    notes: list[str] = []
    if said.gpus is None:
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
    if said.gpu_memory_bytes is None:
        notes.append(f"{gib(ASSUMED_MEMORY_BYTES)} of memory per GPU are assumed")
    return Gpus("cuda", count, memory, is_fraction=is_fraction, model=said.gpu_model), tuple(notes)


def described_session(said: Description) -> tuple[Session, tuple[str, ...]]:
    """(a session like the one that is described, what was assumed of it).

    Raises:
        EngineVersionError: a version is none.
        SizeError: sizes contradict each other.
    """
    _check_versions(said.versions)
    kv_folder = Mount(
        name=said.environ.get(FOLDER) or "kv-folder",
        host_path=Path("/nonexistent"),
        container_path=said.policy.settings_for(None, None).mount_point,
        writable=True,
        is_model=False,
    )
    session = _mounted(
        said,
        Session(
            kernel_id=SESSION_ID,
            mounts=(kv_folder,),
            environ=said.environ,
            image=Image(said.image or "the image", {}, Versions(said.packages)),
            gpus=None,
            service=Service(said.command, said.model_path or DEFAULT_MODEL_PATH),
            owner=Owner(),
            shared_memory_bytes=said.shared_memory_bytes,
            memory_bytes=said.memory_bytes,
            session_id=SESSION_ID,
            user_id=SESSION_ID,
            project_id=SESSION_ID,
            is_inference=True,
        ),
    )
    start = _start(session)
    of_folder = f"the session is assumed to have a KV folder, at {kv_folder.container_path}"
    versions, of_versions = _versions(said, start)
    gpus, of_gpus = _gpus(said, session, start)
    image = attrs.evolve(session.image, found=versions)
    return (
        attrs.evolve(session, image=image, gpus=gpus),
        (of_folder, *of_versions, *of_gpus),
    )
