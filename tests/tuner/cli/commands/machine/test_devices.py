"""``tuner devices``: the devices of a machine, for people and for programs."""

from records.service.devices import DeviceReport, report
from tests.api.conftest import Served, shared  # noqa: F401  fixture
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


def test_devices_of_a_server_are_listed(shell: Shell, shared: Served) -> None:  # noqa: F811
    """With their state and its reason, or a hint where there is none; kinds are of this machine."""
    server = ("--server", str(shared.client.base_url), "devices")
    empty = shell(*server)
    with shared.sessions.begin() as session:
        gpu = DeviceReport(
            name="lab/gpu0",
            worker="w",
            host="lab",
            fingerprint={"name": "GPU"},
            state="apart",
            reason="12 % slower",
        )
        report(session, [gpu])

    shown, as_json = shell(*server, COLUMNS="120"), shell(*server, "--json").json

    assert "no device measures for this server" in empty.err
    assert shown.out.splitlines()[-1].split()[:3] == ["lab/gpu0", "apart", "GPU"]
    assert "12 % slower" in shown.out
    (device,) = as_json["devices"]
    assert (device["fingerprint"], device["n_builders"]) == ({"name": "GPU"}, 0)
    assert "--kind applies to this machine" in shell(*server, "--kind", "cuda").err
