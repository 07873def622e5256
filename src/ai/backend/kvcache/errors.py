"""What can be wrong, in the words of the person who can put it right.

Every message names the value or the file and says what to do. Inside a Backend.AI callback these
errors become a plan that says why there is no KV cache; they never reach the agent.
"""

from __future__ import annotations


class KVCacheError(Exception):
    """Base of everything this package raises on purpose."""


class PolicyError(KVCacheError):
    """A setting of the administrator has a value that cannot be used."""


class ModelError(KVCacheError):
    """A model folder, or a file in it, cannot be read or does not describe a usable model."""


class StartCommandError(KVCacheError):
    """The engine's command line, environment or config file cannot be understood."""


class FolderError(KVCacheError):
    """The KV folder cannot be used: missing, read-only, or not writable by the session."""


class DeclinedError(KVCacheError):
    """Nothing is broken, but this session gets no KV cache. The message is the reason."""


class EngineVersionError(KVCacheError):
    """An engine's version cannot be understood, or is too old."""


class SizeError(KVCacheError):
    """A size that a person wrote cannot be understood."""
