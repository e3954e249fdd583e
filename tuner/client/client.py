"""The client: one method for each thing that a service does."""

import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

from tuner.client import downloads, streams, uploads
from tuner.client.errors import ServerError
from tuner.client.health import read_health
from tuner.client.models import (
    AuditEntry,
    Build,
    DeviceInfo,
    Event,
    Health,
    Imported,
    JobDetails,
    LibraryInfo,
    NetworkInfo,
    NetworkTask,
    Submitted,
    TargetInfo,
    TuneFields,
    WorkerInfo,
)
from tuner.client.parsing import parse
from tuner.client.transport import Transport, patiently
from tuner.library import manifest as manifests
from tuner.library.folders import replace_folder
from tuner.schemas import (
    BestView,
    FailureView,
    HistoryView,
    JobSummary,
    JobView,
    PickView,
    RecordView,
)

#: States that a job does not leave by itself.
ENDED = ("done", "failed", "cancelled", "paused")
_PAGE = 200
_UPLOAD_TIMEOUT_SECS = 600.0
_POLL_SECS = 0.5
_PATIENCE_SECS = 300.0
Item = TypeVar("Item")


class TunerClient:
    """Speaks with one service; used as a context, by one thread at a time.

    Every method raises a :class:`tuner.client.ServiceError` that says what is wrong, and sends a
    request again if the service does not answer for a moment.

    >>> from tuner.client import TunerClient
    >>> with TunerClient("http://127.0.0.1:8080") as client:  # doctest: +SKIP
    ...     submitted = client.tune("squeezenet.onnx", trials=1000)
    ...     job = client.wait(submitted.job.id)
    """

    def __init__(self, url: str, token: str | None = None, timeout_secs: float = 30.0) -> None:
        self._transport = Transport(url, token, timeout_secs)
        self._open = partial(Transport, url, token, timeout_secs)
        self.url = self._transport.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def tune(
        self,
        *models: str | Path,
        sent: uploads.Sent | None = None,
        key: str | None = None,
        **options: Unpack[TuneFields],
    ) -> Submitted:
        """Ask for a network to be tuned, or for several in one job.

        What was asked for before is not begun anew: its job is returned, with limits raised to
        what is asked for now.

        Args:
            models: ``.onnx`` files, and names such as ``zoo:resnet-18``.
            sent: Told how many bytes of all model files were sent.
            key: Two requests with one key are one; by default each call has its own.
            options: See :class:`tuner.client.TuneFields`.

        Raises:
            RequestError: If a model cannot be read, or the service refuses the request.
        """
        files, zoo = uploads.split_models(models)
        headers = {"idempotency-key": key or uuid.uuid4().hex}

        def send() -> Any:
            with uploads.form(files, zoo, options, sent) as parts:
                return self._transport.send(
                    "POST", "/tune", files=parts, headers=headers, timeout=_UPLOAD_TIMEOUT_SECS
                )

        return parse(Submitted, self._transport.retried(send).json())

    def jobs(
        self, *, states: Sequence[str] = (), text: str = "", sort: str = "-created"
    ) -> Iterator[JobSummary]:
        """Iterate over jobs, a page at a time.

        Args:
            states: Only jobs in these.
            text: Only jobs whose name holds this.
            sort: created, updated, priority or name; ``-`` before it is downwards.
        """
        params = {"state": list(states), "q": text, "sort": sort}
        return self._pages(JobSummary, "/jobs", params)

    def job(self, job: int) -> JobDetails:
        """Return a job, its failures and its builds."""
        return parse(JobDetails, self._transport.json("GET", f"/jobs/{job}"))

    def table(self, job: int) -> JobView:
        """Return the task scheduler table of a job."""
        return parse(JobView, self._transport.json("GET", f"/jobs/{job}/tasks"))

    def picks(self, job: int) -> Iterator[PickView]:
        """Iterate over the decisions of a job, the newest first."""
        return self._pages(PickView, f"/jobs/{job}/picks", {}, cursor="before")

    def history(self, job: int, points: int = 300) -> HistoryView:
        """Return the latency of a job over its trials and seconds."""
        params = {"points": points}
        return parse(
            HistoryView, self._transport.json("GET", f"/jobs/{job}/history", params=params)
        )

    def failures(self, job: int) -> list[FailureView]:
        """Return how the trials of a job failed."""
        return list(self._pages(FailureView, f"/jobs/{job}/failures", {}))

    def recording(self, job: int) -> bytes:
        """Return the curves of a job's tasks, as ``tuner replay`` reads them; compressed."""
        return self._transport.request("GET", f"/jobs/{job}/recording").content

    def events(
        self, job: int, after: int = 0, *, patience_secs: float = _PATIENCE_SECS
    ) -> Iterator[Event]:
        """Yield what happens to a job, as it happens, until the caller leaves the loop.

        No event is missed or given twice, whatever happens to the connection.

        Args:
            job: The job.
            after: The number of the last event that is known.
            patience_secs: How long to look for a service that does not answer any more.

        Raises:
            ServiceError: If there is no such job, or the service stays away.
        """
        transport = self._open()
        try:
            yield from streams.follow(transport, job, after, patience_secs)
        finally:
            transport.close()

    def wait(self, job: int) -> JobSummary:
        """Wait until a job has ended, or was paused; return it.

        A service that is gone meanwhile is waited for, for some minutes.
        """
        now = self.job(job).job
        while now.state not in ENDED:
            for event in self.events(job, now.n_events):
                if event.kind == "state" and event.data.get("state") in ENDED:
                    break
            now = patiently(lambda: self.job(job).job, _PATIENCE_SECS)
        return now

    def cancel(self, job: int) -> JobSummary:
        """Stop a job after its round; what it measured stays."""
        return self._change(job, "cancel")

    def pause(self, job: int) -> JobSummary:
        """Stop a job after its round, until it is resumed."""
        return self._change(job, "pause")

    def resume(self, job: int) -> JobSummary:
        """Let a job go on that was paused or cancelled, or that failed."""
        return self._change(job, "resume")

    def raise_budget(
        self, job: int, *, trials: int | None = None, seconds: float | None = None
    ) -> JobSummary:
        """Raise the limits that a job has."""
        limits = {"trials": trials, "seconds": seconds}
        return self._change(job, "budget", {k: v for k, v in limits.items() if v is not None})

    def set_priority(self, job: int, priority: int) -> JobSummary:
        """Change how much of the device a job gets: each step doubles it."""
        return self._change(job, "priority", {"priority": priority})

    def delete(self, job: int) -> None:
        """Take a job that does not run off the list; what it measured stays."""
        self._transport.request("DELETE", f"/jobs/{job}")

    def build(self, job: int, *, strict: bool = False, model_index: int = 0) -> Build:
        """Ask for the library of a job's network, with the best records of now.

        Args:
            job: The job.
            strict: Fail if a subgraph has no record.
            model_index: Which of its models, if it has several.
        """
        asked = {"strict": strict, "model_index": model_index}
        return parse(Build, self._transport.json("POST", f"/jobs/{job}/build", json=asked))

    def wait_for_build(self, build: Build) -> Build:
        """Wait for a build that was asked for; a service that is gone meanwhile is waited for.

        Raises:
            Failed: If the library cannot be built.
        """
        while build.state not in ("done", "failed"):
            time.sleep(_POLL_SECS)
            build = patiently(partial(self._build_of, build), _PATIENCE_SECS)
        if build.state == "failed":
            raise ServerError(f"build {build.id} of job {build.job_id} failed: {build.message}")
        return build

    def download_library(
        self,
        job: int,
        out: Path,
        *,
        model_index: int = 0,
        received: downloads.Received = lambda _n, _all: None,
    ) -> manifests.Manifest:
        """Put the library that was built last into a folder, verified.

        The folder is replaced when all of it is there.

        Args:
            job: The job.
            out: Folder of the library.
            model_index: Which of the job's models, if it has several.
            received: Told how many bytes of all arrived.

        Raises:
            Refused: If nothing was built.
            WorkError: If it arrives damaged, or cannot be written.
        """
        with tempfile.TemporaryFile() as archive:
            params = {"model_index": model_index}
            path = f"/jobs/{job}/library"
            downloads.fetch(self._transport, path, params, archive, received)
            replace_folder(out, lambda folder: downloads.unpack(archive, folder))
        return manifests.read(out)

    def best_records(
        self, *, workload: str | None = None, target: int | None = None, job: int | None = None
    ) -> list[BestView]:
        """Return the best record of every task, or of those of a workload, a target or a job."""
        params = {"workload": workload, "target": target, "job": job}
        return list(self._pages(BestView, "/records/best", params))

    def list_records(
        self, *, workload: str | None = None, task: int | None = None, failed: bool = False
    ) -> Iterator[RecordView]:
        """Iterate over measure records, the newest first."""
        params = {"workload": workload, "task": task, "failed": failed or None}
        return self._pages(RecordView, "/records/list", params)

    def export_records(self, *, target: int | None = None) -> Iterator[str]:
        """Yield the lines of a log of all records, or those of a target, as they arrive.

        Raises:
            Unreachable: If the connection breaks; what came before is no whole log.
        """
        params = {} if target is None else {"target": target}
        with self._transport.stream("GET", "/records", params=params) as response:
            for line in streams.lines_of(response.iter_bytes()):
                yield f"{line}\n"

    def import_records(self, log: Iterable[bytes]) -> Imported:
        """Send a log of records, as it is read; all of it is kept, or nothing.

        Args:
            log: Its bytes in pieces of any size, or an open file.
        """
        headers = {"content-type": "application/x-ndjson"}
        response = self._transport.send(
            "POST", "/records", content=log, headers=headers, timeout=_UPLOAD_TIMEOUT_SECS
        )
        return parse(Imported, response.json())

    def networks(self) -> Iterator[NetworkInfo]:
        """Iterate over the networks that the service knows."""
        return self._pages(NetworkInfo, "/networks", {})

    def network_tasks(self, network: int, target: int) -> list[NetworkTask]:
        """Return the tasks of a network on a target."""
        params = {"target": target}
        return list(self._pages(NetworkTask, f"/networks/{network}/tasks", params))

    def targets(self) -> Iterator[TargetInfo]:
        """Iterate over the targets that something was measured on."""
        return self._pages(TargetInfo, "/targets", {})

    def workers(self) -> Iterator[WorkerInfo]:
        """Iterate over the processes that measure, or stand by to."""
        return self._pages(WorkerInfo, "/workers", {})

    def devices(self) -> Iterator[DeviceInfo]:
        """Iterate over the devices by name."""
        return self._pages(DeviceInfo, "/devices", {})

    def libraries(self) -> Iterator[LibraryInfo]:
        """Iterate over the libraries in the build cache of the service."""
        return self._pages(LibraryInfo, "/libraries", {})

    def audit(self) -> Iterator[AuditEntry]:
        """Iterate over who asked for what, the newest first; needs the scope admin."""
        return self._pages(AuditEntry, "/audit", {})

    def health(self) -> Health:
        """Ask the service how it is."""
        return read_health(self._transport)

    def _change(self, job: int, what: str, asked: dict[str, Any] | None = None) -> JobSummary:
        answer = self._transport.json("POST", f"/jobs/{job}/{what}", json=asked)
        return parse(JobSummary, answer)

    def _build_of(self, build: Build) -> Build:
        path = f"/jobs/{build.job_id}/builds/{build.id}"
        return parse(Build, self._transport.json("GET", path))

    def _pages(
        self, kind: type[Item], path: str, params: dict[str, Any], cursor: str = "cursor"
    ) -> Iterator[Item]:
        given = {name: value for name, value in params.items() if value not in (None, "", [])}
        place: dict[str, Any] = {}
        while True:
            page = self._transport.json("GET", path, params=given | {"limit": _PAGE} | place)
            yield from (parse(kind, item) for item in page["items"])
            if page.get("next") is None:
                return
            place = {cursor: page["next"]}
