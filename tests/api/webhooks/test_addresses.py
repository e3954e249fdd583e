"""The addresses that a service connects to for its clients."""

import asyncio
import ipaddress
import socket

import pytest

from api.webhooks import addresses
from tuner.errors import RequestError


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "224.0.1.1", "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1", "fc00::1",
        "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:db8::1",
    ],
)  # fmt: skip
def test_a_private_address_is_not_public(address: str) -> None:
    """Nor is one that has a private address of IPv4 inside."""
    assert not addresses.is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700::1111", "64:ff9b::101:101"])
def test_an_address_of_the_internet_is_public(address: str) -> None:
    """Also through a gateway from IPv6 to IPv4."""
    assert addresses.is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "", "ci.example", "ftp://ci.example", "file:///etc/passwd", "https://", "https:///path",
        "https://user:secret@ci.example", "https://@ci.example", "https://ci.example/#part",
        "https://ci.example:99999", "https://ci.example:0", "https://ci.example/a b",
        "https://ci.example/\r\nx: y", "https://bücher.example", "https://[::1", "https://[::1]/",
        "http://127.0.0.1:9000/", "https://169.254.169.254/latest", "https://c/" + "a" * 2000,
    ],
)  # fmt: skip
def test_a_wrong_url_is_refused(url: str) -> None:
    """The error belongs to the field of the form."""
    with pytest.raises(RequestError) as caught:
        addresses.check_url(url, allows_private=False)

    assert caught.value.field == "webhook"


def resolve(url: str, *, allows_private: bool = False) -> list[str]:
    """Return the addresses of the host of a URL."""
    parts = addresses.check_url(url, allows_private=allows_private)
    return asyncio.run(addresses.resolve(parts, allows_private=allows_private))


def test_a_name_of_this_machine_is_refused() -> None:
    """Its name is not an address, so that only resolving it shows where it leads."""
    with pytest.raises(RequestError, match="the address is private"):
        resolve("https://localhost/")
    assert "127.0.0.1" in resolve("http://localhost/", allows_private=True)


def test_a_name_with_a_private_address_among_others_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that resolves to both would lead into the network by chance."""
    both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, 443)) for a in ("1.1.1.1", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_kwargs: both)

    with pytest.raises(RequestError, match="the address is private"):
        resolve("https://both.example/")
