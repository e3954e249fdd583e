"""``tuner devices``: list the devices of this machine, or those of a server."""

import json
from typing import TYPE_CHECKING, Annotated

from tuner.cli import connection, options
from tuner.cli.console import print_json, print_note, stdout_console
from tuner.cli.options import option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.devices.inventory import DescribedDevice, LocalDevice
    from tuner.schemas import DeviceInfo
    from tuner.settings import Settings


def devices(
    kind: Annotated[
        str | None,
        option("KIND", "List this kind only: llvm (the CPU) or cuda (GPUs) [default: all]."),
    ] = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List the devices of this machine: name, kind, fingerprint.

    With --server, lists the devices and builders that measure and build for the server instead,
    with their state.

    Examples:
        tuner devices
        tuner devices --kind cuda --json
        tuner --server http://tuner.example:8080 devices
    """
    from tuner.errors import RequestError

    if connection.chosen() is not None:
        if kind is not None:
            raise RequestError("--kind applies to this machine; leave it out, or the server")
        with connection.connect({"data_dir": data_dir}) as client:
            _show_fleet(list(client.devices()), json_output=json_output)
        return
    from tuner.devices.inventory import usable_devices
    from tuner.settings import read_settings

    local_devices = usable_devices()
    if kind is not None and kind not in {device.kind for device in local_devices}:
        raise RequestError(f"this machine has no device of kind {kind!r}")
    chosen = [device for device in local_devices if kind in (None, device.kind)]
    described = _describe(chosen, read_settings({"data_dir": data_dir}))
    if json_output:
        print_json({"devices": [_as_json(device) for device in described]})
    else:
        for device in described:
            print(f"{device.name}  {device.kind}")
            print(f"    {json.dumps(device.fingerprint)}")


def _show_fleet(infos: "Sequence[DeviceInfo]", *, json_output: bool) -> None:
    """Print the devices of a server."""
    from dataclasses import asdict

    from tuner.cli.rendering.tables import device_table

    if json_output:
        shown = [{**asdict(info), "heartbeat": info.heartbeat.isoformat()} for info in infos]
        print_json({"devices": shown})
    elif infos:
        stdout_console().print(device_table(infos))
    else:
        print_note("no device measures for this server; `tuner worker --help` tells how one does")


def _describe(
    local_devices: "Sequence[LocalDevice]", settings: "Settings"
) -> "list[DescribedDevice]":
    """Describe devices in worker processes; print a note for each that cannot be used.

    Raises:
        TargetError: If none can be used.
    """
    from tuner.devices.inventory import list_devices
    from tuner.errors import TargetError

    described, problem = [], None
    for device in local_devices:
        try:
            described += list_devices(settings, [device])
        except TargetError as error:
            problem = error
            print_note(str(error))
    if problem is not None and not described:
        raise problem
    return described


def _as_json(device: "DescribedDevice") -> dict[str, object]:
    return {
        "name": device.name,
        "kind": device.kind,
        "fingerprint": dict(device.fingerprint),
    }
