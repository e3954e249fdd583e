"""``tuner devices``: what kernels can be timed on here, and what a fleet calls it."""

import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import options
from tuner.cli.console import print_json, print_note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.devices.inventory import DescribedDevice, LocalDevice
    from tuner.settings import Settings

KindOption = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="Only llvm (the CPU) or only cuda (GPUs) [default: all; with --ray GPUs, or else "
        "the CPU].",
        show_default=False,
    ),
]
RayOption = Annotated[
    bool,
    typer.Option("--ray", help="Print what ray start takes as --resources, and nothing else."),
]


def devices(
    kind: KindOption = None,
    ray: RayOption = False,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List the devices of this machine: name, kind, fingerprint.

    A node of a Ray cluster measures on the devices that it was started with; a CPU that is a
    device is reserved for measuring.

    Example:
        ray start --address=head:6379 --resources="$(tuner devices --ray)"
    """
    from tuner.devices.inventory import usable_devices
    from tuner.errors import RequestError
    from tuner.settings import read_settings

    if ray and json_output:
        raise RequestError("--ray prints JSON of its own, so --json cannot go with it")
    found = usable_devices()
    if kind is not None and kind not in {seat.kind for seat in found}:
        raise RequestError(f"this machine has no device of kind {kind!r}")
    known = _known(_chosen(found, kind, ray), read_settings({"data_dir": data_dir}))
    if ray:
        print(json.dumps(Counter(device.resource for device in known)))
    elif json_output:
        print_json({"devices": [_described(device) for device in known]})
    else:
        for device in known:
            print(f"{device.name}  {device.kind}  {device.resource}")
            print(f"    {json.dumps(device.fingerprint)}")


def _chosen(found: "Sequence[LocalDevice]", kind: str | None, ray: bool) -> "list[LocalDevice]":
    """Choose by kind; for a fleet GPUs alone, because a CPU that measures builds nothing."""
    from tuner.devices.inventory import CPU

    if kind is not None:
        return [seat for seat in found if seat.kind == kind]
    gpus = [seat for seat in found if seat.name != CPU]
    return gpus if ray and gpus else list(found)


def _known(chosen: "Sequence[LocalDevice]", settings: "Settings") -> "list[DescribedDevice]":
    """Ask devices what they are; one that cannot be used is told on stderr.

    Raises:
        TargetError: If none can be used.
    """
    from tuner.devices.inventory import list_devices
    from tuner.errors import TargetError

    known, problem = [], None
    for seat in chosen:
        try:
            known += list_devices(settings, [seat])
        except TargetError as error:
            problem = error
            print_note(str(error))
    if problem is not None and not known:
        raise problem
    return known


def _described(device: "DescribedDevice") -> dict[str, object]:
    return {
        "name": device.name,
        "kind": device.kind,
        "resource": device.resource,
        "fingerprint": dict(device.fingerprint),
    }
