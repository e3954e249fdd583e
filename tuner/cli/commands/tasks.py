"""``tuner tasks``: list the tasks of a network."""

from typing import Annotated

from tuner.cli import connection, options
from tuner.cli.console import print_json
from tuner.cli.options import flag


def tasks(
    model: options.Model,
    target: options.TargetOption = "llvm",
    inputs: options.InputOption = [],
    random_weights: options.RandomWeightsOption = None,
    definitions: Annotated[
        bool, flag("--definitions", "Print the IR of each task.", panel=options.OUTPUT_PANEL)
    ] = False,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    engine: options.EngineOption = None,
    rpc: options.RpcOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List the tasks of a network: workload hash, name, calls, operations.

    Equal subgraphs have the same hash in every network and are tuned once for all of them.

    Examples:
        tuner tasks zoo:mobilenet
        tuner tasks model.onnx --definitions
    """
    from tuner.cli.rendering.reports import show_tasks_of_network, tasks_of_network_as_json
    from tuner.errors import RequestError
    from tuner.jobs.requests import ModelRequest, parse_inputs
    from tuner.settings import SettingOverrides

    request = ModelRequest(model, target, parse_inputs(inputs), random_weights)
    overrides = SettingOverrides(database=database, data_dir=data_dir, rpc=rpc, engine=engine)
    if connection.chosen() is None:
        from tuner import local

        report = local.extract(request, overrides, definitions=definitions)
    else:
        from tuner.cli.remote import submit

        if definitions:
            raise RequestError("--definitions needs a local compiler; leave out --server")
        with connection.connect(overrides) as client:
            report = submit.extract(client, request)
    if json_output:
        print_json(tasks_of_network_as_json(report))
        return
    show_tasks_of_network(report)
