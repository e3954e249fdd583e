"""``tuner devices``: the devices of a machine, for people and for programs."""

from tests.engines import toy
from tests.tuner.cli.commands.conftest import Shell

TOY = {"TUNER_ENGINE": toy.NAME}


def test_cpu_is_listed_with_its_fingerprint(shell: Shell) -> None:
    """Its name and kind are listed, too."""
    answer = shell("devices", "--kind", "llvm", "--json", **TOY)

    (device,) = answer.json["devices"]
    assert answer.status == 0
    assert device == {
        "name": "cpu",
        "kind": "llvm",
        "fingerprint": {"name": "toy"},
    }
    assert '{"name": "toy"}' in shell("devices", "--kind", "llvm", **TOY).out


def test_a_missing_kind_is_rejected(shell: Shell) -> None:
    """A machine without the device that it should measure on is a mistake."""
    answer = shell("devices", "--kind", "abacus", **TOY)

    assert answer.status == 2
    assert "no device of kind 'abacus'" in answer.err
