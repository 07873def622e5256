from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ai.backend.kvcache.errors import ModelError
from ai.backend.kvcache.model.source import open_model
from ai.backend.kvcache.model.weights import Weights


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "my-model"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path


class TestDirectory:
    def test_with_weights(self, directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(bytes(1000))
        source = open_model(str(directory))
        assert (source.name, source.file) == ("my-model", "config.json")
        assert source.weights == Weights(1000, "sizes of 1 weight files")
        assert source.files is not None

    def test_without_weights(self, directory: Path) -> None:
        source = open_model(str(directory))
        assert source.weights is None
        assert source.files is None

    def test_mistrals_own_file(self, directory: Path) -> None:
        (directory / "config.json").rename(directory / "params.json")
        assert open_model(str(directory)).file == "params.json"

    def test_config_wins(self, directory: Path) -> None:
        (directory / "params.json").write_text("{}")
        assert open_model(str(directory)).file == "config.json"

    def test_quantization_in_a_file_of_its_own(self, directory: Path) -> None:
        quantization = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
        (directory / "hf_quant_config.json").write_text(json.dumps(quantization))
        assert open_model(str(directory)).config["quantization_config"] == {
            "quant_method": "modelopt",
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        }
        stated = {"model_type": "llama", "quantization_config": {"quant_method": "awq"}}
        (directory / "config.json").write_text(json.dumps(stated))
        assert open_model(str(directory)).config == stated

    def test_links_to_anywhere_are_followed(self, directory: Path, tmp_path: Path) -> None:
        # As the cache of the Hugging Face hub lies on disk.
        (tmp_path / "link").symlink_to(directory)
        (directory / "config.json").rename(tmp_path / "blob")
        (directory / "config.json").symlink_to(tmp_path / "blob")
        assert open_model(str(tmp_path / "link")).config == {"model_type": "llama"}

    def test_name_of_the_current_directory(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(directory)
        assert open_model(".").name == "my-model"


class TestFile:
    def test_of_any_name(self, directory: Path, tmp_path: Path) -> None:
        (tmp_path / "odd.json").write_text('{"model_type": "qwen3"}')
        (tmp_path / "model.safetensors").write_bytes(bytes(1000))
        source = open_model(str(tmp_path / "odd.json"))
        assert source.file == "odd.json"
        # Whose weights these are is not said.
        assert source.weights is None

    def test_config_in_its_directory(self, directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(bytes(1000))
        source = open_model(str(directory / "config.json"))
        assert source.weights == Weights(1000, "sizes of 1 weight files")


class TestCatalog:
    @pytest.mark.parametrize("name", ["qwen3-32b", "Qwen3-32B", "Qwen/Qwen3-32B", "qwen/qwen3-32b"])
    def test_names(self, name: str) -> None:
        source = open_model(name)
        assert source.name == "qwen3-32b"
        assert source.origin == "https://huggingface.co/Qwen/Qwen3-32B/blob/main/config.json"

    def test_alike(self) -> None:
        with pytest.raises(ModelError, match=r"'qwen3-33b' is no directory.*qwen3-32b"):
            open_model("qwen3-33b")

    @pytest.mark.parametrize("name", ["", "zzz", "no/such/model", "-"])
    def test_nothing_alike(self, name: str) -> None:
        with pytest.raises(ModelError, match=r"of the catalog \(--list-models"):
            open_model(name)


class TestFaults:
    """One clear line that names the file, whatever lies there."""

    def fails(self, path: Path, *parts: str) -> None:
        with pytest.raises(ModelError) as raised:
            open_model(str(path))
        message = str(raised.value)
        assert "\n" not in message
        assert len(message) < 300
        for part in parts:
            assert part in message

    def test_empty_directory(self, tmp_path: Path) -> None:
        self.fails(tmp_path, "neither config.json nor params.json")

    def test_empty_file(self, directory: Path) -> None:
        (directory / "config.json").write_bytes(b"")
        self.fails(directory, "config.json", "not valid JSON")

    def test_truncated(self, directory: Path, data: Path) -> None:
        whole = (data / "models/gpt-oss-120b.config.json").read_bytes()
        (directory / "config.json").write_bytes(whole[: len(whole) // 2])
        self.fails(directory, "config.json", "not valid JSON")

    @pytest.mark.parametrize("opening", ["[", '{"a":'])
    def test_deep(self, directory: Path, opening: str) -> None:
        (directory / "config.json").write_text(opening * 10**5)
        self.fails(directory, "config.json", "not valid JSON")

    @pytest.mark.parametrize("content", [b"\x00\xff" * 1000, b"\x89PNG\r\n\x1a\n", b"\x80"])
    def test_binary(self, directory: Path, content: bytes) -> None:
        (directory / "config.json").write_bytes(content)
        self.fails(directory, "config.json", "not valid JSON")

    @pytest.mark.parametrize("content", ["[]", "5", '"llama"', "null"])
    def test_no_object(self, directory: Path, content: str) -> None:
        (directory / "config.json").write_text(content)
        self.fails(directory, "config.json", "holds no JSON object")

    def test_number_of_a_million_digits(self, directory: Path) -> None:
        (directory / "config.json").write_text('{"num_hidden_layers": %s}' % ("9" * 10**6))
        self.fails(directory, "config.json", "not valid JSON")

    def test_200_megabytes(self, directory: Path) -> None:
        with (directory / "config.json").open("wb") as file:
            file.truncate(200 * 10**6)
        self.fails(directory, "config.json", "200000000 bytes")

    def test_fifo(self, directory: Path) -> None:
        (directory / "config.json").unlink()
        os.mkfifo(directory / "config.json")
        self.fails(directory, "config.json", "not a regular file")

    def test_directory_in_the_place_of_the_file(self, directory: Path) -> None:
        (directory / "config.json").unlink()
        (directory / "config.json").mkdir()
        self.fails(directory, "config.json", "not a regular file")

    def test_device(self) -> None:
        self.fails(Path("/dev/zero"), "zero", "not a regular file")

    def test_loop_of_links(self, directory: Path, tmp_path: Path) -> None:
        (directory / "config.json").unlink()
        (directory / "config.json").symlink_to(directory / "config.json")
        self.fails(directory, "config.json", "symbolic links")
        (tmp_path / "one").symlink_to(tmp_path / "two")
        (tmp_path / "two").symlink_to(tmp_path / "one")
        self.fails(tmp_path / "one", "one", "symbolic links")

    def test_dangling_link(self, tmp_path: Path) -> None:
        (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
        self.fails(tmp_path / "gone", "gone", "No such file")

    def test_broken_index(self, directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(bytes(10))
        (directory / "model.safetensors.index.json").write_text("{")
        self.fails(directory, "model.safetensors.index.json", "not valid JSON")

    def test_a_million_keys(self, directory: Path) -> None:
        config = {f"key{i}": i for i in range(200_000)}
        (directory / "config.json").write_text(json.dumps(config))
        assert open_model(str(directory)).config == config
