"""Refusals of callers."""

from __future__ import annotations

import grpc

from headrace_gateway.status import CallError, refusal, retry_info


def bad_api_key(message: str) -> CallError:
    """Build BAD_API_KEY: the caller sent no key, or one that is not valid."""
    return refusal(grpc.StatusCode.UNAUTHENTICATED, "BAD_API_KEY", message)


def key_taken_away() -> CallError:
    """Build BAD_API_KEY for a call in progress: its key is valid no more."""
    return bad_api_key("the API key is not valid here any more")


def forbidden(message: str) -> CallError:
    """Build NOT_ALLOWED: the caller's key does not allow the call."""
    return refusal(grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED", message)


def rate_limited(message: str, seconds: float) -> CallError:
    """Build RATE_LIMITED: an owner has reached a limit of its keys; `seconds`: when to try again."""
    detail = f"{message}: try again in {seconds:.3g} s"
    return refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED", detail, retry_info(seconds))
