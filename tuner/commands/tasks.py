"""``tuner tasks``: what a network is made of."""

from tuner.commands import options


def tasks(
    model: options.Model,
    target: options.TargetOption = "llvm",
    inputs: options.InputOption = [],  # noqa: B006  typer reads it, nobody writes it
    random_weights: options.RandomWeightsOption = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List the weighted tasks of a network: workload hash, name, weight, operations.

    The same subgraph has the same hash in every network, and is tuned once for all of them.

    Example:
        tuner tasks zoo:mobilenet
    """
    from tuner.context import open_context
    from tuner.interrupts import interruptible
    from tuner.preparation import ModelRequest, prepare
    from tuner.workers import fresh_worker

    request = ModelRequest(model, target, options.parse_inputs(inputs), random_weights)
    with (
        interruptible(only_waiting=True),
        open_context(database, data_dir) as context,
        fresh_worker(context.settings) as worker,
    ):
        prepared = prepare(request, context.settings, context.sessions, worker, must_run=False)
    if json_output:
        options.print_json(
            {
                "network": prepared.model.name,
                "sha256": prepared.model.sha256,
                "target": prepared.target.spec,
                "kernel_calls": prepared.n_kernel_calls,
                "notes": prepared.notes,
                "tasks": [
                    {
                        "workload": task.workload_hash,
                        "name": task.name,
                        "weight": task.weight,
                        "flop": task.flop,
                    }
                    for task in prepared.tasks
                ],
            }
        )
        return
    from rich.table import Table

    from tuner.progress import stdout_console

    console = stdout_console()
    table = Table(title=f"Tasks of {prepared.model.name}", title_justify="left")
    table.add_column("ID", justify="right")
    table.add_column("Workload", no_wrap=True)
    table.add_column("Task")
    table.add_column("Weight", justify="right")
    table.add_column("MFLOP", justify="right")
    for index, task in enumerate(prepared.tasks):
        table.add_row(
            str(index), task.workload_hash, task.name, str(task.weight), f"{task.flop / 1e6:.2f}"
        )
    console.print(table)
    total = sum(task.weight * task.flop for task in prepared.tasks) / 1e6
    console.print(
        f"{len(prepared.tasks)} tasks, {prepared.n_kernel_calls} kernel calls, {total:,.2f} MFLOP",
        highlight=False,
    )
    for note in prepared.notes:
        console.print(f"note: {note}", style="dim", highlight=False)
