"""Settings of retention, from variables and the config file."""

from pathlib import Path

import pytest

from tuner.errors import RequestError
from tuner.settings import read_settings
from tuner.settings.retention import KEYS


def test_ages_and_sizes_are_read_and_the_others_have_defaults(tmp_path: Path) -> None:
    """Variables win over the file; empty ones, as compose passes them, count as missing."""
    config = tmp_path / "config.toml"
    config.write_text('keep_events = "7d"\nkeep_audit = "never"\ncache_max_size = "1GiB"\n')
    environ = {
        "TUNER_CONFIG": str(config),
        "TUNER_KEEP_EVENTS": "12h",
        "TUNER_MIN_FREE_DISK": "",
        "TUNER_MAX_STALL": "90s",
    }
    settings = read_settings({"data_dir": tmp_path}, environ)

    retention = settings.retention
    assert (retention.keep_events, retention.keep_audit) == (12 * 3600.0, None)
    assert (retention.cache_max_size, retention.min_free_disk) == (2**30, None)
    assert retention.keep_deleted == 3600.0
    assert settings.max_stall_secs == 90.0


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("keep_events", "3 fortnights", "keep_events takes a time such as 12h or 30d"),
        ("cache_max_size", "many", "cache_max_size takes a size such as 500MB"),
        ("keep_deleted", "never", "keep_deleted needs a limit"),
        ("max_stall", "1s", "max_stall must be at least 5s"),
    ],
)
def test_malformed_settings_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    """The message names the setting."""
    environ = {"TUNER_CONFIG": "", f"TUNER_{name.upper()}": text}

    with pytest.raises(RequestError, match=message):
        read_settings({"data_dir": tmp_path}, environ)


@pytest.mark.parametrize("name", KEYS)
def test_every_setting_is_documented(name: str) -> None:
    """The table of settings and the page of operations name it."""
    root = Path(__file__).parents[3]

    assert f"TUNER_{name.upper()}" in (root / "docs" / "cli.md").read_text()
    assert name in (root / "docs" / "operations.md").read_text().lower()
