"""The OpenAPI document is true: no request, described or not, makes the service fail."""

import pytest

from tests.api import make
from tests.api.conftest import Served


# PostgreSQL refuses numbers and text that SQLite stores.
@pytest.mark.in_ci
@pytest.mark.slow("10 s: hundreds of requests")
@pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)
@pytest.mark.parametrize("are_valid", [True, False])
def test_generated_requests_are_answered_as_described(served: Served, are_valid: bool) -> None:
    """Generated requests to every operation get declared answers and no server error."""
    from tests.api.documents.generated_requests import send_requests

    with served.sessions.begin() as session:
        make.tuned(session)
        archives = served.data_dir / "archives"
        make.built(session, make.tuned(session, "s1"), archives, b"content", "ab" * 32)
    document = served.client.get("/api/v1/openapi.json").json()

    assert send_requests(document, str(served.client.base_url), are_valid=are_valid) > 20
