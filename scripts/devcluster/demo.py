"""What the quick start shows, on a cluster that is up. Run by `scripts/quickstart`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ai.backend.kvcache.folder.usage import namespace_usage
from ai.backend.kvcache.model.files import list_model
from ai.backend.kvcache.model.fingerprint import fingerprint

from . import settings
from .client import Client, connect, model_definition, wait_until
from .completion import Answer, answers, complete
from .console import SetupError, elapsed_seconds, step
from .paths import digest_of
from .tinytext import long_prompt

KV_FOLDER = "quickstart-kv"
MOUNTS: Mapping[str, str] = {KV_FOLDER: "/kvcache"}
MODEL_NAME = "quickstart"

PROMPT_TOKENS = 3000
ANSWER_TOKENS = 32

#: float32, because in 16 bits answers differ by the shape of a batch alone.
START_COMMAND = [
    "vllm", "serve", "{model_path}", "--served-model-name", MODEL_NAME,
    "--dtype", "float32", "--max-model-len", "8192", "--enforce-eager",
]  # fmt: skip

RESOURCES = {"cpu": 2, "mem": "8g"}

#: The manager starts replicas in loops of up to a minute; vLLM itself takes about half of one.
SERVICE_TIMEOUT_SECONDS = 420.0

#: Some ticks of the agent.
SAVING_SECONDS = 30.0


@attrs.frozen
class Result:
    """The table. Field names are the keys of ``--json``."""

    prompt_tokens: int
    loaded_tokens: int
    ttft_cold_seconds: float
    ttft_warm_seconds: float
    answers_equal: bool
    folder_bytes: int
    namespace: str
    url: str
    """Of the service, which goes on running."""
    session: str
    live_stat: Mapping[str, str]
    elapsed_seconds: float


def ask(url: str, prompt: str) -> Answer:
    return complete(url, MODEL_NAME, prompt, tokens=ANSWER_TOKENS)


def wait_for_service(client: Client, service: str) -> tuple[str, str]:
    """Waits until the service's public URL answers. Returns (url, session id)."""

    def ready() -> tuple[str, str] | None:
        url, session = client.service_url(service), client.service_session(service)
        return (url, session) if url and session and answers(url) else None

    return wait_until(f"Model service {service}", ready, SERVICE_TIMEOUT_SECONDS, every=2)


def restart(client: Client, service: str, session: str) -> tuple[str, str]:
    """Empties the engine: its container goes, and a new one takes its place."""
    client.scale_service(service, 0)

    def gone() -> bool | None:
        return client.session(session)["status"] in ("TERMINATED", "CANCELLED") or None

    wait_until("The end of the first container", gone, SERVICE_TIMEOUT_SECONDS, every=2)
    client.scale_service(service, 1)
    return wait_for_service(client, service)


def plan_of(client: Client, session: str) -> Mapping[str, Any]:
    """The plan as it lies in the session's configuration folder."""
    kernel = client.session(session)["containers"][0]["id"]
    path = settings.DATA / "scratches" / kernel / "config" / "kvcache" / "plan.json"
    plan: Mapping[str, Any] = json.loads(path.read_bytes())
    if not plan["kv_cache"]:
        raise SetupError(f"The session has no KV cache: {plan['no_kv_cache_because']}")
    return plan


def wait_for_stores(folder: Path, namespace: str) -> None:
    """LMCache writes behind; the cache is complete once the folder has stopped growing."""

    sizes: list[int] = []

    def settled() -> bool | None:
        sizes.append(namespace_usage(folder, namespace, "lmcache-mp-fs-aesgcm").size)
        return (len(sizes) > 2 and sizes[-1] > 0 and len(set(sizes[-3:])) == 1) or None

    wait_until("The KV folder", settled, 120, every=1)


def wait_for_hits(client: Client, session: str) -> dict[str, str]:
    """The session's metrics as the manager reports them, once they show the warm request.

    What it loaded is counted with its first token, and what that saved when it is finished.
    """

    def reported(figure: str) -> dict[str, str] | None:
        statistics = client.live_stat(session)
        return statistics if float(statistics.get(figure, 0)) > 0 else None

    hits = wait_until(
        "The manager's metrics", lambda: reported("kvcache_loaded_tokens"), 120, every=2
    )
    try:
        return wait_until(
            "What was saved", lambda: reported("kvcache_saved_seconds"), SAVING_SECONDS, every=2
        )
    except SetupError:
        # On a machine with other work, loading may take about as long as computing.
        return hits


def ensure_model(client: Client, name: str, model: Path, definition: str) -> None:
    client.ensure_folder(name, "model")
    present = {item["name"] for item in client.api.VFolder(name).list_files()["items"]}
    written = model / "model-definition.yaml"
    if written.name in present:
        return
    written.write_text(definition)
    # Last, so that it is there only if all the others are, whatever interrupts an upload.
    others = [path for path in model.iterdir() if path.is_file() and path != written]
    client.upload(name, model, others)
    client.upload(name, model, [written])


def create_service(
    client: Client,
    name: str,
    image: str,
    resources: Mapping[str, Any] = RESOURCES,
    folders: Mapping[str, str] = MOUNTS,
) -> str:
    """A service of the model folder of the same name.

    Args:
        folders: name → where it is mounted besides; the KV folder where nothing else is said.
    """
    service = client.ensure_service(
        name,
        image=f"local/{image}",
        model_id_or_name=name,
        model_mount_destination="/models",
        model_definition_path="model-definition.yaml",
        extra_mounts=list(folders),
        extra_mount_map=dict(folders),
        resources=dict(resources),
        resource_opts={},
        runtime_variant="custom",
    )
    client.scale_service(service, 1)
    return service


def ensure_service(client: Client, name: str, image: str) -> str:
    """The same, one at a time: those of other versions of the quick start make room for it."""
    for other, service in client.services().items():
        if other.startswith("quickstart-") and other != name:
            client.delete_service(service)
    return create_service(client, name, image)


def show(client: Client, image: str, model: Path, prompt: str) -> Result:
    """Asks a service, restarts it, and asks again.

    Args:
        image: the engine image's name in Docker.
        model: a directory whose files become the model folder's.
        prompt: one that the KV folder has never seen, so that the first request is cold.
    """
    definition = model_definition(START_COMMAND)
    weights = fingerprint(list_model(model, model))
    name = f"quickstart-{digest_of(image, weights, definition, json.dumps(RESOURCES))[:8]}"
    with step("Model folder and KV folder"):
        ensure_model(client, name, model, definition)
        folder = client.ensure_folder(KV_FOLDER)
    with step("Model service (one to three minutes)"):
        service = ensure_service(client, name, image)
        url, session = wait_for_service(client, service)
        namespace = str(plan_of(client, session)["namespace"]["name"])
    with step(f"First request, cold, to {url}"):
        cold = ask(url, prompt)
        wait_for_stores(folder, namespace)
    with step("Restarting the service in a new container (one to three minutes)"):
        url, session = restart(client, service, session)
    with step("Second request, warm"):
        warm = ask(url, prompt)
    with step("Metrics as the manager reports them"):
        statistics = wait_for_hits(client, session)
    return Result(
        prompt_tokens=warm.prompt_tokens,
        loaded_tokens=round(float(statistics["kvcache_loaded_tokens"])),
        ttft_cold_seconds=round(cold.first_token_seconds, 3),
        ttft_warm_seconds=round(warm.first_token_seconds, 3),
        answers_equal=cold.text == warm.text,
        folder_bytes=sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()),
        namespace=namespace,
        url=url,
        session=session,
        live_stat={k: v for k, v in sorted(statistics.items()) if k.startswith("kvcache")},
        elapsed_seconds=round(elapsed_seconds(), 1),
    )


def table(result: Result) -> str:
    rows = [
        ("prompt tokens", f"{result.prompt_tokens:,}"),
        (
            "tokens loaded from the folder",
            f"{result.loaded_tokens:,} ({result.loaded_tokens / result.prompt_tokens:.0%})",
        ),
        ("first token, cold", f"{result.ttft_cold_seconds:.2f} s"),
        ("first token, warm", f"{result.ttft_warm_seconds:.2f} s"),
        ("same answer", "yes" if result.answers_equal else "NO"),
        ("bytes in the folder", f"{result.folder_bytes:,}"),
        ("namespace", result.namespace),
        *((f"live_stat {name}", value) for name, value in result.live_stat.items()),
        ("elapsed", f"{result.elapsed_seconds:.0f} s"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def main() -> int:
    image, model, *result_file = sys.argv[1:]
    try:
        with connect() as client:
            prompt = long_prompt(PROMPT_TOKENS, seed=time.time_ns())
            result = show(client, image, Path(model), prompt)
    except SetupError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    if result_file:
        Path(result_file[0]).write_text(json.dumps(attrs.asdict(result), indent=2) + "\n")
    print(f"\n{table(result)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
