"""Errors that a client makes of problem documents."""

from typing import Any

import pytest

from tuner.client.errors import RequestRejected, ServerError, error_of


def _problem(detail: str, *fields: str) -> dict[str, Any]:
    errors = [{"field": field, "message": "is wrong"} for field in fields]
    return {"detail": detail, "errors": errors}


@pytest.mark.parametrize(
    ("problem", "field", "text"),
    [
        (_problem("trials: is wrong", "trials"), "trials", "trials: is wrong"),
        # A body of JSON names the place first.
        (_problem("body.trials: is wrong", "body.trials"), "trials", "trials: is wrong"),
        (_problem("a: is wrong; b: is wrong", "a", "b"), None, "a: is wrong; b: is wrong"),
        (
            {
                **_problem("a: is wrong", "a"),
                "type": "urn:subgraph-tuner:problem:invalid",
                "advice": "Read.",
            },
            "a",
            "a: is wrong",
        ),
        ({"detail": "job 3 is done", "advice": "Resume it."}, None, "job 3 is done; resume it"),
        ({"detail": "no list", "errors": "trials"}, None, "no list"),
    ],
)
def test_a_rejection_names_the_only_wrong_field(
    problem: dict[str, Any], field: str | None, text: str
) -> None:
    """The field is an attribute, and appears once in the text."""
    error = error_of(422, problem, None)

    assert isinstance(error, RequestRejected)
    assert (error.field, str(error)) == (field, text)


def test_a_missing_token_is_named() -> None:
    """The field is the token, whatever the document has."""
    error = error_of(401, {"detail": "send one"}, None)

    assert isinstance(error, RequestRejected)
    assert str(error) == "token: send one"


def test_a_failure_of_the_service_keeps_its_text() -> None:
    """An error that is not about the request has no field to strip."""
    error = error_of(500, _problem("trials: is wrong", "trials"), None)

    assert isinstance(error, ServerError)
    assert str(error) == "trials: is wrong"
