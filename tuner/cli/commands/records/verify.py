"""``tuner records verify``: measure the best records again."""

from typing import Annotated

import typer

from tuner.cli import connection, options
from tuner.cli.console import print_json
from tuner.cli.options import argument, flag, option

_MAX_ID = 2**31 - 1
_RECORDS_PANEL = "Records"


def verify(
    model: Annotated[
        str | None,
        argument(
            "MODEL", "Verify subgraphs of this network only: a .onnx or .pt2 file, or zoo:NAME."
        ),
    ] = None,
    target: options.TargetOption = "llvm",
    inputs: options.InputOption = [],
    random_weights: options.RandomWeightsOption = None,
    job: Annotated[
        int | None,
        option(
            "JOB", "Verify subgraphs of this job only.", panel=_RECORDS_PANEL, min=1, max=_MAX_ID
        ),
    ] = None,
    top: Annotated[
        int | None,
        option(
            "N",
            "Verify the N subgraphs with the largest share of the latency only.",
            panel=_RECORDS_PANEL,
            min=1,
        ),
    ] = None,
    per_task: Annotated[
        int,
        option(
            "K",
            "Number of best records measured per subgraph.",
            panel=_RECORDS_PANEL,
            min=1,
            max=1000,
        ),
    ] = 1,
    current: Annotated[
        bool,
        flag(
            "--current",
            "Verify records of this version, to see whether the machine changed.",
            panel=_RECORDS_PANEL,
        ),
    ] = False,
    foreign: Annotated[
        bool,
        flag("--foreign", "Also verify imported records of other targets.", panel=_RECORDS_PANEL),
    ] = False,
    sanitize: Annotated[
        bool,
        flag(
            "--sanitize",
            "Also run records whose output agrees under compute-sanitizer (GPUs); reject them "
            "for reads beyond a buffer and for races.",
            panel=_RECORDS_PANEL,
        ),
    ] = False,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    engine: options.EngineOption = None,
    rpc: options.RpcOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Measure the best records of another version or device again.

    Builds use records of this version and device only. After an upgrade, this command replays the
    best earlier records, compares their outputs with the references, and stores them as records of
    this version, in minutes instead of the hours of tuning again. It also measures imported
    records. A record is measured once: the same command continues after Ctrl-C.

    Examples:
        tuner records verify --top 12
        tuner records verify squeezenet.onnx
        tuner records verify --current --top 5
    """
    from tuner.cli.rendering.records.verification import (
        show_remeasured,
        show_verified,
        verified_as_json,
    )
    from tuner.context import open_context
    from tuner.errors import RequestError
    from tuner.interrupts import interruptible
    from tuner.jobs.requests import model_requests, parse_input_sets
    from tuner.tuning.rounds.remeasure import verify_records
    from tuner.tuning.rounds.remeasure_options import VerifyRequest

    connection.refuse("records verify")
    if model is not None and job is not None:
        raise RequestError("MODEL and --job both select subgraphs; give one of them")
    if model is None and (inputs or random_weights is not None):
        raise RequestError("--input and --random-weights apply to a MODEL; give one")
    models = () if model is None else (model,)
    request = VerifyRequest(
        target=target,
        models=model_requests(models, target, parse_input_sets(inputs), random_weights),
        job=job,
        top=top,
        per_task=per_task,
        current=current,
        foreign=foreign,
        sanitize=sanitize,
    )
    with (
        interruptible(only_waiting=True),
        open_context(database, data_dir, rpc=rpc, engine=engine) as context,
    ):
        verified = verify_records(context, request, show_remeasured)
    if json_output:
        print_json(verified_as_json(verified))
    else:
        show_verified(verified, current=current)
    if verified.rows and not verified.n_verified:
        raise typer.Exit(1)
