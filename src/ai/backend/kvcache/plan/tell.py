"""How an engine's setup reaches the engine of a session."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

import attrs
import yaml

from ..engine.adapter import EngineSetup
from ..engine.vllm import CONFIG_ALONE_FILE, CONFIG_FILE
from .gpu import Budget
from .model import Model
from .start import EngineStart

#: Where a session sees the files of its plan: Backend.AI mounts the kernel's configuration here.
FILES_DIRECTORY = PurePosixPath("/home/config/kvcache")

#: The model under a path that is the same for all sessions, wherever it is mounted: LMCache's keys
#: carry the path, and so do its file names, which may not become longer than 255 bytes.
MODEL_LINK = "model"


@attrs.frozen
class Told:
    """What an engine's start gets besides the environment."""

    arguments: tuple[str, ...]
    """Put behind the command."""
    files: Mapping[str, str]
    """Name → content, in FILES_DIRECTORY."""
    links: Mapping[str, str]
    """Beside the files: name → where the link leads in the container."""
    run_by: PurePosixPath | None
    """A script among the files that has to run the command."""

    @property
    def model(self) -> str | None:
        """What is served in the place of the model that the command names. None: that one."""
        return str(FILES_DIRECTORY / MODEL_LINK) if self.links else None


def tell(start: EngineStart, setup: EngineSetup, budget: Budget | None, model: Model) -> Told:
    """What an adapter's setup means for a session's start."""
    arguments = list(setup.arguments)
    files = dict(setup.files)
    if setup.kv_transfer_config is not None:
        # vLLM takes one file only, so the user's own is in it.
        config = {**start.config, "kv-transfer-config": dict(setup.kv_transfer_config)}
        files[CONFIG_FILE] = yaml.safe_dump(config, sort_keys=False)
        if setup.run_by is not None:
            files[CONFIG_ALONE_FILE] = yaml.safe_dump(dict(start.config), sort_keys=False)
        arguments = ["--config", str(FILES_DIRECTORY / CONFIG_FILE)]
    if budget and budget.utilization != budget.utilization_before:
        arguments += ["--gpu-memory-utilization", str(budget.utilization)]
    links: dict[str, str] = {}
    if start.command.names_model:
        links[MODEL_LINK] = str(model.path)
        if start.arguments.served_model_name is None:
            # Clients go on calling it what they called it.
            name = start.arguments.model or str(model.path)
            arguments = ["--served-model-name", name, *arguments]
    run_by = None if setup.run_by is None else FILES_DIRECTORY / setup.run_by
    return Told(tuple(arguments), files, links, run_by)
