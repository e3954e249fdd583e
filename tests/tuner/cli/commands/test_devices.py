"""``tuner devices``: what a machine can time on, for people and for a fleet."""

import json

from tests.engines import toy
from tests.tuner.cli.commands.conftest import Shell
from tuner.devices.inventory import kind_of, resource_of

TOY = {"TUNER_ENGINE": toy.NAME}


def test_cpu_is_listed_with_its_fingerprint(shell: Shell) -> None:
    """Its name, its kind and what a fleet calls it."""
    answer = shell("devices", "--kind", "llvm", "--json", **TOY)

    resource = resource_of("llvm", {"name": "toy"})
    (device,) = answer.json["devices"]
    assert answer.status == 0
    assert device == {
        "name": "cpu",
        "kind": "llvm",
        "resource": resource,
        "fingerprint": {"name": "toy"},
    }
    assert resource in shell("devices", "--kind", "llvm", **TOY).out


def test_resources_are_what_ray_takes(shell: Shell) -> None:
    """One line of JSON that counts devices, and nothing else."""
    answer = shell("devices", "--ray", "--kind", "llvm", **TOY)

    assert json.loads(answer.out) == {resource_of("llvm", {"name": "toy"}): 1}
    assert (answer.status, answer.err) == (0, "")


def test_kind_that_is_not_here_is_refused(shell: Shell) -> None:
    """A node that was to measure and has nothing to measure on is a mistake."""
    answer = shell("devices", "--kind", "abacus", **TOY)

    assert answer.status == 2
    assert "no device of kind 'abacus'" in answer.err


def test_names_of_resources_tell_kind_and_fingerprint() -> None:
    """Equal devices have equal names, whatever order their fingerprints are in."""
    one = resource_of("cuda", {"name": "x", "sms": 2})

    assert one == resource_of("cuda", {"sms": 2, "name": "x"})
    assert one != resource_of("cuda", {"sms": 3, "name": "x"})
    assert (kind_of(one), kind_of("CPU"), kind_of("node:10.0.0.1")) == ("cuda", "", "")
