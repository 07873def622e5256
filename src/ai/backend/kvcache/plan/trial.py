"""What a start command would get in a session: the whole decision, without a cluster.

A session is made up of what a person says about it, and the decision is the one that every real
session gets (``decide``). What only a real session has, and what was assumed in its place, is said
in the trial's notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
import yaml

from ..engine.adapter import Transport
from ..engine.select import TRANSPORTS
from ..errors import DeclinedError, KVCacheError, StartCommandError
from ..folder.namespace import Namespace
from ..policy.request import SWITCH, TRANSPORT
from ..policy.settings import Settings, Sharing
from .decide import Preparation, decide, without_kv_cache
from .described import SESSION_ID, Description, described_session
from .entitle import entitle
from .masks import masked_line, masked_settings, masked_words
from .plan import PLAN_FILE

#: Begins what stands for the name, and the seed, of a namespace that cannot be known.
ASSUMED = "assumed-"


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
            "files": {name: _masked_file(name, text) for name, text in _files(made).items()},
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


def _files(preparation: Preparation) -> Mapping[str, str]:
    """What the engine reads."""
    return {name: text for name, text in preparation.files.items() if name != PLAN_FILE}


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


def _is_known(said: Description) -> bool:
    """Whether everything is said by which an engine chooses kernels and layouts."""
    return said.image is not None and (said.gpu_model is not None or said.gpus == 0)


def _namespace_assumed(said: Description, settings: Settings, namespace: Namespace) -> str | None:
    """Why nobody can say which namespace a session would have; None where it is certain."""
    if not isinstance(said.model, Path):
        missing = "the model's weights, which are not here; give its whole directory to know it"
    elif settings.sharing is not Sharing.PROJECT:
        missing = f"the {settings.sharing} (sharing = {settings.sharing})"
    elif namespace.description["made_on"] is not None and not _is_known(said):
        missing = (
            "the model of the GPUs and the image's name, on which the form of its files depends; "
            "give them by --gpu-model and --image to know it"
        )
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
    told = (*preparation.environment.values(), *_files(preparation).values())
    if plan.metrics or any(SESSION_ID in text for text in told):
        yield (
            "addresses, ports and names of temporary files are each session's own; those shown "
            f"are of the session {SESSION_ID}"
        )


def try_start(said: Description) -> Trial:
    """Decides for a session with this start command.

    Raises:
        StartCommandError: there is no command to speak of.
        EngineVersionError: a version is none.
        SizeError: sizes contradict each other.
    """
    _check_command(said.command)
    session, assumed = described_session(said)
    assumed_because: str | None = None
    try:
        entitlement = entitle(session, said.policy)
        if entitlement is None:
            raise DeclinedError(f"the session declines it: {SWITCH} = {said.environ[SWITCH]}")
        preparation = decide(session, entitlement.settings)
        if preparation.plan.namespace is not None:
            assumed_because = _namespace_assumed(
                said, entitlement.settings, preparation.plan.namespace
            )
    except KVCacheError as e:
        # As an agent does.
        preparation = without_kv_cache(SESSION_ID, str(e))
    reasons = () if assumed_because is None else (assumed_because,)
    return Trial(preparation, assumed_because, (*assumed, *reasons, *_notes(preparation)))
