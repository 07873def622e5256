"""Decides what a session gets. The road from a captured session to everything it is given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import attrs

from ..engine.adapter import EngineRequest, EngineSetup, Transport
from ..engine.compatibility import compatibility_notes
from ..engine.select import adapter_named, candidates, select, summary
from ..engine.traits import Traits
from ..engine.versions import Versions
from ..errors import DeclinedError, KVCacheError
from ..folder.layout import namespace_directory
from ..folder.prepare import prepare_namespace, prepare_scope
from ..model.parallel import Parallel
from ..policy.settings import Settings
from ..sizes import MIB, gib
from .conflicts import conflict_notes, refuse_conflicts, refuse_way
from .folder import find_folder
from .masks import masked
from .memory import Context, divide_memory
from .model import Model, read_model
from .namespace import session_namespace, versions_of
from .plan import PLAN_FILE, Decision, Plan
from .session import Mount, Session
from .start import EngineStart, change_start, parallel_of, read_start, with_own_environment
from .suitability import hybrid_note, refuse_geometry
from .tell import FILES_DIRECTORY, tell
from .traits import traits_of
from .transport import Choice, choices


@attrs.frozen
class Preparation:
    """A plan, and what has to be done to a session to carry it out."""

    plan: Plan
    folder: Path | None = None
    """The KV folder, as a path of this host, in which the namespace is to be made ready."""
    namespace_facts: Mapping[str, int] = attrs.field(factory=dict)
    """What to record of the namespace beside its description."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    files: Mapping[str, str] = attrs.field(factory=dict)
    links: Mapping[str, str] = attrs.field(factory=dict)
    """Beside the files: name → where the link leads in the container."""
    start_command: tuple[str, ...] | None = None
    """In the place of the service's; None: left as it is."""
    shared_memory_bytes: int = 0
    """0: left as it is."""
    memory_directories: tuple[PurePosixPath, ...] = ()
    """Of the container: in memory, empty when it starts, writable for everybody in it."""
    mount: Mount | None = None
    """A folder that the session has not got yet."""
    devices: tuple[PurePosixPath, ...] = ()
    """Of the host, for the container, under the same paths."""
    host_mounts: tuple[PurePosixPath, ...] = ()
    """Directories and files of the host, for the container to read, under the same paths."""


def _shared_memory(session: Session, setup: EngineSetup) -> tuple[int, tuple[str, ...]]:
    """(the size to give /dev/shm, or 0 to leave it; warnings).

    Raises:
        DeclinedError: it cannot be made as large as the engine insists on.
    """
    given, needed = session.shared_memory_bytes, setup.shared_memory_bytes
    if needed == 0 or (given is not None and given >= needed):
        return 0, ()
    if given is None:
        return needed, ()
    message = (
        f"/dev/shm is smaller than the {gib(needed)} that the engine may need; "
        f"start the session with --resource-opts shmem={needed // MIB}m"
    )
    if setup.insists_on_shared_memory:
        raise DeclinedError(message)
    return 0, (message,)


def _keep_user_values(
    wanted: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[dict[str, str], list[Decision]]:
    """What of the wanted environment the user left to us. Values of users are never recorded."""
    ours = {name: value for name, value in wanted.items() if name not in environ}
    kept = [Decision(name, "left alone", "set by the user") for name in wanted if name in environ]
    return ours, kept


@attrs.frozen
class _Asked:
    """What a session asks for, whichever way it goes."""

    session: Session
    settings: Settings
    folder: Mount
    folder_why: str
    start: EngineStart
    versions: Versions
    traits: Traits
    model: Model
    parallel: Parallel
    parallel_why: str


def decide(session: Session, settings: Settings) -> Preparation:
    """Decides for one session that asks for KV cache. Reads its folders and changes nothing.

    Returns:
        A session that cannot have KV cache gets a plan with the reason, and nothing else.
    """
    refused: dict[str, str] = {}
    try:
        return _first_way(session, settings, refused)
    except KVCacheError as e:
        return without_kv_cache(session.kernel_id, str(e), refused)


def _first_way(session: Session, settings: Settings, refused: dict[str, str]) -> Preparation:
    """The first way that the session can go.

    Args:
        refused: gets the ways that the session cannot go, and why.

    Raises:
        KVCacheError: it cannot go any.
    """
    folder, folder_why = find_folder(session, settings)
    start = read_start(session)
    session = with_own_environment(session, start)
    device = None if session.gpus is None else session.gpus.device
    ways = candidates(start.program, device, settings.wish)
    refuse_conflicts(session, start, [adapter_named(way.adapter) for way in ways])
    versions = versions_of(session.image, start.program)
    model = read_model(session, start, versions.known_release("vllm"))
    refuse_geometry(model.geometry)
    traits = traits_of(session, start, model)
    selection = select(start.program, device, versions, traits, settings.wish)
    refused.update(selection.refused)
    asked = _Asked(
        session,
        settings,
        folder,
        folder_why,
        start,
        versions,
        traits,
        model,
        *parallel_of(start),
    )
    for choice in choices(selection.ways, session.gds):
        try:
            return _decide_way(asked, choice, refused)
        except DeclinedError as e:
            refused[choice.adapter.name] = str(e)
    raise DeclinedError(summary(refused))


def _decide_way(asked: _Asked, choice: Choice, refused: Mapping[str, str]) -> Preparation:
    """What the session gets if it goes this way.

    Raises:
        DeclinedError: it cannot.
    """
    if choice.closed_because is not None:
        raise DeclinedError(choice.closed_because)
    session, settings, folder = asked.session, asked.settings, asked.folder
    start, versions = asked.start, asked.versions
    model, parallel = asked.model, asked.parallel
    adapter = choice.adapter
    refuse_way(start, adapter)
    context = Context(
        adapter,
        versions,
        model,
        parallel,
        engines=start.arguments.data_parallel,
        tokens=start.arguments.max_model_len or model.geometry.max_model_len,
    )
    memory = divide_memory(session, settings, start, context)
    namespace = session_namespace(session, settings, start, model, adapter, versions, parallel)
    storage = namespace_directory(folder.container_path, namespace.name)
    setup = adapter.setup(
        EngineRequest(
            storage=storage,
            files=FILES_DIRECTORY,
            session=session.kernel_id,
            hash_seed=namespace.hash_seed,
            versions=versions,
            traits=asked.traits,
            block_tokens=start.arguments.block_size,
            on_gpus=session.gpus is not None,
            buffer_bytes=None if memory.gpu is None else memory.gpu.buffer_bytes,
            host_bytes=memory.host.size,
            host_keeps=memory.host.keeps,
            insists_on_gds=settings.wish.transport is Transport.GDS,
            io_threads=settings.io_threads,
            direct_io=settings.direct_io,
        )
    )
    told = tell(start, setup, memory.gpu, model)
    directories = setup.memory_directories
    wanted = {**setup.environment, **{name: str(path) for name, path in directories.items()}}
    environment, kept = _keep_user_values(wanted, session.environ)
    changed = change_start(session, start, told.arguments, told.model, told.run_by)
    shared_memory, shared_memory_notes = _shared_memory(session, setup)
    plan = Plan(
        kernel_id=session.kernel_id,
        no_kv_cache_because=None,
        folder=folder.name,
        storage=storage,
        namespace=namespace,
        adapter=adapter.name,
        folder_cap_bytes=settings.folder_cap_bytes,
        budget=memory.gpu,
        host_bytes=memory.host.size * memory.host.pools,
        environment=environment,
        arguments=told.arguments,
        add_by_hand=None if session.service else masked(changed.command),
        metrics=setup.metrics,
        refused=dict(refused),
        decisions=(
            Decision("folder", folder.name, asked.folder_why),
            Decision(
                "engine", adapter.name, "GPUs allotted" if session.gpus else "no GPU allotted"
            ),
            *choice.decisions,
            Decision("tensor_parallel", parallel.tensor, asked.parallel_why),
            Decision(
                "bytes_per_token",
                model.geometry.bytes_per_token_no_hybrid,
                f"read from {model.config_name} as {model.geometry.model_type}",
            ),
            Decision("weights", gib(model.weights.total_bytes), model.weights.source),
            *memory.decisions,
            *kept,
            *(
                (Decision("shared_memory", gib(shared_memory), "needed by the engine"),)
                if shared_memory
                else ()
            ),
        ),
        warnings=(
            *model.geometry.warnings,
            *(() if adapter.has_hybrid_manager(versions) else hybrid_note(model.geometry)),
            *(memory.gpu.notes if memory.gpu else ()),
            *memory.host.notes,
            *shared_memory_notes,
            *setup.warnings,
            *choice.warnings,
            *conflict_notes(start),
            *compatibility_notes(adapter, versions, asked.traits),
        ),
    )
    return Preparation(
        plan=plan,
        folder=folder.host_path,
        namespace_facts={"bytes_per_token": model.geometry.bytes_per_token_no_hybrid},
        environment={**environment, **changed.environment},
        files={**told.files, PLAN_FILE: plan_text(plan)},
        links=told.links,
        start_command=changed.command if session.service else None,
        shared_memory_bytes=shared_memory,
        memory_directories=tuple(p for name, p in directories.items() if name in environment),
        devices=choice.devices,
        host_mounts=choice.host_mounts,
    )


def plan_text(plan: Plan) -> str:
    """The content of plan.json."""
    return json.dumps(plan.to_json(), indent=2) + "\n"


def without_kv_cache(
    kernel_id: str, reason: str, refused: Mapping[str, str] | None = None
) -> Preparation:
    """A session that runs as if it had not asked, and says why."""
    plan = Plan(kernel_id=kernel_id, no_kv_cache_because=reason, refused=dict(refused or {}))
    return Preparation(plan=plan, files={PLAN_FILE: plan_text(plan)})


def _mounted(session: Session, settings: Settings, folder: Path, scope: str) -> Mount:
    """The session's part of a folder, to be mounted where KV folders are."""
    return Mount(
        name=settings.folder_name,
        host_path=prepare_scope(folder, scope),
        container_path=settings.mount_point,
        writable=True,
        is_model=False,
    )


def prepare_with_folder(
    session: Session, settings: Settings, folder: Path, scope: str
) -> Preparation:
    """The same for a session whose folder is still to be mounted.

    Args:
        folder: the folder that the policy names, as a path of this host.
        scope: the directory in it that the session gets to see.
    """
    try:
        mount = _mounted(session, settings, folder, scope)
    except KVCacheError as e:
        return without_kv_cache(session.kernel_id, str(e))
    prepared = prepare(attrs.evolve(session, mounts=(*session.mounts, mount)), settings)
    if prepared.plan.no_kv_cache_because is not None:
        return prepared
    return attrs.evolve(prepared, mount=mount)


def prepare(session: Session, settings: Settings) -> Preparation:
    """Decides for one session that asks for KV cache and makes its namespace ready.

    Reads the model folder and writes to the KV folder, so it is called off the event loop.

    Returns:
        A session that cannot have KV cache gets a plan with the reason, and nothing else.
    """
    decided = decide(session, settings)
    if decided.plan.namespace is None or decided.folder is None:
        return decided
    try:
        prepare_namespace(
            decided.folder,
            decided.plan.namespace,
            session.owner,
            session.kernel_id,
            facts=decided.namespace_facts,
            limits=settings.folder_limits,
        )
    except KVCacheError as e:
        return without_kv_cache(session.kernel_id, str(e), decided.plan.refused)
    return decided
