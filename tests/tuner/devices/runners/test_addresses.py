"""Tests of the setting that names devices behind RPC trackers."""

from pathlib import Path

import pytest

from tuner.devices.runners.addresses import RpcAddress, parse_addresses
from tuner.errors import RequestError
from tuner.settings import read_settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pi.lan:9190/rasp4", RpcAddress("pi.lan", 9190, "rasp4")),
        ("[::1]:9190/a.b-c_d", RpcAddress("::1", 9190, "a.b-c_d")),
        ("h:1/k?priority=-3", RpcAddress("h", 1, "k", priority=-3)),
        (
            "h:1/k?priority=7&session_timeout=90",
            RpcAddress("h", 1, "k", priority=7, session_timeout=90),
        ),
    ],
)
def test_an_address_is_read(text: str, expected: RpcAddress) -> None:
    """An address is parsed with or without options."""
    assert parse_addresses(text) == (expected,)


def test_several_addresses_are_separated_by_commas() -> None:
    """Spaces around addresses and a trailing comma are ignored."""
    first, second = parse_addresses("h:1/a, h:1/b,")

    assert (first.key, second.key) == ("a", "b")
    assert second.tracker == "h:1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no address"),
        ("h/k", "cannot read rpc address 'h/k'"),
        ("h:1", "cannot read rpc address 'h:1'"),
        ("h:99999/k", "cannot read"),
        (":1/k", "cannot read"),
        ("h:1/two words", "cannot read"),
        ("h:1/k?speed=1", "sets 'speed'; it may set priority, session_timeout"),
        ("h:1/k?priority=high", "priority of an rpc address must be a whole number, got 'high'"),
        ("h:1/k?session_timeout=0", "must be a whole number from 1 up, got '0'"),
        ("h:1/k,g:1/k", "names the key 'k' twice"),
    ],
)
def test_a_malformed_address_is_refused(text: str, message: str) -> None:
    """The error names the problem."""
    with pytest.raises(RequestError, match=message.replace("?", r"\?")):
        parse_addresses(text)


def test_the_setting_comes_from_the_environment(tmp_path: Path) -> None:
    """The setting comes from options or the environment, and is None by default."""
    environ = {"TUNER_DATA_DIR": str(tmp_path), "TUNER_CONFIG": ""}

    assert read_settings({}, environ).rpc is None
    assert read_settings({}, {**environ, "TUNER_RPC": "h:1/k"}).rpc == "h:1/k"
    assert read_settings({"rpc": "h:1/l"}, {**environ, "TUNER_RPC": "h:1/k"}).rpc == "h:1/l"
