"""Arguments and options that several commands share."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tuner.jobs.requests import ModelRequest

# Options that are not called like the field they set.
_OPTIONS = {"stop_below_ms": "--stop-below"}

MODEL = typer.Argument(
    help="A .onnx or .pt2 file, or zoo:NAME, such as 'zoo:resnet-18?batch=1&layout=NHWC'.",
    show_default=False,
)
Model = Annotated[str, MODEL]
TargetOption = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        help="What to compile for: llvm (this CPU), cuda (this GPU), cuda:sm_90, a TVM tag, or "
        "JSON.",
    ),
]
InputOption = Annotated[
    list[str],
    typer.Option(
        "--input",
        "-i",
        metavar="NAME=1,3,224,224",
        help="Shape of an input with dynamic dimensions, once per input; a name that comes again "
        "begins another set of shapes.",
        show_default=False,
    ),
]
RandomWeightsOption = Annotated[
    int | None,
    typer.Option(
        "--random-weights",
        metavar="SEED",
        help="Replace the weights by seeded random ones, for model files that ship without.",
        show_default=False,
    ),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="Where records live [default: a SQLite file under the data directory]. "
        "Also TUNER_DATABASE.",
        show_default=False,
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Where models, compiled code and logs are kept. Also TUNER_DATA_DIR.",
        show_default=False,
    ),
]
RpcOption = Annotated[
    str | None,
    typer.Option(
        "--rpc",
        metavar="HOST:PORT/KEY",
        help="Measure on the devices that a TVM RPC tracker lends under a key; several separated "
        "by commas. Also TUNER_RPC.",
        show_default=False,
    ),
]
RayAddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="HOST:PORT",
        help="Search, build and measure on a Ray cluster; auto is that of this machine. Also "
        "TUNER_RAY_ADDRESS.",
        show_default=False,
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What splits, searches and compiles: relax (TVM's MetaSchedule) or relay (Relay and "
        "Ansor, once `tuner engine install relay` was run) [default: relax]. Also TUNER_ENGINE.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print exactly one JSON object on stdout.")
]


def model_requests(
    models: Sequence[str], target: str, inputs: Sequence[str], random_weights: int | None
) -> "tuple[ModelRequest, ...]":
    """Return every model with every set of input shapes.

    Raises:
        RequestError: If the sets do not name the same inputs.
    """
    from tuner.jobs import requests

    sets = requests.parse_input_sets(inputs)
    return requests.model_requests(models, target, sets, random_weights)


def option_of(field: str) -> str:
    """Return the option that sets a field of a request, such as ``--trials-per-round``."""
    return _OPTIONS.get(field, f"--{field.replace('_', '-')}")


def message_of(error: Exception) -> str:
    """Return the text of an error, where the field it is about has the name of its option."""
    from tuner.errors import RequestError

    if isinstance(error, RequestError) and error.field is not None:
        return f"{option_of(error.field)}: {error.text}"
    return str(error)
