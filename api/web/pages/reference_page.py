"""The reference of the REST API, made from its OpenAPI document, with forms that try requests."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from api.web import access
from api.web.rendering import render

router = APIRouter(include_in_schema=False)

_JSON = "application/json"


@dataclass(frozen=True)
class Operation:
    """A route of the API.

    Attributes:
        id: Stable name of the operation.
        method: Method in capital letters.
        path: Path, with parameters in braces.
        text: Docstring of its route.
        parameters: Parameters as the OpenAPI document describes them.
        body: Content type of the body; empty for none.
        example: Start of a JSON body.
    """

    id: str
    method: str
    path: str
    text: str
    parameters: tuple[dict[str, Any], ...]
    body: str
    example: str

    @property
    def is_tried(self) -> bool:
        """True if the page has a form that sends the request; files are sent otherwise."""
        return self.body in ("", _JSON)


@router.get("/reference")
def read_reference(request: Request, _subject: access.Reader) -> HTMLResponse:
    """Show every route of the API."""
    document: dict[str, Any] = request.app.openapi()
    groups: dict[str, list[Operation]] = {}
    for tag, operation in _operations(document):
        groups.setdefault(tag, []).append(operation)
    base_url = str(request.base_url).rstrip("/")
    return render(request, "reference.html", groups=groups, base_url=base_url)


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, Operation]]:
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            content: dict[str, Any] = described.get("requestBody", {}).get("content", {})
            body = next(iter(content), "")
            yield (
                described["tags"][0],
                Operation(
                    described["operationId"],
                    method.upper(),
                    path,
                    described.get("description") or described["summary"],
                    tuple(described.get("parameters", ())),
                    body,
                    _example(document, content[body]["schema"]) if body == _JSON else "",
                ),
            )


def _example(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return a JSON object with the fields of a body, without values."""
    name = schema.get("$ref", "").rpartition("/")[2]
    fields = document["components"]["schemas"].get(name, schema).get("properties", {})
    return "{" + ", ".join(f'"{field}": ' for field in fields) + "}"
