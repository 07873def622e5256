"""Asks an engine through its OpenAI-compatible interface, and times its first token."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

from .console import SetupError

#: A prompt of some thousand tokens takes a busy machine a minute.
TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Answer:
    text: str
    prompt_tokens: int
    first_token_seconds: float


def answers(url: str) -> bool:
    """Whether the engine is ready for requests."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            return int(response.status) == 200
    except OSError:
        return False


def complete(url: str, model: str, prompt: str, *, tokens: int) -> Answer:
    """The greedy completion of a prompt.

    Args:
        url: the engine's address without a slash at its end.
        model: the name that it serves the model by.
        tokens: the length of the answer.
    """
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    text, prompt_tokens, first = "", 0, None
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            for choice in event["choices"]:
                first = first or time.monotonic() - began
                text += choice["text"]
            prompt_tokens = (event.get("usage") or {}).get("prompt_tokens", prompt_tokens)
    if first is None:
        raise SetupError(f"{url} answered without a single token")
    return Answer(text, prompt_tokens, first)
