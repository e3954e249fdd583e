"""Arguments and options that several commands share, and the options that errors are about."""

from pathlib import Path
from typing import Annotated

import typer

# Options whose name differs from that of the field they set.
_OPTIONS = {"stop_below_ms": "--stop-below", "model": "MODEL", "source": "--model"}

# Groups of options in help pages.
MODEL_PANEL = "Model"
MEASURING_PANEL = "Measuring"
PLACEMENT_PANEL = "Where it runs"
OUTPUT_PANEL = "Output"

MODEL = typer.Argument(
    metavar="MODEL",
    help="A .onnx or .pt2 file, or zoo:NAME such as 'zoo:resnet-18?batch=1&layout=NHWC'.",
    show_default=False,
)
Model = Annotated[str, MODEL]
TargetOption = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        metavar="TARGET",
        help="Target: llvm (this CPU), 'llvm -mcpu=NAME', llvm+onednn (and let "
        "oneDNN compete with the tuned kernels), cuda (this GPU), cuda:sm_90, a TVM tag, or JSON.",
        rich_help_panel=MODEL_PANEL,
    ),
]
InputOption = Annotated[
    list[str],
    typer.Option(
        "--input",
        "-i",
        metavar="NAME=1,3,224,224",
        help="Shape of an input with dynamic dimensions, or the value of an input of one element "
        "(sr=16000, use_cache_branch=true), which becomes a constant; repeat for each input. "
        "Repeat an input name to add another shape configuration.",
        show_default=False,
        rich_help_panel=MODEL_PANEL,
    ),
]
BucketOption = Annotated[
    list[str],
    typer.Option(
        "--bucket",
        "-b",
        metavar="DIM=1,4,16",
        help="Sizes of a dynamic dimension, or its name alone for a choice of sizes; repeat for "
        "each dimension. auto chooses for all. SIZE:WEIGHT says how often a size is expected.",
        show_default=False,
        rich_help_panel=MODEL_PANEL,
    ),
]
MaskOption = Annotated[
    list[str],
    typer.Option(
        "--mask",
        metavar="INPUT[=VALUE]",
        help="Input that marks padding, by 0 or VALUE; by default those named after a mask.",
        show_default=False,
        rich_help_panel=MODEL_PANEL,
    ),
]
RandomWeightsOption = Annotated[
    int | None,
    typer.Option(
        "--random-weights",
        metavar="SEED",
        help="Replace the weights by random ones with this seed, for models that come without.",
        show_default=False,
        rich_help_panel=MODEL_PANEL,
    ),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="Database of the records [default: an SQLite file in the data directory]. "
        "Also TUNER_DATABASE.",
        show_default=False,
        rich_help_panel=PLACEMENT_PANEL,
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Directory of models, compiled code and logs. Also TUNER_DATA_DIR.",
        show_default=False,
        rich_help_panel=PLACEMENT_PANEL,
    ),
]
RpcOption = Annotated[
    str | None,
    typer.Option(
        "--rpc",
        metavar="HOST:PORT/KEY",
        help="Measure on the devices that a TVM RPC tracker has under a key; separate several by "
        "commas. Also TUNER_RPC.",
        show_default=False,
        rich_help_panel=PLACEMENT_PANEL,
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Compiler backend: relax (TVM's MetaSchedule) or relay (Relay and Ansor; install it "
        "with `tuner engine install relay`) [default: relax]. Also TUNER_ENGINE.",
        show_default=False,
        rich_help_panel=PLACEMENT_PANEL,
    ),
]
LibraryArgument = Annotated[
    Path,
    typer.Argument(metavar="LIBRARY", help="Folder of the library.", show_default=False),
]
LibraryModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="File of the model that the library was built from, which the other runtime "
        "runs; a zoo: network needs none.",
        show_default=False,
        rich_help_panel=MODEL_PANEL,
    ),
]
ArraysOption = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        metavar="FILE.npz",
        help="Run on the arrays of this file, one per input name, instead of drawn ones.",
        show_default=False,
        rich_help_panel=MODEL_PANEL,
    ),
]
ProgramShapesOption = Annotated[
    list[str],
    typer.Option(
        "--input",
        "-i",
        metavar="NAME=1,3,224,224",
        help="Shape of an input, to choose among the programs of a library; by default those "
        "of the first.",
        show_default=False,
        rich_help_panel=MODEL_PANEL,
    ),
]
InputSeedOption = Annotated[
    int,
    typer.Option(
        "--seed",
        metavar="SEED",
        help="Seed of the inputs that are drawn.",
        rich_help_panel=MEASURING_PANEL,
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", help="Print exactly one JSON object on stdout.", rich_help_panel=OUTPUT_PANEL
    ),
]


def share(option: str, text: str) -> float:
    """Return the share that an option names, such as ``3%``.

    Raises:
        RequestError: If it is not from 0% to 100%.
    """
    from tuner.errors import RequestError

    try:
        number = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= 1.0:
        raise RequestError(f"{option} must be a share from 0% to 100%, got {text!r}")
    return number


def option_of(field: str) -> str:
    """Return the option or argument for a field of a request, such as ``--trials-per-round``."""
    return _OPTIONS.get(field, f"--{field.replace('_', '-')}")


def message_of(error: Exception) -> str:
    """Return the text of an error with the field that it is about named as an option."""
    from tuner.errors import RequestError

    if isinstance(error, RequestError) and error.field is not None:
        return str(error).replace(error.field, option_of(error.field), 1)
    return str(error)
