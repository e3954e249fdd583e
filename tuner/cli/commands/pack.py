"""``tuner pack``: compile candidates for a GPU elsewhere, and import what it measured."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import options
from tuner.cli.console import print_json, print_line, print_note, stdout_console
from tuner.cli.options import argument, option
from tuner.cli.streams import ProgressCounter

if TYPE_CHECKING:
    from tuner.packs.import_results import ImportReport

# Distance of outputs, relative to them, that roundings of 16 bits do not explain.
_MAX_DIFFERENCE = 0.05

app = typer.Typer(
    help="Tune for a GPU that you have for minutes: compile candidates here, measure them there.",
    no_args_is_help=True,
)


@app.command("make")
def make(
    models: Annotated[
        list[str],
        argument("MODEL...", "Networks, all in one pack: .onnx or .pt2 files, or zoo:NAME."),
    ],
    target: options.TargetOption = "cuda:sm_90",
    inputs: options.InputOption = [],
    random_weights: options.RandomWeightsOption = None,
    candidates: Annotated[
        int,
        option(
            "N",
            "Number of candidates, for all networks together. Two cores compile about 10,000 "
            "an hour; a GPU measures about 100 a second.",
            panel="Pack",
            min=1,
            max=20_000,
        ),
    ] = 1000,
    out: Annotated[Path, option("FILE", "File of the pack.", "--out", "-o", panel="Pack")] = Path(
        "tuner-pack.pyz"
    ),
    seed: Annotated[
        int, option("SEED", "Seed of the candidates that are drawn.", panel="Pack")
    ] = 0,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Compile candidates of networks into one file, which measures them on a GPU.

    No GPU is needed here. The machine with the GPU needs Python 3.10, NumPy and the driver: copy
    the file there, run it, and bring back its results. What was measured on such GPUs before, or
    is in a pack whose results are not here yet, is left out.

    Examples:
        tuner pack make bert.onnx resnet.onnx --target cuda:sm_90 --candidates 3000 -o nets.pyz
        python nets.pyz run --minutes 5 --out nets.results
        tuner pack import nets.results
    """
    from tuner.context import open_context
    from tuner.jobs.requests import model_requests, parse_input_sets
    from tuner.packs.make import PackOptions, make_pack

    progress = ProgressCounter(f"{{}} of at most {candidates}", "candidate")

    def on_compiled(n_done: int, _: int) -> None:
        progress(n_done)

    requests = model_requests(models, target, parse_input_sets(inputs), random_weights)
    with open_context(database, data_dir) as context:
        made = make_pack(context, requests, PackOptions(out, candidates, seed, on_compiled))
    if json_output:
        print_json({**asdict(made), "path": str(made.path)})
    else:
        from tuner.formatting import counted

        for note in made.notes:
            print_note(note)
        refused = f", {made.n_refused} were refused by the compiler" if made.n_refused else ""
        print_line(
            f"Pack {made.pack}: {counted(made.n_candidates, 'candidate')} in {made.secs:.0f} s"
            f"{refused}; {made.path} has {made.n_bytes / 2**20:.1f} MiB"
        )
        print_line(f"On the machine with the GPU: python {made.path.name} run --minutes 5")


@app.command("offer")
def offer(
    pack: Annotated[Path, argument("PACK", "File that tuner pack make wrote.")],
    minutes: Annotated[
        float, option("MINUTES", "Time for which a GPU measures it, minutes.", min=0.1, max=1440)
    ] = 5.0,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Offer a pack to GPUs that know the URL of this service, which measure it by themselves.

    Run it where the pack was made, with the database and the data directory of the service. Each
    GPU runs runner.pyz of the service; results become records as they arrive.

    Example:
        tuner pack offer nets.pyz --minutes 5
    """
    from tuner.context import open_context
    from tuner.packs.offers import offer_pack

    with open_context(database, data_dir) as context:
        offered = offer_pack(context, pack, minutes)
    if json_output:
        print_json({"pack": offered.pack, "sha256": offered.sha256, "n_bytes": offered.n_bytes})
    else:
        print_line(f"Pack {offered.pack} is offered, {offered.n_bytes / 2**20:.1f} MiB")
        print_line("On each machine with a GPU: python3 runner.pyz serve --server URL")


@app.command("import")
def import_(
    results: Annotated[Path, argument("RESULTS", "File that a pack wrote on the GPU.")],
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Store the results of a pack as records, which builds for that GPU use.

    Results are accepted if they are of a pack that was made with this data directory, and of a GPU
    that it is for. A file that was torn counts up to the tear, and the same file can be imported
    again at any time.

    Example:
        tuner pack import nets.results
    """
    from tuner.context import open_context
    from tuner.interrupts import interruptible
    from tuner.packs.import_results import import_results

    with interruptible(), open_context(database, data_dir) as context:
        report = import_results(context, results)
    if json_output:
        print_json(asdict(report))
    else:
        _show_import(report)


@app.command("status")
def status(
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    forget: Annotated[
        str | None,
        option(
            "PACK",
            "Forget a pack that is lost: its candidates are free for other packs, and its "
            "results can no longer be imported.",
        ),
    ] = None,
    json_output: options.JsonOption = False,
) -> None:
    """List the packs that were made with this data directory, and what was imported of each.

    Example:
        tuner pack status
    """
    from records.service import offered_packs
    from tuner.cli.rendering.grid import Column, Grid
    from tuner.context import open_context
    from tuner.formatting import age, count, counted
    from tuner.packs import offers, registry

    with open_context(database, data_dir) as context:
        folder = context.settings.data_dir
        if forget is not None:
            registry.forget(folder, forget)
            with context.sessions.begin() as session:
                offered_packs.withdraw(session, forget)
        with context.readers() as session:
            states = {row.pack: offers.state_of(row) for row in offered_packs.list_packs(session)}
    packs = list(registry.load_all(folder))
    if json_output:
        hidden = ("key", "workloads", "sources")
        listed = [
            {name: value for name, value in asdict(pack).items() if name not in hidden}
            | {"n_candidates": pack.n_candidates, "offer": states.get(pack.pack)}
            for pack in packs
        ]
        print_json({"packs": listed})
        return
    if not packs:
        print_line("No packs yet; make one with `tuner pack make`.")
        return
    table = Grid(
        Column("Pack"),
        Column("Made"),
        Column("Candidates", "number"),
        Column("Networks", "prose", 1),
        Column("File", "name", 2),
        Column("Results", "prose"),
    )
    for pack in packs:
        results = (f"{counted(n, 'result')} of {name}" for name, n in pack.imported.items())
        table.add(
            pack.pack,
            age(datetime.fromisoformat(pack.made)),
            count(pack.n_candidates),
            ", ".join(pack.networks),
            pack.file,
            states.get(pack.pack) or ", ".join(results) or "none yet",
        )
    stdout_console().print(table)


def _show_import(report: "ImportReport") -> None:
    from tuner.formatting import counted

    if report.n_torn_bytes:
        print_note(f"the last {report.n_torn_bytes} bytes are damaged and were left out")
    if report.missing:
        print_note(
            f"the results lack {', '.join(report.missing)} of the GPU: a tuner on its machine will "
            "not know these records as its own"
        )
    for times in report.networks:
        if not times.is_stable:
            print_note(f"{times.network}: repeated runs of its graph gave different outputs")
        if times.difference is None or times.difference > _MAX_DIFFERENCE:
            print_note(f"{times.network}: its outputs with the best kernels are not those before")
        before, after, estimate = (
            1e6 * secs for secs in (times.before, times.after, times.estimate)
        )
        print_line(
            f"{times.network}: {before:.1f} us in its graph, {after:.1f} with the best; estimate "
            f"{estimate:.1f} ({estimate / after - 1:+.1%})"
        )
    if report.n_by_finals:
        print_line(f"Finals in the networks chose {report.n_by_finals} of the best records")
    print_line(
        f"Pack {report.pack} on {report.device}: {counted(report.n_added, 'record')} added, "
        f"{report.n_known} were known; {report.n_wrong} wrong, {report.n_failed} failed, "
        f"{counted(report.n_left, 'candidate')} left"
    )
