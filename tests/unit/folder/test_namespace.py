from __future__ import annotations

from pathlib import PurePosixPath

from ai.backend.kvcache.folder.layout import namespace_directory
from ai.backend.kvcache.folder.namespace import canonical, namespace_of


class TestNamespace:
    def test_order_does_not_matter(self) -> None:
        assert namespace_of({"a": 1, "b": {"d": 2, "c": 3}}) == namespace_of({
            "b": {"c": 3, "d": 2},
            "a": 1,
        })

    def test_name_is_pinned(self) -> None:
        # A changed spelling would orphan every cache in the field. xxh3_128 of {"weights":"x"},
        # by xxh128sum, the reference implementation.
        assert canonical({"weights": "x"}) == b'{"weights":"x"}'
        assert namespace_of({"weights": "x"}).name == "808bcad421012905df918cc88de71999"

    def test_every_value_matters(self) -> None:
        names = {namespace_of({"a": value}).name for value in (1, "1", 1.0, True, None, [1])}
        assert len(names) == 6

    def test_seed_is_what_python_accepts(self) -> None:
        for number in range(200):
            assert 1 <= namespace_of({"n": number}).hash_seed <= 4_294_967_295


def test_storage_of_the_engine() -> None:
    assert str(namespace_directory(PurePosixPath("/kvcache"), "ab")) == "/kvcache/ns/ab"
