"""Keys and their digests."""

from typing import Any

import pytest

from tuner.build_cache.keys import Key, PartDifference, differing


def test_a_digest_depends_on_kind_and_parts_and_not_on_order_or_title() -> None:
    """Equal kinds and parts have equal digests."""
    key = Key("subgraph", {"a": 1, "b": {"c": [2], "d": None}}, "conv")

    assert key.digest == Key("subgraph", {"b": {"d": None, "c": (2,)}, "a": 1}).digest
    assert key.digest != Key("library", key.parts).digest
    assert key.digest != Key("subgraph", {**key.parts, "a": 2}).digest
    assert len(key.digest) == 64


def test_a_digest_is_the_same_in_every_version() -> None:
    """A change of the digest would invalidate every store."""
    digest = Key("subgraph", {"a": [1, "ä"]}).digest

    assert digest == "501b547c817d2c12ed358aeb5442a6543d035c9a62b7ac58b9cb34b3dffa32dd"


@pytest.mark.parametrize("kind", ["", "Sub", "a/b", "..", "a1", "x" * 33])
def test_a_kind_is_a_word(kind: str) -> None:
    """A kind becomes the name of a folder."""
    with pytest.raises(ValueError, match="kind"):
        Key(kind, {})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"bytes"])
def test_parts_are_json(value: Any) -> None:
    """Values without a canonical form are refused."""
    with pytest.raises((TypeError, ValueError)):
        _ = Key("subgraph", {"a": value}).digest


def test_differing_parts_are_named_down_to_the_innermost() -> None:
    """Parts that only one key has are listed, too."""
    ours = {"target": {"mcpu": "a", "keys": [1]}, "trace": "t", "same": 1}
    theirs = {"target": {"mcpu": "b", "keys": [1]}, "same": 1, "packing": True}

    assert differing(ours, theirs) == (
        PartDifference("packing", None, True),
        PartDifference("target.mcpu", "a", "b"),
        PartDifference("trace", "t", None),
    )
    assert differing(ours, ours) == ()
