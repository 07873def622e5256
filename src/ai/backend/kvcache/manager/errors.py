"""What the routes refuse, in the manager's own shape.

What the manager has an error for already (no such session, no rights, a part that does not answer)
is said with that one.
"""

from __future__ import annotations

from ai.backend.common.exception import (
    BackendAIError,
    ErrorCode,
    ErrorDetail,
    ErrorDomain,
    ErrorOperation,
)
from aiohttp import web


class InvalidRequestError(BackendAIError, web.HTTPBadRequest):
    """Something in the request cannot be used; the message names it."""

    error_type = "https://api.backend.ai/probs/invalid-api-params"
    error_title = "Missing or invalid API parameters."

    def error_code(self) -> ErrorCode:
        return ErrorCode(ErrorDomain.PLUGIN, ErrorOperation.PARSING, ErrorDetail.INVALID_PARAMETERS)


class BodyTooLargeError(BackendAIError, web.HTTPRequestEntityTooLarge):
    """The request's body is larger than any that makes sense."""

    error_type = "https://api.backend.ai/probs/body-too-large"
    error_title = "The request's body is too large."

    def error_code(self) -> ErrorCode:
        return ErrorCode(ErrorDomain.PLUGIN, ErrorOperation.PARSING, ErrorDetail.BAD_REQUEST)


class PolicyConflictError(BackendAIError, web.HTTPConflict):
    """The policy that is stored is not the one that was to be changed."""

    error_type = "https://api.backend.ai/probs/kvcache-policy-conflict"
    error_title = "The KV cache policy was changed meanwhile."

    def error_code(self) -> ErrorCode:
        return ErrorCode(ErrorDomain.PLUGIN, ErrorOperation.UPDATE, ErrorDetail.CONFLICT)


class PolicyUnusableError(BackendAIError, web.HTTPConflict):
    """The policy that is stored, past its routes, says nothing that can be used."""

    error_type = "https://api.backend.ai/probs/kvcache-policy-unusable"
    error_title = "The stored KV cache policy is not usable."

    def error_code(self) -> ErrorCode:
        return ErrorCode(ErrorDomain.PLUGIN, ErrorOperation.READ, ErrorDetail.INVALID_DATA_FORMAT)


class NoSuchPageFileError(BackendAIError, web.HTTPNotFound):
    """The WebUI's page has no such file, in this version at least."""

    error_type = "https://api.backend.ai/probs/kvcache-no-such-page-file"
    error_title = "The page has no such file in this version; load it anew."

    def error_code(self) -> ErrorCode:
        return ErrorCode(ErrorDomain.PLUGIN, ErrorOperation.READ, ErrorDetail.NOT_FOUND)


class FolderInUseError(BackendAIError, web.HTTPConflict):
    """A KV folder is to be removed that sessions use, or that the policy names."""

    error_type = "https://api.backend.ai/probs/kvcache-folder-in-use"
    error_title = "The KV folder is in use."

    def error_code(self) -> ErrorCode:
        return ErrorCode(ErrorDomain.PLUGIN, ErrorOperation.HARD_DELETE, ErrorDetail.CONFLICT)
