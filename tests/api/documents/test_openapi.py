"""The OpenAPI document names and describes every operation."""

from typing import Any

import pytest

from api.app import create_app
from api.documents.openapi import COMMON
from api.settings import ApiSettings


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
