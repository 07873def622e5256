"""A value that several checks need and one of them gets."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Once[T]:
    """Calls a function when it is first asked, and gives everybody what came of that."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._outcome: tuple[T] | Exception | None = None

    def __call__(self) -> T:
        """Waits for whoever was first.

        Raises:
            Exception: what the function raised.
        """
        with self._lock:
            if self._outcome is None:
                try:
                    self._outcome = (self._make(),)
                except Exception as e:
                    self._outcome = e
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome[0]
