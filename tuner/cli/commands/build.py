"""``tuner build``: apply the history best, compile what is new, cache."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import connection, options
from tuner.cli.console import print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from tuner.compile.object_compiler import Step
    from tuner.context import SettingOverrides


def build(
    model: Annotated[str | None, options.MODEL] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for the library; a library in it is replaced.",
            show_default=False,
        ),
    ] = None,
    target: options.TargetOption = "llvm",
    inputs: options.InputOption = [],  # noqa: B006  typer reads it, nobody writes it
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if a subgraph has no record.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Say of every subgraph that is compiled why it has to be."),
    ] = False,
    reproduce: Annotated[
        Path | None,
        typer.Option(
            metavar="MANIFEST",
            help="Instead: compile the objects of a library anew, without the cache, and compare "
            "them byte by byte; --out keeps them.",
            show_default=False,
        ),
    ] = None,
    random_weights: options.RandomWeightsOption = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    engine: options.EngineOption = None,
    rpc: options.RpcOption = None,
    ray_address: options.RayAddressOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Compile a network with the best record of each subgraph, and say what was used.

    A subgraph without a record is compiled unscheduled, which is slow: the report calls it a
    fallback, and --strict makes it an error. Nothing is compiled twice: neither a library, nor
    a subgraph that any network had before.

    Several sets of input shapes give one library with a program for each; a call runs the one
    that its shapes ask for.

    Examples:
        tuner build squeezenet.onnx -o squeezenet.lib

        tuner build model.onnx --input data=1,3,224,224 --input data=8,3,224,224 -o model.lib

        tuner build --reproduce model.lib
    """
    from tuner.compile.build_library import BuildOptions, check_out
    from tuner.errors import RequestError

    place: SettingOverrides = {
        "database": database,
        "data_dir": data_dir,
        "rpc": rpc,
        "ray_address": ray_address,
        "engine": engine,
    }
    if reproduce is not None:
        if model is not None or strict or explain or inputs or random_weights is not None:
            raise RequestError(
                "--reproduce takes a library's manifest in the place of MODEL: --out is the only "
                "option of a build that goes with it"
            )
        _reproduce(reproduce, out, place, json_output=json_output)
        return
    if model is None or out is None:
        raise RequestError("name a MODEL and, with --out, a folder for the library")
    requests = options.model_requests([model], target, inputs, random_weights)
    check_out(out)
    if connection.chosen() is None:
        from tuner.cli.backends import execution

        how = BuildOptions(strict, explain)
        if not json_output:
            how = replace(how, tell=_teller(explain=explain))
        library = execution.build(requests, out, place, how)
    else:
        from tuner.cli.remote import build as remote_build

        if len(requests) > 1 or explain:
            raise RequestError(
                "a service builds for one set of input shapes and does not --explain"
            )
        with connection.connect(place) as client:
            library = remote_build.run(client, requests[0], out, strict=strict)
    if json_output:
        print_json(library.as_json())
        return
    library.show()


def _reproduce(
    manifest: Path,
    out: Path | None,
    place: "SettingOverrides",
    *,
    json_output: bool,
) -> None:
    from tuner.cli.commands.reproduction import Reproduction, tell
    from tuner.compile.reproduce import read_manifest, reproduce
    from tuner.context import open_context
    from tuner.engines.environments import ENGINES
    from tuner.errors import RequestError
    from tuner.interrupts import interruptible
    from tuner.workers.pools import fresh_worker

    if connection.chosen() is not None:
        raise RequestError("--reproduce compiles on this machine, with a database that it reaches")
    described = read_manifest(manifest)
    # What a manifest says is no name of a module to import, unless it is one of ours.
    if place.get("engine") is None and described.engine in ENGINES.values():
        place = {**place, "engine": described.engine}
    with (
        interruptible(only_waiting=True),
        open_context(**place) as context,
        fresh_worker(context.settings) as worker,
    ):
        hear = _nothing if json_output else tell
        told = Reproduction(reproduce(context, described, worker, out, hear))
    if json_output:
        print_json(told.as_json())
    else:
        told.show()
    if not told.identical:
        raise typer.Exit(1)


def _nothing(_: object) -> None:
    """Print nothing: what there is to say is in the JSON."""


def _teller(*, explain: bool) -> "Callable[[Step], None]":
    """Return what prints a line a subgraph, and lines that explain a miss."""
    from tuner.cli.console import stderr_console
    from tuner.cli.rendering.cache_misses import explain_miss

    console = stderr_console()

    def tell(step: "Step") -> None:
        if step.hit:
            console.print(f"Cache hit: {step.name}", highlight=False, soft_wrap=True)
            return
        console.print(
            f"Compiled in {step.secs:.2f} s: {step.name}", highlight=False, soft_wrap=True
        )
        for line in explain_miss(step.why) if explain else ():
            console.print(f"  {line}", style="dim", highlight=False, soft_wrap=True)

    return tell
