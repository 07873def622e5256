"""What `presets` registers, of whatever kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from ..manager.changes import Kept, Needed


class PresetStore[P](ABC):
    """The manager's presets of one kind.

    What the manager refuses is raised as its client does, which has no common base.
    """

    title: ClassVar[str]
    """What people call this kind."""

    @abstractmethod
    async def ours(self) -> list[Kept[P]]:
        """All of ours, in the order in which the WebUI shows them."""

    @abstractmethod
    async def needed(self) -> Needed[P]:
        """What makes ours into those of this version."""

    @abstractmethod
    async def create(self, preset: P) -> None: ...

    @abstractmethod
    async def update(self, kept: Kept[P]) -> None: ...

    @abstractmethod
    async def delete(self, kept: Kept[P]) -> None: ...

    @abstractmethod
    def named(self, preset: P) -> tuple[str, str]:
        """Its name and description, for people."""

    async def install(self) -> str:
        """Does what is needed, and says what that was."""
        needed = await self.needed()
        todo = needed.changes
        for preset in todo.create:
            await self.create(preset)
        for kept in todo.update:
            await self.update(kept)
        for kept in todo.delete:
            await self.delete(kept)
        done = (
            f"{self.title}: {len(todo.create)} created, {len(todo.update)} changed, "
            f"{len(todo.delete)} removed, {len(todo.same)} left as they are"
        )
        return "\n".join((done, *(f"{self.title}: {note}" for note in needed.notes)))

    async def remove(self) -> str:
        """Takes all of ours away."""
        kept = await self.ours()
        for one in kept:
            await self.delete(one)
        return f"{self.title}: {len(kept)} removed"

    async def rows(self) -> list[tuple[str, str, str]]:
        """Kind, name and description of each of ours."""
        return [(self.title, *self.named(kept.preset)) for kept in await self.ours()]
