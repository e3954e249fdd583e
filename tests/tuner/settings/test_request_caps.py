"""Limits of a service on the options of a request."""

from dataclasses import asdict

import pytest

from tuner.errors import RequestError
from tuner.jobs.spec import TuneSpec
from tuner.settings import read_settings
from tuner.settings.request_caps import KEYS, MINIMA, RequestCaps, check_caps


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
        ("MAX_RUN_TIMEOUT", "10s", "at least 20s, the default of run_timeout"),
        ("MAX_BUILD_TIMEOUT", "0s", "at least 60s"),
        ("MAX_REPEAT", "many", "whole number"),
        ("MAX_REPEAT", "2", "at least 3, the default of repeat"),
        ("MAX_COOLDOWN_MS", "0", "at least 1"),
        ("MAX_TRIALS_PER_ROUND", "0", "at least 1"),
    ],
)
def test_a_limit_that_cannot_be_understood_is_refused(name: str, text: str, message: str) -> None:
    """The error names the setting."""
    with pytest.raises(RequestError, match=f"{name.lower()} .*{message}"):
        read_settings({}, {f"TUNER_{name}": text})


def test_a_request_without_options_is_below_every_limit() -> None:
    """No limit can be set below the default of its option."""
    spec = TuneSpec().model_dump()

    check_caps(spec, MINIMA)

    defaults = {name: spec[name.removeprefix("max_")] for name in KEYS}
    assert defaults == {**asdict(MINIMA), "max_trials_per_round": None}
