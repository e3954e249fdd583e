"""Malformed uploads: each is rejected or becomes a job, and the process survives."""

from benchmarks import malformed
from tests.api.conftest import Served


def test_no_malformed_upload_makes_the_service_fail(served: Served) -> None:
    """Two hundred malformed uploads of the benchmark cause no server error and leave no file."""
    service = str(served.client.base_url).rstrip("/")

    result = malformed.attack(service, 200, seed=1)

    assert result["server_errors"] == 0, result
    assert "timeout" not in result["answers"], result
    assert sum(n for status, n in result["answers"].items() if status.isdigit()) > 100, result
    assert malformed.is_ready(service)
    assert malformed.left_behind(served.data_dir) == []
