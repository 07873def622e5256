from __future__ import annotations

from uuid import UUID

import attrs

from ai.backend.kvcache.manager.changes import Kept, changes


@attrs.frozen
class Thing:
    name: str
    content: int = 0


A, B = Thing("a"), Thing("b")
OLD_A = Thing("a", 1)


def identity(thing: Thing) -> str | None:
    return None if thing.name == "theirs" else thing.name


def kept(number: int, thing: Thing) -> Kept[Thing]:
    return Kept(UUID(int=number), thing)


class TestChanges:
    def test_nothing_there(self) -> None:
        needed = changes([], [A, B], identity)
        assert needed.create == (A, B)
        assert (needed.update, needed.delete, needed.same) == ((), (), ())

    def test_twice(self) -> None:
        needed = changes([kept(1, A), kept(2, B)], [A, B], identity)
        assert (needed.create, needed.update, needed.delete) == ((), (), ())
        assert needed.same == (kept(1, A), kept(2, B))

    def test_of_an_older_version(self) -> None:
        needed = changes([kept(1, OLD_A), kept(2, B)], [A], identity)
        assert needed.create == ()
        assert needed.update == (kept(1, A),)
        assert needed.delete == (kept(2, B),)

    def test_there_twice(self) -> None:
        needed = changes([kept(1, A), kept(2, A)], [A], identity)
        assert needed.same == (kept(1, A),)
        assert needed.delete == (kept(2, A),)

    def test_others_are_left_alone(self) -> None:
        theirs = kept(1, Thing("theirs"))
        needed = changes([theirs], [A], identity)
        assert needed.create == (A,)
        assert (needed.update, needed.delete, needed.same) == ((), (), ())
