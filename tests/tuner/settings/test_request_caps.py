"""Limits of a service on the options of a request."""

import pytest

from tuner.errors import RequestError
from tuner.settings import read_settings
from tuner.settings.request_caps import RequestCaps


def test_limits_are_read_from_variables() -> None:
    """Times have units, counts have none; an empty variable stands for the default."""
    environ = {
        "TUNER_MAX_RUN_TIMEOUT": "10m",
        "TUNER_MAX_REPEAT": "1000",
        "TUNER_MAX_COOLDOWN_MS": "",
    }

    caps = read_settings({}, environ).request_caps

    assert caps == RequestCaps(max_run_timeout=600.0, max_repeat=1000)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("MAX_RUN_TIMEOUT", "120", "takes a time"),
        ("MAX_BUILD_TIMEOUT", "0s", "above 0"),
        ("MAX_REPEAT", "many", "whole number"),
        ("MAX_TRIALS_PER_ROUND", "0", "at least 1"),
    ],
)
def test_a_limit_that_cannot_be_understood_is_refused(name: str, text: str, message: str) -> None:
    """The error names the setting."""
    with pytest.raises(RequestError, match=f"{name.lower()} .*{message}"):
        read_settings({}, {f"TUNER_{name}": text})
