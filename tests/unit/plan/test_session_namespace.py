"""Which sessions share a namespace, way by way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
import pytest

from ai.backend.kvcache.engine.select import Wish
from ai.backend.kvcache.engine.versions import Versions
from ai.backend.kvcache.folder.entries import Owner
from ai.backend.kvcache.folder.namespace import Namespace
from ai.backend.kvcache.plan.decide import decide
from ai.backend.kvcache.plan.plan import Plan
from ai.backend.kvcache.plan.session import Gpus, Image, Mount, Service, Session
from ai.backend.kvcache.policy.settings import Settings

GIB = 2**30

_GPUS = Gpus("cuda", 8, 80 * GIB, model="NVIDIA H100 80GB HBM3")


@attrs.frozen
class Way:
    """A way, and a session that goes it."""

    name: str
    packages: Mapping[str, str]
    command: tuple[str, ...]
    on_gpus: bool = True


VLLM = ("vllm", "serve", "{model_path}")
SGLANG = ("python3", "-m", "sglang.launch_server", "--model-path", "{model_path}")

WAYS = {
    way.name: way
    for way in (
        Way("lmcache-gds", {"vllm": "0.20.2", "lmcache": "0.4.4"}, (*VLLM, "-tp", "8")),
        Way("lmcache-posix", {"vllm": "0.20.2", "lmcache": "0.4.4"}, (*VLLM, "-tp", "8")),
        Way("lmcache-mp", {"vllm": "0.32.0", "lmcache": "0.5.6"}, VLLM, on_gpus=False),
        Way("vllm-tiering", {"vllm": "0.32.0"}, (*VLLM, "-tp", "8")),
        Way("sglang-hicache", {"sglang": "0.5.23"}, (*SGLANG, "--tp-size", "8")),
    )
}
OF_VLLM = [name for name in WAYS if name != "sglang-hicache"]
OF_LMCACHE = [name for name in WAYS if name.startswith("lmcache")]
OF_ENGINES_BYTES = ["vllm-tiering", "sglang-hicache"]

type Decide = Callable[..., Plan]
type Make = Callable[..., Namespace]


@pytest.fixture
def model(tmp_path: Path, data: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    config = (data / "models/devstral-2-123b.config.json").read_bytes()
    (path / "config.json").write_bytes(config)
    (path / "model.safetensors").write_bytes(bytes(1000))
    index = {"metadata": {"total_size": 128 * GIB}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


@pytest.fixture
def plan_of(model: Path, tmp_path: Path) -> Decide:
    """The plan of a session that is to go a way, with what is added to its start."""
    folder = tmp_path / "kv"
    folder.mkdir()

    def plan(
        way: str, *arguments: str, environ: Mapping[str, str] | None = None, **changes: Any
    ) -> Plan:
        taken = WAYS[way]
        session = Session(
            kernel_id="5f0c2f3e-0000-4000-8000-000000000000",
            mounts=(
                Mount("model", model, PurePosixPath("/models"), False, True),
                Mount("kv", folder, PurePosixPath("/kvcache"), True, False),
            ),
            environ=environ or {},
            image=Image("image:1", {}, Versions(taken.packages, is_complete=True)),
            gpus=_GPUS if taken.on_gpus else None,
            service=Service((*taken.command, *arguments), PurePosixPath("/models")),
            owner=Owner(),
            shared_memory_bytes=None,
            memory_bytes=1024 * GIB,
        )
        session = attrs.evolve(session, **changes)
        return decide(session, Settings(wish=Wish(way))).plan

    return plan


@pytest.fixture
def of(plan_of: Decide) -> Make:
    """The namespace of such a session."""

    def namespace(way: str, *arguments: str, **changes: Any) -> Namespace:
        plan = plan_of(way, *arguments, **changes)
        assert plan.no_kv_cache_because is None
        assert plan.adapter == way
        assert plan.namespace is not None
        return plan.namespace

    return namespace


@pytest.mark.parametrize("way", OF_VLLM)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--kv-cache-dtype-skip-layers", "0"],
        ["--kv_cache_dtype_skip_layers=0"],
        ["--kv-cache-dtype-skip", "0"],
        ["--spec-method", "ngram", "--spec-tokens", "3"],
        ["--speculative-config.method", "ngram"],
        ["-sc", '{"method":"ngram","num_speculative_tokens":3}'],
        ["-q", "fp8"],
        ["-qfp8"],
        ["--quantization=fp8"],
        ["--hf-overrides.rope_theta", "5"],
        ["--rope-scaling", '{"rope_type":"linear","factor":2.0}'],
        ["--tokenizer", "/models/other"],
        ["--revision", "v2"],
        ["--code-revision", "v2"],
        ["--quantization-param-path", "/models/scales.json"],
        ["--model-impl", "transformers"],
        ["--mm-processor-kwargs.num_crops", "4"],
        ["--moe-backend", "marlin"],
        ["--disable-hybrid-kv-cache-manager"],
        ["--attention-config.indexer_kv_dtype", "fp8"],
        ["--worker-extension-cls", "mine.Worker"],
        ["--an-option-of-tomorrow"],
        ["--an-option-of-tomorrow", "1"],
    ],
)
def test_what_vllm_computes_and_stores(of: Make, way: str, arguments: list[str]) -> None:
    # Otherwise a draft model, or a cache of unknown size, has no KV cache beside it at all.
    fixed = ["--gpu-memory-utilization", "0.5"]
    assert of(way, *fixed, *arguments).name != of(way, *fixed).name


@pytest.mark.parametrize("way", OF_VLLM)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--port", "8001"],
        ["--api-key", "a", "b"],
        ["--served-model-name", "mine"],
        ["--max-model-len", "8192"],
        ["--seed", "7"],
        ["--max-num-seqs", "16"],
        ["--enable-chunked-prefill"],
        ["--no-enable-chunked-prefill"],
        ["--kv-cache-metrics"],
        ["--logits-processors", "mine.Processor"],
        ["--chat-template", "/models/template"],
        ["--generation-config", "vllm"],
        ["--compilation-config.mode", "3"],
        ["-cc.mode", "3"],
        ["-O3"],
        ["--dtype", "bfloat16"],
        ["--no-enable-expert-parallel"],
        ["--disable-log-stats"],
    ],
)
def test_what_changes_no_block_of_vllm(of: Make, way: str, arguments: list[str]) -> None:
    fixed = ["--gpu-memory-utilization", "0.5"]
    assert of(way, *fixed, *arguments).name == of(way, *fixed).name


class TestLayoutOfTheEngine:
    """It counts where files hold the engine's own bytes, and nowhere else."""

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--attention-backend", "FLASHINFER"],
            ["--attention-backend=FLASHINFER"],
            ["--attention-config.backend", "FLASHINFER"],
            ["-ac.backend", "FLASHINFER"],
            ["-ac", '{"backend":"FLASHINFER"}'],
            ["--block-size", "32"],
            ["--attention-config.flash_attn_version", "2"],
        ],
    )
    def test_vllms_options(self, of: Make, arguments: list[str]) -> None:
        assert of("vllm-tiering", *arguments).name != of("vllm-tiering").name
        assert of("lmcache-gds", *arguments).name == of("lmcache-gds").name

    def test_spellings_of_one_choice(self, of: Make) -> None:
        spellings = (
            ["--attention-backend", "FLASHINFER"],
            ["-ac.backend=FLASHINFER"],
            ["--attention-config", '{"backend": "FLASHINFER"}'],
        )
        assert len({of("vllm-tiering", *arguments).name for arguments in spellings}) == 1

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("VLLM_KV_CACHE_LAYOUT", "HND"),
            ("VLLM_ATTENTION_BACKEND", "FLASHINFER"),
            ("VLLM_USE_V2_MODEL_RUNNER", "0"),
        ],
    )
    def test_vllms_variables(self, of: Make, variable: str, value: str) -> None:
        environ = {variable: value}
        assert of("vllm-tiering", environ=environ).name != of("vllm-tiering").name
        assert of("lmcache-gds", environ=environ).name == of("lmcache-gds").name

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--hicache-mem-layout", "page_first"],
            ["--hicache-mem-layout=page_first"],
            ["--hicache-io-backend", "direct"],
            ["--hicache-io-back", "direct"],
            ["--attention-backend", "triton"],
            ["--page-size", "32"],
            ["--enable-page-major-kv-layout"],
        ],
    )
    def test_sglang(self, of: Make, arguments: list[str]) -> None:
        assert of("sglang-hicache", *arguments).name != of("sglang-hicache").name

    def test_sglangs_values(self, of: Make) -> None:
        layouts = ("layer_first", "page_first", "page_first_direct")
        names = {of("sglang-hicache", "--hicache-mem-layout", name).name for name in layouts}
        assert len(names) == 3

    @pytest.mark.parametrize("way", OF_ENGINES_BYTES)
    def test_model_of_the_gpus(self, of: Make, way: str) -> None:
        def on(model: str | None) -> str:
            return of(way, gpus=Gpus("cuda", 8, 80 * GIB, model=model)).name

        assert len({on("NVIDIA H100 80GB HBM3"), on("NVIDIA A100-SXM4-80GB"), on(None)}) == 3

    def test_model_of_the_gpus_with_lmcache(self, of: Make) -> None:
        other = Gpus("cuda", 8, 80 * GIB, model="NVIDIA A100-SXM4-80GB")
        assert of("lmcache-gds", gpus=other).name == of("lmcache-gds").name

    @pytest.mark.parametrize("way", OF_ENGINES_BYTES)
    def test_packages_of_the_image(self, of: Make, way: str) -> None:
        image = Image("image:2", {}, Versions(WAYS[way].packages, is_complete=True))
        assert of(way, image=image).name != of(way).name

    def test_packages_of_the_image_with_lmcache(self, of: Make) -> None:
        image = Image("image:2", {}, Versions(WAYS["lmcache-gds"].packages, is_complete=True))
        assert of("lmcache-gds", image=image).name == of("lmcache-gds").name

    @pytest.mark.parametrize("way", OF_LMCACHE)
    def test_type_of_the_cache_with_scales(self, of: Make, way: str) -> None:
        # Where the scales lie follows from the backend.
        cache = ["--kv-cache-dtype", "int8_per_token_head"]
        chosen = [*cache, "--attention-backend", "TRITON_ATTN"]
        assert of(way, *chosen).name != of(way, *cache).name
        plain = ["--kv-cache-dtype", "fp8"]
        assert of(way, *plain, "--attention-backend", "TRITON_ATTN").name == of(way, *plain).name


@pytest.mark.parametrize("way", OF_VLLM)
@pytest.mark.parametrize(
    ("variable", "counts"),
    [
        ("VLLM_PP_LAYER_PARTITION", True),
        ("VLLM_USE_V1", True),
        ("VLLM_MARLIN_INPUT_DTYPE", True),
        ("VLLM_BATCH_INVARIANT", True),
        ("VLLM_A_VARIABLE_OF_TOMORROW", True),
        ("VLLM_LOGGING_LEVEL", False),
        ("VLLM_API_KEY", False),
        ("SGLANG_PP_LAYER_PARTITION", False),
        ("HOME", False),
    ],
)
def test_variables_of_vllm(of: Make, way: str, variable: str, counts: bool) -> None:
    assert (of(way, environ={variable: "1"}).name != of(way).name) is counts
    if counts:
        assert of(way, environ={variable: "1"}).name != of(way, environ={variable: "2"}).name


@pytest.mark.parametrize(
    ("variable", "counts"),
    [
        ("LMCACHE_CHUNK_SIZE", True),
        ("LMCACHE_PRE_CACHING_HASH_ALGORITHM", True),
        ("LMCACHE_ENABLE_BLENDING", True),
        ("LMCACHE_REMOTE_SERDE", True),
        ("LMCACHE_USE_LAYERWISE", True),
        ("LMCACHE_OF_TOMORROW", True),
        ("PYTHONHASHSEED", True),
        ("LMCACHE_LOG_LEVEL", False),
        ("LMCACHE_MIN_RETRIEVE_TOKENS", False),
    ],
)
def test_variables_of_lmcache(of: Make, variable: str, counts: bool) -> None:
    environ = {variable: "512"}
    assert (of("lmcache-gds", environ=environ).name != of("lmcache-gds").name) is counts


@pytest.mark.parametrize(
    ("arguments", "counts"),
    [
        (["--json-model-override-args", '{"rope_theta": 5}'], True),
        (["--quantization", "fp8"], True),
        (["--speculative-algorithm", "NGRAM"], True),
        (["--enable-dp-attention"], True),
        (["--tokenizer-path", "/models/other"], True),
        (["--an-option-of-tomorrow"], True),
        (["--context-length", "8192"], False),
        (["--port", "8001"], False),
        (["--log-level", "info"], False),
        (["--mem-fraction-static", "0.8"], False),
    ],
)
def test_options_of_sglang(of: Make, arguments: list[str], counts: bool) -> None:
    name = of("sglang-hicache", *arguments).name
    assert (name != of("sglang-hicache").name) is counts


@pytest.mark.parametrize(
    ("variable", "counts"),
    [
        ("SGLANG_PP_LAYER_PARTITION", True),
        ("SGLANG_USE_HND_KVCACHE", True),
        ("SGLANG_A_VARIABLE_OF_TOMORROW", True),
        ("SGLANG_LOG_GC", False),
        ("VLLM_PP_LAYER_PARTITION", False),
    ],
)
def test_variables_of_sglang(of: Make, variable: str, counts: bool) -> None:
    name = of("sglang-hicache", environ={variable: "1"}).name
    assert (name != of("sglang-hicache").name) is counts


class TestPlacesOfAnOption:
    """It counts wherever the user wrote it."""

    def test_in_a_config_file(self, of: Make, model: Path) -> None:
        (model / "mine.yaml").write_text("quantization: fp8\nport: 8001\n")
        by_file = of("lmcache-mp", "--config", "mine.yaml")
        assert by_file.description == of("lmcache-mp", "-q", "fp8").description
        assert by_file.name != of("lmcache-mp").name

    def test_in_extra_arguments(self, of: Make) -> None:
        extra = {"VLLM_EXTRA_ARGS": "--moe-backend marlin"}
        by_variable = of("lmcache-mp", environ=extra)
        assert by_variable.description == of("lmcache-mp", "--moe-backend", "marlin").description

    @pytest.mark.parametrize(
        "content",
        [
            "kv-cache-dtype-skip-layers: ['0', sliding_window]",
            "kv_cache_dtype_skip_layers:\n- 0\n- sliding_window",
        ],
    )
    def test_list_in_a_config_file(self, of: Make, model: Path, content: str) -> None:
        (model / "mine.yaml").write_text(content)
        told = ["--gpu-memory-utilization", "0.5"]
        by_file = of("vllm-tiering", *told, "--config", "mine.yaml")
        option = "--kv-cache-dtype-skip-layers"
        by_command = of("vllm-tiering", *told, option, "0", "sliding_window")
        assert by_file.description == by_command.description

    def test_mapping_in_a_config_file(self, of: Make, model: Path) -> None:
        (model / "mine.yaml").write_text("attention-config:\n  backend: FLASHINFER\n")
        by_file = of("vllm-tiering", "--config", "mine.yaml")
        by_command = of("vllm-tiering", "--attention-backend", "FLASHINFER")
        assert by_file.description == by_command.description

    @pytest.mark.parametrize(
        "command",
        [
            ("env", "VLLM_PP_LAYER_PARTITION=20,68", *VLLM),
            ("bash", "-c", 'VLLM_PP_LAYER_PARTITION=20,68 vllm serve /models "$@"', "wrap"),
            ("bash", "-c", 'export VLLM_PP_LAYER_PARTITION=20,68; vllm serve /models "$@"', "x"),
        ],
    )
    def test_variable_in_the_command(self, of: Make, command: tuple[str, ...]) -> None:
        by_command = of("lmcache-mp", service=Service(command, PurePosixPath("/models")))
        by_environment = of("lmcache-mp", environ={"VLLM_PP_LAYER_PARTITION": "20,68"})
        assert by_command.description == by_environment.description
        assert by_command.name != of("lmcache-mp").name

    def test_command_wins_over_the_file(self, of: Make, model: Path) -> None:
        (model / "mine.yaml").write_text("moe-backend: triton\n")
        both = of("lmcache-mp", "--config", "mine.yaml", "--moe-backend", "marlin")
        assert both.name == of("lmcache-mp", "--moe-backend", "marlin").name


class TestModelsThatWatchTheLength:
    """Some compute otherwise with another longest length (model/watched.py)."""

    LONG_ROPE: Mapping[str, Any] = {
        "rope_scaling": {
            "type": "longrope",
            "long_factor": [4.0] * 64,
            "short_factor": [1.0] * 64,
            "original_max_position_embeddings": 4096,
        }
    }

    @pytest.fixture
    def long_rope(self, model: Path) -> None:
        path = model / "config.json"
        config = json.loads(path.read_text())
        config.pop("rope_parameters", None)
        path.write_text(json.dumps({**config, **self.LONG_ROPE}))

    @pytest.mark.usefixtures("long_rope")
    @pytest.mark.parametrize("way", OF_VLLM)
    def test_length_counts(self, of: Make, way: str) -> None:
        short, long = (of(way, "--max-model-len", n).name for n in ("4096", "8192"))
        assert short != long

    @pytest.mark.usefixtures("long_rope")
    def test_length_that_the_engine_chooses(self, plan_of: Decide) -> None:
        reason = plan_of("lmcache-mp", "--max-model-len", "auto").no_kv_cache_because
        assert reason is not None
        assert "give --max-model-len a number" in reason

    @pytest.mark.parametrize("way", OF_VLLM)
    def test_others_do_not(self, of: Make, way: str) -> None:
        assert of(way, "--max-model-len", "4096").name == of(way).name


@pytest.mark.parametrize(
    ("way", "argument"),
    [
        ("lmcache-mp", '--weight-transfer-config={"backend":"nccl"}'),
        ("vllm-tiering", "--weight-transfer-config={}"),
        ("lmcache-gds", "--weight-transfer-config.backend=nccl"),
        ("sglang-hicache", "--checkpoint-engine-wait-weights-before-ready"),
    ],
)
def test_weights_that_change_while_the_engine_runs(
    plan_of: Decide, way: str, argument: str
) -> None:
    reason = plan_of(way, argument).no_kv_cache_because
    assert reason is not None
    assert "weights are exchanged while the engine runs" in reason


@pytest.mark.parametrize(
    ("way", "argument"),
    [
        ("lmcache-mp", "--hf-config-path=/models/other"),
        ("sglang-hicache", "--decrypted-config-file=/models/other.json"),
    ],
)
def test_configuration_from_elsewhere(plan_of: Decide, way: str, argument: str) -> None:
    reason = plan_of(way, argument).no_kv_cache_because
    assert reason is not None
    assert reason.startswith(argument.partition("=")[0])


def test_no_secret_is_in_the_description(of: Make) -> None:
    secret = "hunter2"
    namespace = of(
        "lmcache-mp",
        *("--api-key", secret, "--unknown-key", secret, "--model-loader-extra-config"),
        json.dumps({"password": secret}),
        environ={"VLLM_API_KEY": secret, "VLLM_UNKNOWN_TOKEN": secret},
    )
    assert secret not in json.dumps(namespace.description)
