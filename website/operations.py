"""The page of the operations of the REST API, made from its OpenAPI document."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from api.app import create_app
from api.documents.openapi import COMMON
from api.settings import ApiSettings
from tuner.settings import Settings

_INTRODUCTION = """# REST operations

All operations of the [REST API](rest.md), made from its OpenAPI document, which a service has at
`/api/v1/openapi.json`; its page `/reference` sends requests. Every operation can also answer with
the [problems](rest.md#problems) of the statuses {common}.
"""
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def operations_page() -> str:
    """Return the page as Markdown."""
    settings = Settings("sqlite://", Path(), "tuner.engines.relax", 1)
    document: dict[str, Any] = create_app(ApiSettings(settings)).openapi()
    sections: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines = sections.setdefault(operation["tags"][0], [])
            lines += _operation(method.upper(), path, operation)
    lines = [_INTRODUCTION.format(common=", ".join(map(str, COMMON)))]
    about = {tag["name"]: tag["description"] for tag in document["tags"]}
    for tag, part in sections.items():
        lines += [f"## {tag.capitalize()}", about.get(tag, ""), *part]
    lines += ["## Schemas"]
    for name, schema in sorted(document["components"]["schemas"].items()):
        text = schema.get("description", "")
        lines += [f"### {name}", _prose(text.partition("\n\n")[0])]
        lines += _fields(schema, dict(_ATTRIBUTE.findall(text)))
    return "\n\n".join(line for line in lines if line)


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"### `{operation['operationId']}`"
    yield f'<span class="operation">{method}</span> `{path}`'
    yield _prose(operation.get("description", operation["summary"]))
    parameters = [
        (f"`{each['name']}`", each["in"], _type(each["schema"]), each.get("description", ""))
        for each in operation.get("parameters", ())
    ]
    yield _table(("parameter", "in", "type", "meaning"), parameters)
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = content["schema"]
        named = "$ref" in schema
        yield f"Body: `{media}`" + (f", {_type(schema)}." if named else ".")
        yield from _fields(schema, {})
    yield _table(("status", "response"), list(_responses(operation["responses"])))


def _responses(responses: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for status, response in sorted(responses.items()):
        if int(status) in COMMON:
            continue
        kinds = [
            f"`{media}`" + (f", {_type(content['schema'])}" if content.get("schema") else "")
            for media, content in response.get("content", {}).items()
            if media != "application/problem+json"
        ]
        text = response["description"].replace("Successful Response", "Done")
        yield f"`{status}`", ": ".join(filter(None, (text, "; ".join(kinds))))


def _fields(schema: dict[str, Any], meanings: dict[str, str]) -> Iterator[str]:
    rows = [
        (f"`{name}`", _type(field), field.get("description", "") or meanings.get(name, ""))
        for name, field in schema.get("properties", {}).items()
    ]
    yield _table(("field", "type", "meaning"), rows)


def _type(schema: dict[str, Any]) -> str:
    """Describe the type of a schema, with a link where it is a named one."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_type(schema['items'])}"
    return str(schema.get("format") or schema.get("type", "any"))


def _prose(text: str) -> str:
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    ruled = [head, ("---",) * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(_prose(' '.join(cell.split())).replace('|', '&#124;') for cell in row)} |"
        for row in ruled
    )
