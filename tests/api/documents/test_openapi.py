"""The OpenAPI document is true: no request, described or not, makes the service fail."""

import contextlib
import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.app import create_app
from api.documents.openapi import COMMON
from api.settings import ApiSettings
from tests.api import make
from tests.api.conftest import Served

# A few suffice for every run; a search takes more.
_N_EXAMPLES = int(os.environ.get("TUNER_TEST_EXAMPLES", "5"))
_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@schemathesis.serializer("application/jsonl")
def as_lines(_context: Any, value: Any) -> bytes:
    """Send a generated value as text."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@pytest.fixture
def document(quick: ApiSettings) -> dict[str, Any]:
    """The document, which needs no database."""
    return create_app(quick).openapi()


def test_operations_have_stable_unique_names(document: dict[str, Any]) -> None:
    """Generated clients take their method names from them."""
    names = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
    ]

    assert len(set(names)) == len(names)
    assert {"tune", "list_jobs", "read_job", "cancel_job", "read_tasks", "stream_events"} < set(
        names
    )
    assert all(name.isidentifier() and "__" not in name for name in names)


def test_every_operation_is_described(document: dict[str, Any]) -> None:
    """Each operation has a tag, a description and its problems."""
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["tags"], path
            assert operation["description"], path
            if path.startswith("/api/"):
                assert {str(status) for status in COMMON} <= operation["responses"].keys(), path


def test_pages_for_people_are_left_out(document: dict[str, Any]) -> None:
    """The document is for programs."""
    outside = [path for path in document["paths"] if not path.startswith("/api/v1/")]

    assert set(outside) == {"/healthz", "/readyz", "/metrics"}


def test_the_upload_is_described(document: dict[str, Any]) -> None:
    """The upload has files and fields that a client can fill."""
    body = document["paths"]["/api/v1/tune"]["post"]["requestBody"]["content"]
    fields = body["multipart/form-data"]["schema"]["properties"]

    assert fields["model"]["items"] == {"type": "string", "format": "binary"}
    assert {"zoo", "target", "trials", "seconds", "input"} < fields.keys()


# PostgreSQL refuses numbers and text that SQLite stores.
@pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_generated_requests_are_answered_as_described(served: Served, mode: GenerationMode) -> None:
    """Generated requests to every operation get declared answers and no server error."""
    with served.sessions.begin() as session:
        make.tuned(session)
        archives = served.data_dir / "archives"
        make.built(session, make.tuned(session, "s1"), archives, b"content", "ab" * 32)
    schema = schemathesis.openapi.from_dict(served.client.get("/api/v1/openapi.json").json())
    operations: list[Any] = [result.ok() for result in schema.get_all_operations()]  # type: ignore[union-attr]
    asked: set[str] = set()
    for operation in operations:
        if operation.label.endswith("/events"):
            continue  # it never ends
        if operation.label.endswith("/tune") and mode is GenerationMode.NEGATIVE:
            continue  # schemathesis cannot mutate files; test_malformed.py does
        _ask(operation, mode, str(served.client.base_url), asked)

    assert len(asked) > 20


def _ask(operation: Any, mode: GenerationMode, url: str, asked: set[str]) -> None:
    @settings(
        max_examples=_N_EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode))
    def send(case: Any) -> None:
        asked.add(operation.label)
        case.call_and_validate(base_url=url, checks=_CHECKS, timeout=20)

    # An operation without parameters has no invalid requests.
    with contextlib.suppress(Unsatisfiable):
        send()
