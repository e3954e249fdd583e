"""Requests that are generated from the OpenAPI document, and checks of their answers.

Imported by the test that sends them: schemathesis takes a second, in each process of the tests.
"""

import contextlib
import os
from typing import Any

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

# A few suffice for every run; a search takes more.
_N_EXAMPLES = int(os.environ.get("TUNER_TEST_EXAMPLES", "2"))
_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@schemathesis.serializer("application/jsonl")  # type: ignore[untyped-decorator]
def as_lines(_context: Any, value: Any) -> bytes:
    """Send a generated value as text."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


def send_requests(document: dict[str, Any], url: str, *, are_valid: bool) -> int:
    """Send requests to every operation and check the answers; return the number of operations."""
    mode = GenerationMode.POSITIVE if are_valid else GenerationMode.NEGATIVE
    schema = schemathesis.openapi.from_dict(document)
    operations: list[Any] = [result.ok() for result in schema.get_all_operations()]
    asked: set[str] = set()
    for operation in operations:
        if operation.label.endswith("/events"):
            continue  # it never ends
        if operation.label.endswith("/tune") and not are_valid:
            continue  # schemathesis cannot mutate files; test_malformed.py does
        _ask(operation, mode, url, asked)
    return len(asked)


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
