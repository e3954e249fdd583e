"""The OpenAPI document holds: nothing that it describes, or does not, makes the service fail."""

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
from api.openapi import COMMON
from api.settings import ApiSettings
from tests.api import make
from tests.api.conftest import Served

# A few are enough for every day; a search takes more.
_N_EXAMPLES = int(os.environ.get("TUNER_TEST_EXAMPLES", "5"))
_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@schemathesis.serializer("application/jsonl")
def as_lines(_context: Any, value: Any) -> bytes:
    """Send whatever was made up as text."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@pytest.fixture
def document(quick: ApiSettings) -> dict[str, Any]:
    """The document, which needs no database."""
    return create_app(quick).openapi()


def test_operations_are_named_by_what_they_do(document: dict[str, Any]) -> None:
    """A generated client has these names; they are unique and stay."""
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


def test_every_operation_says_what_it_does_and_may_answer(document: dict[str, Any]) -> None:
    """With its tag, its summary and its problems."""
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["tags"], path
            assert operation["description"], path
            if path.startswith("/api/"):
                assert {str(status) for status in COMMON} <= operation["responses"].keys(), path


def test_pages_for_people_are_not_in_it(document: dict[str, Any]) -> None:
    """It is for programs."""
    outside = [path for path in document["paths"] if not path.startswith("/api/v1/")]

    assert set(outside) == {"/healthz", "/readyz", "/metrics"}


def test_the_upload_is_described(document: dict[str, Any]) -> None:
    """As files and fields that a client can fill."""
    body = document["paths"]["/api/v1/tune"]["post"]["requestBody"]["content"]
    fields = body["multipart/form-data"]["schema"]["properties"]

    assert fields["model"]["items"] == {"type": "string", "format": "binary"}
    assert {"zoo", "target", "trials", "seconds", "input"} < fields.keys()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_whatever_is_sent_is_answered_as_described(served: Served, mode: GenerationMode) -> None:
    """Generated requests to every operation: no defect, and no answer that is not declared."""
    with served.sessions.begin() as session:
        make.tuned(session)
        archives = served.data_dir / "archives"
        make.built(session, make.tuned(session, "s1"), archives, b"content", "ab" * 32)
    schema = schemathesis.openapi.from_dict(served.client.get("/api/v1/openapi.json").json())
    operations: list[Any] = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
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

    # What has no parameters cannot be asked for wrongly.
    with contextlib.suppress(Unsatisfiable):
        send()
