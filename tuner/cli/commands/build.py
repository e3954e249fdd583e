"""``tuner build``: compile a network into a library."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import connection, hints, options
from tuner.cli.console import print_json
from tuner.cli.options import flag, option

if TYPE_CHECKING:
    from tuner.compile.subgraphs import BuildStep
    from tuner.settings import SettingOverrides


def build(
    model: Annotated[str | None, options.MODEL] = None,
    target: options.TargetOption = "llvm",
    inputs: options.InputOption = [],
    buckets: options.BucketOption = [],
    masks: options.MaskOption = [],
    random_weights: options.RandomWeightsOption = None,
    out: Annotated[
        Path | None,
        option(
            "DIR",
            "Folder for the library; an existing library in it is replaced.",
            "--out",
            "-o",
            panel="Library",
        ),
    ] = None,
    strict: Annotated[
        bool, flag("--strict", "Fail if a subgraph has no record.", panel="Library")
    ] = False,
    explain: Annotated[
        bool, flag("--explain", "Explain each cache miss.", panel="Library")
    ] = False,
    reproduce: Annotated[
        Path | None,
        option(
            "MANIFEST",
            "Instead of building a MODEL, recompile the objects of this library without the "
            "cache and compare them byte by byte; --out keeps them.",
            panel="Library",
        ),
    ] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    engine: options.EngineOption = None,
    rpc: options.RpcOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Compile a network into a library with the best record of each subgraph.

    A subgraph without a record gets a schedule by rule, slower than a tuned one: the report calls
    it a fallback, and --strict makes it an error. The build cache supplies every library and every
    subgraph that was compiled before, for whichever network.

    Several sets of input shapes give one library with a program for each; a call runs the program
    for its shapes. With --bucket, a call takes any size up to the largest: its inputs are padded to
    the smallest bucket that fits, if trials with the model show that padding changes no output.

    Examples:
        tuner build squeezenet.onnx -o squeezenet.lib
        tuner build model.onnx --input data=1,3,224,224 --input data=8,3,224,224 -o model.lib
        tuner build bert.onnx --bucket batch=1,4 --bucket sequence=32,64,128 -o bert.lib
        tuner build --reproduce model.lib
    """
    from tuner.cli.rendering.reports import build_as_json, show_build
    from tuner.compile.build_library import BuildOptions
    from tuner.compile.checks import check_out
    from tuner.errors import RequestError
    from tuner.jobs.buckets import parse_padded
    from tuner.jobs.requests import model_requests, parse_input_sets
    from tuner.settings import SettingOverrides

    overrides = SettingOverrides(database=database, data_dir=data_dir, rpc=rpc, engine=engine)
    if reproduce is not None:
        if (
            model is not None
            or strict
            or explain
            or inputs
            or buckets
            or random_weights is not None
        ):
            raise RequestError(
                "--reproduce takes a library's manifest instead of a MODEL; of the other build "
                "options, only --out applies"
            )
        _reproduce(reproduce, out, overrides, json_output=json_output)
        return
    if model is None or out is None:
        missing = "a MODEL" if model is None else "--out with a folder for the library"
        raise RequestError(f"give {missing}")
    shapes, padded = parse_input_sets(inputs), parse_padded(buckets, masks)
    requests = model_requests([model], target, shapes, random_weights, padded)
    check_out(out)
    if connection.chosen() is None:
        from tuner import local

        on_step = _ignore if json_output else partial(_show_step, explain=explain)
        build_options = BuildOptions(strict, explain, on_step)
        report = local.build(requests, out, overrides, build_options)
    else:
        from tuner.cli.remote import submit

        if len(requests) > 1 or explain:
            raise RequestError(
                "a tuner server builds for one set of input shapes and without --explain; leave "
                "out the other --input options and --explain, or --server"
            )
        with connection.connect(overrides) as client:
            report = submit.build(client, requests[0], out, strict=strict)
    if json_output:
        print_json(build_as_json(report))
        return
    show_build(
        report,
        hints.model_options(target, inputs, buckets, masks, random_weights, overrides),
    )


def _reproduce(
    manifest: Path, out: Path | None, overrides: "SettingOverrides", *, json_output: bool
) -> None:
    from tuner import local
    from tuner.cli.rendering.cache import reproduction as rendering
    from tuner.errors import RequestError

    if connection.chosen() is not None:
        raise RequestError("--reproduce works on this machine; leave out --server and TUNER_SERVER")
    on_subgraph = _ignore if json_output else rendering.show_subgraph
    reproduction = local.reproduce(manifest, out, overrides, on_subgraph)
    if json_output:
        print_json(rendering.reproduction_as_json(reproduction))
    else:
        rendering.show_reproduction(reproduction)
    if not reproduction.identical:
        raise typer.Exit(1)


def _ignore(_: object) -> None:
    pass


def _show_step(step: "BuildStep", *, explain: bool) -> None:
    """Print on stderr how the object of a subgraph came about; with ``explain``, why."""
    from tuner.cli.console import print_line, stderr_console
    from tuner.cli.rendering.cache.cache_misses import explain_miss
    from tuner.formatting import by_variant

    name = by_variant(step.name, step.variant)
    if step.hit:
        print_line(f"Cache hit: {name}", to_stderr=True)
        return
    print_line(f"Compiled in {step.secs:.2f} s: {name}", to_stderr=True)
    for line in explain_miss(step.why) if explain else ():
        stderr_console().print(
            f"  {line}", style="dim", highlight=False, markup=False, soft_wrap=True
        )
