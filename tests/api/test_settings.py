"""Settings of the API from the environment: understood, or refused."""

import re
from pathlib import Path

import pytest

from api.settings import ApiSettings, read_api_settings
from tests.docs.documents import ROOT
from tuner.errors import RequestError
from tuner.settings import check_variables
from tuner.settings.values import check_names


def read(tmp_path: Path, **variables: str) -> ApiSettings:
    """Read settings from variables alone, given without their prefix."""
    environ = {f"TUNER_{name}": value for name, value in variables.items()}
    return read_api_settings({}, {**environ, "TUNER_DATA_DIR": str(tmp_path)})


@pytest.mark.parametrize("text", ["1", "true", "YES", " on "])
def test_tokens_are_required_by_every_word_for_yes(tmp_path: Path, text: str) -> None:
    """Case and spaces do not matter."""
    assert read(tmp_path, REQUIRE_TOKENS=text).needs_tokens


@pytest.mark.parametrize("text", ["0", "False", "no", "off", ""])
def test_tokens_are_not_required_by_words_for_no(tmp_path: Path, text: str) -> None:
    """An empty variable stands for none."""
    assert not read(tmp_path, REQUIRE_TOKENS=text).needs_tokens


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("REQUIRE_TOKENS", "y", "require_tokens must be one of 1, true, yes, on, or 0, false"),
        ("REQUIRE_TOKENS", "required", "got 'required'"),
        ("PORT", "tcp://10.0.0.1:80", "port must be a whole number from 0 to 65535"),
        ("PORT", "80.5", "port must be a whole number"),
        ("PORT", "65536", "port must be a whole number"),
        ("RATE", "nan", "rate must be a number from 0"),
        ("RATE", "100/s", "rate must be a number from 0"),
        ("MAX_UPLOAD_MB", "-1", "max_upload_mb must be a number from 0"),
        ("MAX_PRIORITY", "2.5", "max_priority must be a whole number from 0"),
        ("MAX_CONNECTIONS", "0", "max_connections must be a whole number of at least 1"),
        ("TRUSTED_PROXIES", "proxy.example", "trusted_proxies takes addresses and networks"),
        ("TRUSTED_PROXIES", "*", "trusted_proxies takes addresses and networks"),
        ("TRUSTED_PROXIES", "10.0.0.7/8", "has host bits set"),
        ("QUOTAS", "jobs=many", "jobs"),
        ("LOG_LEVEL", "verbose", "log_level must be one of debug, info, warning, error"),
        ("LOG_FORMAT", "xml", "log_format must be one of json, text"),
        ("N_BUILDERS", "0", "n_builders must be a whole number of at least 1"),
        ("N_BUILDERS", "2.0", "n_builders must be a whole number"),
        ("REQUIRE_TOKEN", "1", "TUNER_REQUIRE_TOKEN is not a setting; did you mean TUNER_REQUIRE_"),
        ("DATABSE", "x", "did you mean TUNER_DATABASE"),
    ],
)
def test_what_cannot_be_understood_stops_the_start(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    """The error names the setting and what it may be."""
    with pytest.raises(RequestError, match=re.escape(message)):
        read(tmp_path, **{name: text})


def test_a_trusted_proxy_requires_tokens(tmp_path: Path) -> None:
    """The rates and quotas are those of a service that others reach."""
    settings = read(tmp_path, TRUSTED_PROXIES="10.0.0.7, 2001:db8::/32")

    assert settings.needs_tokens
    assert settings.trusted_proxies == ("10.0.0.7/32", "2001:db8::/32")
    assert settings.rate > 0


def test_an_empty_variable_is_a_missing_one(tmp_path: Path) -> None:
    """Compose passes empty variables for settings that .env leaves out."""
    names = ("PORT", "RATE", "QUOTAS", "MAX_PRIORITY", "LOG_LEVEL", "N_BUILDERS", "DATABASE")

    assert read(tmp_path, **dict.fromkeys(names, "")) == read(tmp_path)


def test_names_of_others_are_warned_of_or_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """A foreign name is a warning; those that Kubernetes sets for a service are ignored."""
    for name in ("TUNER_SERVICE_PORT_HTTP", "TUNER_API_SERVICE_HOST", "TUNER_PORT_80_TCP_ADDR"):
        check_names({name: "10.0.0.1"}, [])
    assert caplog.text == ""

    check_names({"TUNER_BROADCAST_CHANNEL": "5"}, [])

    assert "TUNER_BROADCAST_CHANNEL is not a setting of this program" in caplog.text


def test_every_documented_variable_is_known(caplog: pytest.LogCaptureFixture) -> None:
    """Names in the documentation, .env.example and compose.yaml are settings."""
    files = [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), ROOT / ".env.example"]
    files += [*ROOT.glob("*.yaml"), *ROOT.glob("docker/*"), *ROOT.glob("deploy/**/*")]
    texts = [path.read_text() for path in files if path.is_file() and path.suffix != ".pyc"]
    names = {name for text in texts for name in re.findall(r"TUNER_[A-Z][A-Z_]*[A-Z]", text)}
    check_variables(dict.fromkeys(names, "x"))

    assert len(names) > 15
    assert caplog.text == ""
