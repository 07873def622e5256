"""Model services with a KV folder on a real Backend.AI, with real engines."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ai.backend.kvcache.metrics.indicators import INDICATORS
from devcluster import command, demo
from devcluster.client import Client, model_definition, wait_until

from .conftest import Other, running


class TestQuickstart:
    def test_restarted_service_loads_nearly_all_of_the_prompt(self, result: demo.Result) -> None:
        assert result.prompt_tokens >= 3000
        assert result.loaded_tokens >= 0.9 * result.prompt_tokens

    def test_answer_is_the_same(self, result: demo.Result) -> None:
        assert result.answers_equal

    def test_manager_reports_the_hits(self, result: demo.Result) -> None:
        stat = result.live_stat
        # All whole chunks of 256 tokens.
        assert result.loaded_tokens == result.prompt_tokens // 256 * 256
        assert float(stat["kvcache_util"]) == pytest.approx(
            100 * result.loaded_tokens / result.prompt_tokens, abs=0.001
        )
        assert float(stat["kvcache_loaded_tokens"]) == result.loaded_tokens
        assert float(stat["kvcache_blocks"]) == result.prompt_tokens // 256
        assert float(stat["kvcache_unfinished"]) == 0
        # One request, which found something.
        assert float(stat["kvcache_first_token_warm"]) > 0
        # Of LMCache's server, whose page is seen inside of the container only.
        assert float(stat["kvcache_evicted_rate"]) >= 0
        assert stat.keys() <= {indicator.key for indicator in INDICATORS}

    def test_files_lie_in_the_namespace(self, client: Client, result: demo.Result) -> None:
        folder = client.ensure_folder(demo.KV_FOLDER)
        files = list((folder / "ns" / result.namespace).glob("*.data"))
        # 256 tokens a file
        assert len(files) == result.prompt_tokens // 256
        assert (folder / ".kvcache" / "namespaces" / f"{result.namespace}.json").exists()


class TestOtherWeightsAtTheSamePath:
    def test_have_a_namespace_of_their_own(self, result: demo.Result, other: Other) -> None:
        assert other.namespace != result.namespace

    def test_load_nothing(self, other: Other) -> None:
        assert float(other.live_stat["kvcache_util"]) == 0
        assert float(other.live_stat["kvcache_loaded_tokens"]) == 0


class TestServiceOnGpus:
    def test_command_that_runs_vllm(
        self, client: Client, image: str, model_folder: tuple[str, Path]
    ) -> None:
        """On mock GPUs the engine cannot run; what it is started with can be seen all the same."""
        name = "test-gpu-service"
        path = client.ensure_folder(name, "model")
        shutil.copytree(model_folder[1], path, dirs_exist_ok=True)
        start = ["vllm", "serve", "{model_path}", "--tensor-parallel-size", "8"]
        (path / "model-definition.yaml").write_text(model_definition(start))
        client.ensure_folder(demo.KV_FOLDER)
        service = client.ensure_service(
            name,
            image=f"local/{image}",
            model_id_or_name=name,
            model_definition_path="model-definition.yaml",
            extra_mounts=[demo.KV_FOLDER],
            extra_mount_map={demo.KV_FOLDER: "/kvcache"},
            # As little as the image allows: services being deleted hold theirs for minutes.
            resources={"cpu": 1, "mem": "5g", "cuda.device": 8},
            resource_opts={},
            runtime_variant="custom",
        )
        try:
            session_id = wait_until(
                "The service's session", lambda: client.service_session(service), timeout=180
            )
            session = running(client, session_id)

            def started() -> str | None:
                processes = command.run(["docker", "top", session.container_id, "-eo", "pid,args"])
                return next((p for p in processes.splitlines() if "vllm serve" in p), None)

            process = wait_until("vLLM", started, timeout=60, every=0.2)
            assert process.endswith(
                "vllm serve /home/config/kvcache/model --tensor-parallel-size 8 "
                "--served-model-name /models --config /home/config/kvcache/vllm.yaml"
            )
            # With the image's vLLM 0.32, LMCache inside vLLM would answer wrongly.
            assert session.plan()["engine"] == "lmcache-mp"
            server = session.read("/home/config/kvcache/with-server.sh")
            # A quarter of 5 GiB, in whole GiB.
            assert "--l1-size-gb 1 " in server
            assert "--supported-transfer-mode auto" in server
        finally:
            client.delete_service(service)
