"""The OpenAPI document: stable operation names, and the problems of every operation."""

import json
from functools import cache
from typing import Any, get_args

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from api.errors import KINDS, MEDIA_TYPE, URN
from records.service.service_models import DeviceState

_REF = {"$ref": "#/components/schemas/Problem"}
#: Statuses that every operation may answer with.
COMMON = (400, 401, 403, 421, 422, 429, 500, 503)
_PROBLEM = {
    "type": "object",
    "description": "An RFC 9457 problem document.",
    "required": ["type", "title", "status", "detail", "advice"],
    "properties": {
        "type": {"type": "string", "enum": [URN + slug for slug in KINDS]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "advice": {"type": "string", "description": "Next step."},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
        "limit": {"type": "integer"},
        "reference": {
            "type": "string",
            "description": "Identifies the line in the log of the service.",
        },
    },
}
_TAGS = {
    "jobs": "Submit networks, watch and control their tuning.",
    "libraries": "Compiled networks.",
    "records": "Measurements.",
    "catalogue": "Networks, targets and workers.",
    "remote devices": "Calls for the processes that measure over HTTPS.",
    "health": "For probes and Prometheus.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Declare problems that an operation may answer with."""
    return {
        status: {
            "description": "; ".join(kind.title for kind in KINDS.values() if kind.status == status)
            or "Problem",
            "content": {MEDIA_TYPE: {"schema": _REF}},
        }
        for status in statuses
    }


def operation_id(route: APIRoute) -> str:
    """Name an operation like its function."""
    return route.name


def install(app: FastAPI, path: str) -> None:
    """Complete the document of an application, and serve it at a path."""

    @cache
    def openapi() -> dict[str, Any]:
        return _document(app)

    # FastAPI would encode it for every request, which takes milliseconds of the event loop.
    @cache
    def encoded() -> bytes:
        return json.dumps(openapi(), ensure_ascii=False, separators=(",", ":")).encode()

    async def serve(_request: Request) -> Response:
        return Response(encoded(), media_type="application/json")

    app.openapi = openapi  # type: ignore[method-assign]
    app.add_route(path, serve)


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        description="Tunes neural networks for a target, and builds the fastest libraries.",
        routes=app.routes,
        tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
    )
    components = document.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = _PROBLEM
    # Clients accept any state, so that a newer service can have more; the document lists them.
    components["schemas"]["DeviceInfo"]["properties"]["state"]["enum"] = get_args(DeviceState)
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            probe = path in ("/healthz", "/readyz")
            operation["security"] = [{}] if probe else [{"token": []}, {}]
    return document
