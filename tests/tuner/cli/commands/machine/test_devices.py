"""``tuner devices``: the devices of a machine, for people and for a fleet."""

import json

from tests.engines import toy
from tests.tuner.cli.commands.conftest import Shell
from tuner.devices.inventory import kind_of, resource_of

TOY = {"TUNER_ENGINE": toy.NAME}


def test_cpu_is_listed_with_its_fingerprint(shell: Shell) -> None:
    """Name, kind and resource are listed, too."""
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


def test_ray_prints_resources(shell: Shell) -> None:
    """The output is one line of JSON with the number of devices by resource."""
    answer = shell("devices", "--ray", "--kind", "llvm", **TOY)

    assert json.loads(answer.out) == {resource_of("llvm", {"name": "toy"}): 1}
    assert (answer.status, answer.err) == (0, "")


def test_a_missing_kind_is_rejected(shell: Shell) -> None:
    """A node without the device that it should measure on is a mistake."""
    answer = shell("devices", "--kind", "abacus", **TOY)

    assert answer.status == 2
    assert "no device of kind 'abacus'" in answer.err


def test_a_resource_encodes_kind_and_fingerprint() -> None:
    """Equal devices have equal resources, in whichever order their fingerprints are."""
    one = resource_of("cuda", {"name": "x", "sms": 2})

    assert one == resource_of("cuda", {"sms": 2, "name": "x"})
    assert one != resource_of("cuda", {"sms": 3, "name": "x"})
    assert (kind_of(one), kind_of("CPU"), kind_of("node:10.0.0.1")) == ("cuda", "", "")
