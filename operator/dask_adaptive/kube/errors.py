"""
What can go wrong with the API server, and who can put it right.

* PlatformError (loop.ports)
  + KubeError
    + ApiUnreachable   time, or whoever runs the API server; retried
    + Unauthorized     whoever gave the credentials: they are missing, wrong or out of date
    + Forbidden        whoever installed the chart: a rule is missing from its role
    + NotFound         nobody needs to: the object is gone (or its CRD is not installed)
    + AlreadyExists    nobody: somebody else was faster
    + Conflict         time: the object changed under our hands, or a precondition does not hold
    + Invalid          a developer, or who wrote the object: the API server refuses its content
"""

from __future__ import annotations

import json

from dask_adaptive.loop.ports import PlatformError


class KubeError(PlatformError):
    """The API server said no, or nothing."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ApiUnreachable(KubeError): ...


class Unauthorized(KubeError): ...


class Forbidden(KubeError): ...


class NotFound(KubeError): ...


class AlreadyExists(KubeError): ...


class Conflict(KubeError): ...


class Invalid(KubeError): ...


_BY_STATUS: dict[int, type[KubeError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    422: Invalid,
}


def error_of(status: int, body: str, request: str) -> KubeError:
    """Turn an answer of 4xx or 5xx into the error that says who can fix it."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = {}
    if not isinstance(answer, dict):
        answer = {}
    said = str(answer.get("message") or body.strip()[:200] or f"status {status}")
    kind = _BY_STATUS.get(status, ApiUnreachable)
    if status == 409 and answer.get("reason") == "AlreadyExists":
        kind = AlreadyExists
    if kind is ApiUnreachable:
        said = f"the API server answered {request} with {status}: {said}"
    return kind(said, status=status)
