from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ai.backend.kvcache.errors import ModelError
from ai.backend.kvcache.model.files import list_model
from ai.backend.kvcache.model.fingerprint import HEAD_BYTES, SAMPLE_BYTES, SAMPLES, fingerprint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "llama"}')
    (directory / "tokenizer.json").write_text("{}")
    for shard in range(2):
        (directory / f"model-{shard}.safetensors").write_bytes(os.urandom(1_000_000))
    return directory


def print_of(directory: Path) -> str:
    return fingerprint(list_model(directory, directory))


class TestListing:
    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="cannot be listed"):
            list_model(tmp_path, tmp_path / "gone")


class TestFingerprint:
    def test_copy_elsewhere_is_the_same(self, model: Path, tmp_path: Path) -> None:
        shutil.copytree(model, tmp_path / "copy")
        assert print_of(tmp_path / "copy") == print_of(model)

    def test_other_files_do_not_matter(self, model: Path) -> None:
        before = print_of(model)
        (model / "README.md").write_text("hello")
        assert print_of(model) == before

    @pytest.mark.parametrize(
        "name",
        [
            "config.json",
            "tokenizer.json",
            "hf_quant_config.json",
            "quantize_config.json",
            "preprocessor_config.json",
            "generation_config.json",
            "modeling_mine.py",
        ],
    )
    def test_descriptions_matter(self, model: Path, name: str) -> None:
        before = print_of(model)
        (model / name).write_text('{"rope_theta": 1}')
        assert print_of(model) != before

    @pytest.mark.parametrize("offset", [0, HEAD_BYTES - 1, 999_999])
    def test_head_and_tail_matter(self, model: Path, offset: int) -> None:
        before = print_of(model)
        path = model / "model-1.safetensors"
        content = bytearray(path.read_bytes())
        content[offset] ^= 1
        path.write_bytes(content)
        assert print_of(model) != before

    def test_any_stretch_longer_than_the_gaps_matters(self, model: Path) -> None:
        path = model / "model-0.safetensors"
        content = path.read_bytes()
        # 16 blocks lie between head and tail, so a stretch of one 17th cannot avoid them all.
        stretch = (len(content) - HEAD_BYTES - SAMPLE_BYTES) // (SAMPLES + 1) + 1
        before = print_of(model)
        for start in range(0, len(content) - stretch, 50_000):
            changed = bytes(b ^ 0xFF for b in content[start : start + stretch])
            path.write_bytes(content[:start] + changed + content[start + stretch :])
            assert print_of(model) != before, start

    def test_swapped_shards_matter(self, model: Path) -> None:
        before = print_of(model)
        one, two = (model / f"model-{i}.safetensors" for i in range(2))
        one.rename(model / "swap")
        two.rename(one)
        (model / "swap").rename(two)
        assert print_of(model) != before

    def test_links_within_the_folder_are_followed(self, model: Path) -> None:
        # As the cache of the Hugging Face hub lies on disk: names that link to blobs.
        before = print_of(model)
        snapshot = model / "snapshot"
        snapshot.mkdir()
        for path in [p for p in model.iterdir() if p.is_file()]:
            (snapshot / path.name).symlink_to(path)
        assert fingerprint(list_model(model, snapshot)) == before

    def test_links_out_of_the_folder_are_not(self, model: Path, tmp_path: Path) -> None:
        (tmp_path / "outside").write_bytes(b"secret")
        (model / "tokenizer.model").symlink_to(tmp_path / "outside")
        with pytest.raises(ModelError, match="leads out of its folder"):
            print_of(model)

    def test_small_files_are_read_whole(self, tmp_path: Path) -> None:
        prints = set()
        for offset in range(100):
            directory = tmp_path / str(offset)
            directory.mkdir()
            content = bytearray(100)
            content[offset] = 1
            (directory / "model.safetensors").write_bytes(content)
            prints.add(print_of(directory))
        assert len(prints) == 100
