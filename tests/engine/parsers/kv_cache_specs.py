"""What the real vLLM says about the KV cache of models: an oracle for this project's own code.

    kv_cache_specs.py CONFIG.json... > answers.json

From nothing but each model's `config.json`, vLLM's own classes build the whole model on torch's
meta device, which takes no memory, and every layer says which KV cache it keeps on a single tensor
parallel rank. This needs vLLM's CPU build and Python 3.11, and imports nothing of this project, so
it runs in the engine image as well as on any machine where the packages of that image lie.

The answer is one JSON object. By path it has either `error`, or what vLLM derives: `architecture`,
`dtype`, `max_model_len` when no option limits it, `parameters`, of which `language_parameters`
belong to the language model, and `layers`: one entry for each KV cache that vLLM would allocate.
`page_size_bytes` is what a block of `block_size` tokens takes in one layer, padding included, and
`real_page_size_bytes` what of it is used; for a layer of recurrent state (`MambaSpec`) that is the
whole state, whatever its block size. Block sizes, and with them padding, are those of a CPU. A
file may also be an entry of this project's catalog, whose `config` is read then.

What cannot run without a GPU or without packages that the image leaves out is patched, and what
would make answers depend on the processor (see `_patch_engine`), but nothing of the layers that
describe their KV cache. Quantized weights are the one part of a configuration that is ignored:
without them every model builds on a CPU, and `parameters` counts numbers instead of packed bytes.
"""

# Linters run where none of the engine's packages is installed.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from answering import StandIns

#: What modules of vLLM import for pictures, sound and GPUs, and the engine image leaves out.
_LEFT_OUT = frozenset({"cuda", "cutlass", "torchaudio", "torchcodec", "torchvision"})

#: What vLLM cannot do without, as published, though nothing of a KV cache hangs on it: a trimmed
#: configuration may lack it.
_TRIMMED: Mapping[str, Mapping[str, Any]] = {
    "minimax_m2": {"rotary_dim": 64, "scoring_func": "sigmoid"},
}

#: Of one model. Most need less than one second.
_TIMEOUT_SECONDS = 120.0


def _patch_engine() -> None:
    import torch
    import transformers.utils
    from torch.utils._device import set_device
    from transformers.models.timm_wrapper.modeling_timm_wrapper import (
        TimmWrapperModel,
        TimmWrapperPreTrainedModel,
    )
    from vllm.model_executor.layers.activation import XIELU, GeluAndMulSparse
    from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
    from vllm.model_executor.layers.fused_moe.oracle import unquantized
    from vllm.model_executor.models import registry
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    # Image processors import torchvision at module level; no image is processed here. transformers
    # must have noticed before that it is missing.
    transformers.utils.is_torchvision_available()
    sys.meta_path.append(StandIns(_LEFT_OUT))

    # Models with kernels of their own for a GPU create streams for them.
    torch.cuda.Stream = torch.cuda.Event = MagicMock

    # Gemma 3n's vision tower is timm's. Without it `parameters` lacks that tower.
    TimmWrapperModel.__init__ = TimmWrapperPreTrainedModel.__init__

    # These read back constants that they compute, which the meta device cannot.
    for activation in (GeluAndMulSparse, XIELU):
        activation.__init__ = set_device("cpu")(activation.__init__)

    # Lest CUDA be initialized, vLLM looks at a model class in a new process. That costs 15 seconds.
    registry._run_in_subprocess = lambda function: function()

    # Answers must not depend on the processor. Without AMX, vLLM disables prefix caching for MLA as
    # it does on no GPU; with AVX-512 for bfloat16, it overrides the dtype of recurrent states.
    torch.cpu._is_amx_tile_supported = lambda: True
    torch.cpu._is_avx512_bf16_supported = lambda: False

    # The CPU has no kernel for sparse MLA. What is cached is up to the layers, not to this backend.
    choose_backend = CpuPlatform.get_attn_backend_cls

    def choose_some_backend(
        selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> Any:
        if attn_selector_config.use_sparse:
            return AttentionBackendEnum.CPU_MLA.get_path()
        return choose_backend(selected_backend, attn_selector_config, num_heads)

    CpuPlatform.get_attn_backend_cls = staticmethod(choose_some_backend)

    # The CPU has no kernel for experts without a gate. The check is the last thing done here.
    check_experts = FusedMoEConfig.__post_init__

    def check_experts_of_any_platform(self: Any) -> None:
        try:
            check_experts(self)
        except NotImplementedError as error:
            if "is_act_and_mul" not in str(error):
                raise

    FusedMoEConfig.__post_init__ = check_experts_of_any_platform
    for kernel in unquantized.backend_to_kernel_cls(unquantized.UnquantizedMoeBackend.CPU):
        kernel.is_supported_config = staticmethod(lambda *arguments: (True, None))


def _read_config(path: Path) -> tuple[dict[str, Any], str]:
    """The configuration without quantized weights, and the dtype that it wants for the KV cache."""
    from vllm.utils.torch_utils import get_kv_cache_quant_algo_string

    config = json.loads(path.read_text())
    if config.keys() == {"source", "config"}:
        config = config["config"]
    kv_cache_dtype = None
    for part in (config, config.get("text_config") or {}):
        # The code that this names does not lie beside the configuration; vLLM has its own.
        part.pop("auto_map", None)
        for key, value in _TRIMMED.get(part.get("model_type", ""), {}).items():
            part.setdefault(key, value)
        for key in ("quantization_config", "compression_config"):
            if quantization := part.pop(key, None):
                kv_cache_dtype = (
                    kv_cache_dtype
                    or get_kv_cache_quant_algo_string(quantization)
                    # As `vllm.model_executor.layers.attention.Attention` reads it.
                    or ("fp8" if quantization.get("kv_cache_scheme") else None)
                )
    return config, kv_cache_dtype or "auto"


def _describe_layer(name: str, spec: Any) -> dict[str, Any]:
    entry = {
        "name": name,
        "spec": type(spec).__name__,
        "block_size": spec.block_size,
        "page_size_bytes": spec.page_size_bytes,
        "real_page_size_bytes": spec.real_page_size_bytes,
    }
    for key in ("sliding_window", "attention_chunk_size"):
        if (tokens := getattr(spec, key, None)) is not None:
            entry[key] = tokens
    return entry


def _count_parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _describe(path: Path) -> dict[str, Any]:
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
    from vllm.v1.worker.gpu_worker import init_worker_distributed_environment

    config, kv_cache_dtype = _read_config(path)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        engine_config = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            enforce_eager=True,
            kv_cache_dtype=kv_cache_dtype,
        ).create_engine_config()
        with set_current_vllm_config(engine_config):
            init_worker_distributed_environment(
                engine_config, 0, f"file://{folder}/rendezvous", 0, current_platform.dist_backend
            )
        model_config = engine_config.model_config
        with set_default_torch_dtype(model_config.dtype), torch.device("meta"):
            model = initialize_model(engine_config)
    # What the executor does with a loaded model before it asks for the specifications.
    current_platform.update_block_size_for_backend(engine_config)
    with set_current_vllm_config(engine_config):
        specs = get_kv_cache_spec(engine_config)
    language_model = model.get_language_model() if hasattr(model, "get_language_model") else model
    return {
        "architecture": model_config.architecture,
        "dtype": str(model_config.dtype).removeprefix("torch."),
        "max_model_len": model_config.max_model_len,
        "parameters": _count_parameters(model),
        "language_parameters": _count_parameters(language_model),
        "layers": [_describe_layer(name, spec) for name, spec in specs.items()],
    }


def _answer(path: Path, connection: Connection) -> None:
    try:
        answer = _describe(path)
    except Exception as error:
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"}
    connection.send(answer)


def _ask(path: Path) -> dict[str, Any]:
    """The answer of a process of its own: vLLM keeps much in globals."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(path, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(_TIMEOUT_SECONDS):
            return {"error": f"no answer within {_TIMEOUT_SECONDS:.0f} s"}
        answer: dict[str, Any] = receiver.recv()
        return answer
    except EOFError:
        process.join()
        return {"error": f"the process ended with {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("config", type=Path, nargs="+")
    paths: list[Path] = parser.parse_args().config

    # Whatever vLLM prints goes to standard error.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

    _patch_engine()
    with output:
        json.dump({str(path): _ask(path) for path in paths}, output, indent=1)
        output.write("\n")


if __name__ == "__main__":
    main()
