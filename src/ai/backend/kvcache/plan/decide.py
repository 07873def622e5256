"""Decides what a session gets. The road from a captured session to everything it is given."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import attrs
import yaml

from ..engine.adapter import EngineAdapter, EngineRequest
from ..engine.compatibility import refuse_incompatible, version_notes
from ..engine.lmcache_inprocess import BUFFER_VARIABLES, LMCacheInProcess
from ..engine.lmcache_mp import LMCacheMultiProcess
from ..errors import DeclinedError, KVCacheError, StartCommandError
from ..folder.layout import namespace_directory
from ..folder.prepare import prepare_namespace
from ..model.parallel import Parallel
from ..policy.settings import Settings
from ..sizes import MIB, gib
from .budget import DEFAULT_UTILIZATION, Budget, GpuRequest, divide
from .conflicts import conflict_notes, refuse_conflicts
from .folder import find_folder
from .model import Model, read_model
from .namespace import session_namespace, versions_of
from .plan import PLAN_FILE, Decision, Plan
from .session import Session
from .start import ChangedStart, EngineStart, change_start, parallel_of, read_start
from .suitability import hybrid_note, refuse_geometry

#: Where a session sees the files of its plan: Backend.AI mounts the kernel's configuration here.
FILES_DIRECTORY = PurePosixPath("/home/config/kvcache")

VLLM_CONFIG_FILE = "vllm.yaml"

#: The model under a path that is the same for all sessions, wherever it is mounted: LMCache's keys
#: carry the path, and so do its file names, which may not become longer than 255 bytes.
MODEL_LINK = "model"


@attrs.frozen
class Preparation:
    """A plan, and what has to be done to a session to carry it out."""

    plan: Plan
    environment: Mapping[str, str] = attrs.field(factory=dict)
    files: Mapping[str, str] = attrs.field(factory=dict)
    links: Mapping[str, str] = attrs.field(factory=dict)
    """Beside the files: name → where the link leads in the container."""
    start_command: tuple[str, ...] | None = None
    """In the place of the service's; None: left as it is."""
    shared_memory_bytes: int = 0
    """0: left as it is."""


def _adapter_for(session: Session) -> EngineAdapter:
    if session.gpus is None:
        return LMCacheMultiProcess()
    if session.gpus.device != "cuda":
        raise DeclinedError(
            f"the session has {session.gpus.device!r} accelerators; KV cache folders are known to "
            "work with cuda GPUs and without any"
        )
    return LMCacheInProcess()


def _user_buffer_bytes(environ: Mapping[str, str]) -> int | None:
    for variable in BUFFER_VARIABLES:
        value = environ.get(variable)
        if value is None:
            continue
        if not value.isascii() or not value.isdigit() or int(value) == 0:
            raise StartCommandError(f"{variable} = {value!r} is not a number of MiB")
        return int(value) * MIB
    return None


def _divide_gpu(
    session: Session, settings: Settings, start: EngineStart, model: Model,
    adapter: EngineAdapter, parallel: Parallel,
) -> Budget | None:  # fmt: skip
    if session.gpus is None:
        return None
    told = start.arguments
    pinned = told.gpu_memory_utilization
    tokens = told.max_model_len or model.geometry.max_model_len
    share = model.geometry.per_gpu(parallel)
    return divide(
        GpuRequest(
            memory_bytes=session.gpus.memory_bytes,
            weights_bytes=share.weights_bytes(model.weights.total_bytes),
            context_bytes=share.sequence_bytes(tokens, hybrid=adapter.hybrid_manager),
            context_tokens=tokens,
            chunk_bytes=adapter.chunk_tokens * share.bytes_per_token_no_hybrid,
            concurrent_transfers=settings.concurrent_transfers,
            utilization=DEFAULT_UTILIZATION if pinned is None else Decimal(pinned),
            pinned=pinned is not None,
            buffer_bytes=_user_buffer_bytes(session.environ),
        )
    )


def _budget_decisions(session: Session, start: EngineStart, budget: Budget) -> list[Decision]:
    by_user = next((v for v in BUFFER_VARIABLES if v in session.environ), None)
    pinned = start.arguments.gpu_memory_utilization is not None
    return [
        Decision(
            "buffer",
            gib(budget.buffer_bytes),
            f"set by the user in {by_user}" if by_user else "staging for whole contexts",
        ),
        Decision(
            "gpu_memory_utilization",
            str(budget.utilization),
            "set by the user" if pinned else "lowered by the buffer, which lies outside it",
        ),
    ]


def _shared_memory(session: Session, needed: int) -> tuple[int, tuple[str, ...]]:
    """(the size to give /dev/shm, or 0 to leave it; warnings)."""
    given = session.shared_memory_bytes
    if needed == 0 or (given is not None and given >= needed):
        return 0, ()
    if given is None and not session.is_settled:
        return needed, ()
    return 0, (
        f"/dev/shm is smaller than the {gib(needed)} that the engine may need; "
        f"start the session with --resource-opts shmem={needed // MIB}m",
    )


def _add_by_hand(
    session: Session, changed: ChangedStart | None, added: Sequence[str]
) -> str | None:
    """What the user has to run, where the plugin cannot change what is run."""
    if changed is None:
        return shlex.join(["vllm", "serve", "MODEL", *added])
    return shlex.join(changed.command) if session.is_settled else None


def _vllm_config(user: Mapping[str, Any], kv_transfer_config: Mapping[str, Any]) -> str:
    return yaml.safe_dump({**user, "kv-transfer-config": dict(kv_transfer_config)}, sort_keys=False)


def _keep_user_values(
    wanted: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[dict[str, str], list[Decision]]:
    """What of the wanted environment the user left to us. Values of users are never recorded."""
    ours = {name: value for name, value in wanted.items() if name not in environ}
    kept = [Decision(name, "left alone", "set by the user") for name in wanted if name in environ]
    return ours, kept


def _decide(session: Session, settings: Settings) -> Preparation:
    folder, folder_why = find_folder(session, settings)
    start = read_start(session)
    adapter = _adapter_for(session)
    versions = versions_of(session.image)
    refuse_incompatible(adapter.name, versions)
    refuse_conflicts(session, start, adapter)
    model = read_model(session, start)
    refuse_geometry(model.geometry)
    parallel, parallel_why = parallel_of(session, start)
    budget = _divide_gpu(session, settings, start, model, adapter, parallel)
    namespace = session_namespace(session, settings, start, model, adapter, parallel)
    storage = namespace_directory(folder.container_path, namespace.name)
    setup = adapter.setup(
        EngineRequest(
            storage=storage,
            files=FILES_DIRECTORY,
            session=session.kernel_id,
            hash_seed=namespace.hash_seed,
            buffer_bytes=None if budget is None else budget.buffer_bytes,
        )
    )
    added = ["--config", str(FILES_DIRECTORY / VLLM_CONFIG_FILE)]
    if budget and start.arguments.gpu_memory_utilization is None:
        added += ["--gpu-memory-utilization", str(budget.utilization)]
    environment, kept = _keep_user_values(setup.environment, session.environ)
    is_linked = start.command is not None and start.command.names_model
    if is_linked and start.arguments.served_model_name is None:
        # Clients go on calling it what they called it.
        added = ["--served-model-name", start.arguments.model or str(model.path), *added]
    changed = None
    if start.command is not None:
        link = str(FILES_DIRECTORY / MODEL_LINK) if is_linked else None
        changed = change_start(session, start.command, added, link)
    shared_memory, shared_memory_notes = _shared_memory(session, setup.shared_memory_bytes)
    prepare_namespace(
        folder.host_path, namespace, session.owner, session.kernel_id,
        {"bytes_per_token": model.geometry.bytes_per_token_no_hybrid},
    )  # fmt: skip
    plan = Plan(
        kernel_id=session.kernel_id,
        no_kv_cache_because=None,
        folder=folder.name,
        storage=storage,
        namespace=namespace,
        adapter=adapter.name,
        budget=budget,
        environment=environment,
        arguments=tuple(added),
        add_by_hand=_add_by_hand(session, changed, added),
        decisions=(
            Decision("folder", folder.name, folder_why),
            Decision(
                "engine", adapter.name, "GPUs allotted" if session.gpus else "no GPU allotted"
            ),
            Decision("tensor_parallel", parallel.tensor, parallel_why),
            Decision(
                "bytes_per_token",
                model.geometry.bytes_per_token_no_hybrid,
                f"read from {model.config_name} as {model.geometry.model_type}",
            ),
            Decision("weights", gib(model.weights.total_bytes), model.weights.source),
            *(_budget_decisions(session, start, budget) if budget else ()),
            *kept,
            *(
                (Decision("shared_memory", gib(shared_memory), "needed by the engine"),)
                if shared_memory
                else ()
            ),
        ),
        warnings=(
            *model.geometry.warnings,
            *(() if adapter.hybrid_manager else hybrid_note(model.geometry)),
            *(budget.notes if budget else ()),
            *shared_memory_notes,
            *conflict_notes(start),
            *version_notes(versions),
        ),
    )
    return Preparation(
        plan=plan,
        environment={**environment, **(changed.environment if changed else {})},
        files={
            **setup.files,
            VLLM_CONFIG_FILE: _vllm_config(start.config, setup.kv_transfer_config),
            PLAN_FILE: plan_text(plan),
        },
        links={MODEL_LINK: str(model.path)} if is_linked else {},
        start_command=None if changed is None or session.is_settled else changed.command,
        shared_memory_bytes=shared_memory,
    )


def plan_text(plan: Plan) -> str:
    """The content of plan.json."""
    return json.dumps(plan.to_json(), indent=2) + "\n"


def without_kv_cache(kernel_id: str, reason: str) -> Preparation:
    """A session that runs as if it had not asked, and says why."""
    plan = Plan(kernel_id=kernel_id, no_kv_cache_because=reason)
    return Preparation(plan=plan, files={PLAN_FILE: plan_text(plan)})


def prepare(session: Session, settings: Settings) -> Preparation:
    """Decides for one session that asks for KV cache and makes its namespace ready.

    Reads the model folder and writes to the KV folder, so it is called off the event loop.

    Returns:
        A session that cannot have KV cache gets a plan with the reason, and nothing else.
    """
    try:
        return _decide(session, settings)
    except KVCacheError as e:
        return without_kv_cache(session.kernel_id, str(e))
