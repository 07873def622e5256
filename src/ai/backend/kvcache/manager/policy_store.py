"""The policy in etcd, where nobody overwrites what somebody else has just written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import attrs
import xxhash
from ai.backend.common.etcd import AsyncEtcd
from ai.backend.manager.errors.common import ServiceUnavailable
from etcd_client import Compare, CompareOp, TxnOp
from etcd_client import Txn as Transaction

from ..errors import PolicyError
from ..policy.policy import ETCD_KEY, Policy, check_policy, policy_text, read_policy
from .errors import InvalidRequestError, PolicyConflictError, PolicyUnusableError

#: For one question, its repetitions included.
ETCD_TIMEOUT_SECONDS = 10.0

#: A change that names no version is tried again as often as others come before it.
_TRIES = 10

type Document = dict[str, Any]


@attrs.frozen
class StoredPolicy:
    """What etcd has."""

    text: str | None
    """None: nobody has ever written one."""

    @property
    def version(self) -> str:
        """Another for each other text; that of none is that of an empty one."""
        return xxhash.xxh3_128_hexdigest((self.text or "").encode())

    @property
    def document(self) -> Document:
        """Empty where the text is no JSON object."""
        try:
            return read_policy(self.text)
        except PolicyError:
            return {}

    @property
    def problem(self) -> str | None:
        """Why agents cannot use it. None: they can."""
        try:
            self.policy()
        except PolicyError as e:
            return str(e)
        return None

    def policy(self) -> Policy:
        """
        Raises:
            PolicyError: it is not usable.
        """
        return check_policy(read_policy(self.text))

    def usable(self) -> Policy:
        """The same for a route that cannot do without.

        Raises:
            PolicyUnusableError: it is not usable.
        """
        try:
            return self.policy()
        except PolicyError as e:
            raise PolicyUnusableError(str(e)) from e


class PolicyStore:
    """Reads and writes one key.

    Every method raises ServiceUnavailable where etcd does not answer.
    """

    def __init__(self, etcd: AsyncEtcd, key: str = ETCD_KEY) -> None:
        self._etcd = etcd
        self._key = key

    async def read(self) -> StoredPolicy:
        return StoredPolicy(await _asked(self._etcd.get(self._key)))

    async def change(
        self, make: Callable[[Document], Document], version: str | None = None
    ) -> StoredPolicy:
        """Writes what is made of the stored document, unless another has come in between.

        Args:
            make: from the document that is stored to the one that is to be.
            version: of the only text that may be changed. None: whichever is there.

        Raises:
            InvalidRequestError: what was made is no policy; the message names every wrong setting.
            PolicyConflictError: another version is stored, or others came before at each try.
        """
        for _ in range(_TRIES):
            stored = await self.read()
            text = _checked_text(make(stored.document))
            if version is not None and version != stored.version:
                break
            if await self._replace(stored.text, text):
                return StoredPolicy(text)
        raise PolicyConflictError("read it again, and repeat the change")

    async def _replace(self, old: str | None, new: str) -> bool:
        if old is None:
            return await _asked(self._create(new))
        return await _asked(self._etcd.replace(self._key, old, new))

    async def _create(self, text: str) -> bool:
        """Writes the key only where it is not there, which AsyncEtcd has no method for."""
        key = f"/sorna/{self._etcd.ns}/{self._key}".encode()
        is_absent = Compare.version(key, CompareOp.EQUAL, 0)
        write = TxnOp.put(key, text.encode())
        async with self._etcd.etcd.connect() as communicator:
            answer = await communicator.txn(
                Transaction().when([is_absent]).and_then([write]).or_else([])
            )
        return bool(answer.succeeded())


def _checked_text(document: Document) -> str:
    try:
        check_policy(document)
        return policy_text(document)
    except PolicyError as e:
        raise InvalidRequestError(str(e)) from e


async def _asked[T](question: Coroutine[Any, Any, T]) -> T:
    try:
        async with asyncio.timeout(ETCD_TIMEOUT_SECONDS):
            return await question
    except Exception as e:
        # Whatever etcd's client raises, which has no base of its own.
        raise ServiceUnavailable(f"etcd does not answer: {type(e).__name__}") from e
