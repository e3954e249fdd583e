"""``tuner report``: write the result of a job as a page."""

from pathlib import Path
from typing import Annotated

from tuner.cli import options
from tuner.cli.backends import open_backend
from tuner.cli.console import print_note
from tuner.cli.options import argument, option


def report(
    job: Annotated[
        int | None, argument("JOB", "Number of the job [default: the one that changed last].")
    ] = None,
    output: Annotated[
        Path | None, option("FILE", "File to write [default: report-JOB.html].", "--output", "-o")
    ] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
) -> None:
    """Write the result of a job as one HTML file for people who were not there.

    The file needs no network: latency before and after, its curve, the tasks, failed trials.

    Examples:
        tuner report
        tuner report 3 -o resnet.html
    """
    from tuner.cli.rendering.report_page import as_page
    from tuner.profiling.profile_files import write_text

    with open_backend(database, data_dir) as backend:
        job_id = backend.find_job(job).id
        page = as_page(backend.table(job_id), backend.history(job_id), backend.failures(job_id))
    path = output or Path(f"report-{job_id}.html")
    write_text(path, page, "output")
    print_note(f"wrote {path}")
