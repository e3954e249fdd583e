"""``tuner tasks``: what a network is made of."""

from pathlib import Path
from typing import TYPE_CHECKING

from tuner.commands import connection, options

if TYPE_CHECKING:
    from tuner.commands.outcomes import Split
    from tuner.preparation import ModelRequest


def tasks(
    model: options.Model,
    target: options.TargetOption = "llvm",
    inputs: options.InputOption = [],  # noqa: B006  typer reads it, nobody writes it
    random_weights: options.RandomWeightsOption = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    rpc: options.RpcOption = None,
    ray_address: options.RayAddressOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List the weighted tasks of a network: workload hash, name, weight, operations.

    The same subgraph has the same hash in every network, and is tuned once for all of them.

    Example:
        tuner tasks zoo:mobilenet
    """
    from tuner.preparation import ModelRequest

    request = ModelRequest(model, target, options.parse_inputs(inputs), random_weights)
    if connection.chosen() is None:
        where = {"rpc": rpc, "ray_address": ray_address}
        split = _split_here(request, database, data_dir, where)
    else:
        from tuner.commands.remote import splitting

        with connection.connect(database, data_dir, rpc, ray_address) as client:
            split = splitting.run(client, request)
    if json_output:
        options.print_json(split.as_json())
        return
    split.show()


def _split_here(
    request: "ModelRequest",
    database: str | None,
    data_dir: Path | None,
    where: dict[str, str | None],
) -> "Split":
    from tuner.commands.outcomes import split_here
    from tuner.context import open_context
    from tuner.executors.opening import describing
    from tuner.interrupts import interruptible
    from tuner.preparation import prepare
    from tuner.workers import fresh_worker

    with (
        interruptible(only_waiting=True),
        open_context(database, data_dir, **where) as context,
        describing(context.settings) as describe,
        fresh_worker(context.settings) as worker,
    ):
        prepared = prepare(
            request,
            context,
            worker,
            must_run=False,
            describe=describe,
        )
    return split_here(prepared)
