"""The client: one method for each operation of a service."""

import math
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from tuner.client import downloads, streams, uploads
from tuner.client.errors import ServerError
from tuner.client.health import read_health
from tuner.client.models import Health, TuneFields, read_answer
from tuner.client.transport import Transport, call_until_available
from tuner.files.folders import replace_folder
from tuner.library import manifest as manifests
from tuner.library.signatures import policy_of
from tuner.reporting.job_report import JobReport
from tuner.schemas import (
    AuditEntry,
    BestView,
    Build,
    DeviceInfo,
    Event,
    FailureView,
    HistoryView,
    Imported,
    JobComparison,
    JobDetails,
    JobSummary,
    JobView,
    LibraryInfo,
    NetworkInfo,
    NetworkTask,
    Page,
    PickView,
    RecordCode,
    RecordDetails,
    RecordView,
    Submitted,
    TargetInfo,
    TokenInfo,
    WebhookSecret,
    WorkerInfo,
)
from tuner.settings import read_settings
from tuner.tables import Rows

if TYPE_CHECKING:
    from tuner.profiling.results import LibraryProfile

#: States that a job leaves only on request.
ENDED = ("done", "failed", "cancelled", "paused")
#: Parts of the code of a record.
CODE_PARTS = ("schedule", "source", "assembly")
_CODE_TIMEOUT_SECS = 600.0
_PAGE_SIZE = 200
_UPLOAD_TIMEOUT_SECS = 600.0
_RECONNECT_TIMEOUT_SECS = 300.0
# Pause between requests that wait; a service that knows no waits answers at once.
_POLL_INTERVAL_SECS = 0.5
# Less than the time-out of a request.
_MAX_WAIT_SECS = 20.0
Item = TypeVar("Item")


class TunerClient:
    """Client of one service, used as a context manager; not thread-safe.

    Every method raises a :class:`tuner.client.ServiceError` if the service rejects a request or
    cannot be reached, and repeats a request while the service does not answer for a moment.

    >>> from tuner.client import TunerClient
    >>> with TunerClient("http://127.0.0.1:8080") as client:  # doctest: +SKIP
    ...     submitted = client.tune("squeezenet.onnx", trials=1000)
    ...     job = client.wait(submitted.job.id)
    """

    def __init__(self, url: str, token: str | None = None, timeout_secs: float = 25.0) -> None:
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
        """Submit a job that tunes a network, or several.

        A request that equals an earlier one starts no new job: it returns the earlier job, with
        its limits raised to those of this request.

        Args:
            models: Paths of ``.onnx`` files, and names such as ``zoo:resnet-18``.
            sent: Callback that gets the bytes sent so far and the bytes of all model files.
            key: Idempotency key; by default each call has its own.
            options: Options of the job; see :class:`tuner.client.TuneFields`.

        Raises:
            RequestError: If a model cannot be read, or the service rejects the request.
        """
        files, zoo = uploads.split_models(models)
        headers = {"idempotency-key": key or uuid.uuid4().hex}

        def send() -> Any:
            with uploads.form(files, zoo, options, sent) as parts:
                return self._transport.send(
                    "POST", "/tune", files=parts, headers=headers, timeout=_UPLOAD_TIMEOUT_SECS
                )

        return read_answer(Submitted, self._transport.retried(send).content)

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        text: str = "",
        tags: Sequence[str] = (),
        sort: str = "-created",
    ) -> Iterator[JobSummary]:
        """Iterate over jobs, a page at a time.

        Args:
            states: States to include; empty for all.
            text: Part of the name.
            tags: Tags that each of the jobs has.
            sort: created, updated, priority or name; a leading ``-`` reverses the order.
        """
        params = {"state": list(states), "q": text, "tag": list(tags), "sort": sort}
        return self._pages(JobSummary, "/jobs", params)

    def job(self, job: int, *, wait_secs: float = 0.0) -> JobDetails:
        """Return a job, its failures and its builds.

        Args:
            job: Number of the job.
            wait_secs: Time to wait for the job to end or pause, at most 20 seconds; see
                :meth:`wait`.
        """
        params = {"wait": wait_secs} if wait_secs else {}
        return self._transport.read(JobDetails, "GET", f"/jobs/{job}", params=params)

    def table(self, job: int) -> JobView:
        """Return the task scheduler table of a job."""
        return self._transport.read(JobView, "GET", f"/jobs/{job}/tasks")

    def report(self, job: int) -> JobReport:
        """Return a job as the functions of ``tuner.plot`` take it."""
        return JobReport(self.table(job), self.history(job))

    def picks(self, job: int) -> Iterator[PickView]:
        """Iterate over the picks of a job, the newest first."""
        return self._pages(PickView, f"/jobs/{job}/picks", {}, cursor="before")

    def history(self, job: int, points: int = 300) -> HistoryView:
        """Return the latency of a job over its trials and seconds."""
        params = {"points": points}
        return self._transport.read(HistoryView, "GET", f"/jobs/{job}/history", params=params)

    def compare(self, a: int, b: int) -> JobComparison:
        """Compare two jobs workload by workload, by what each of them measured."""
        return self._transport.read(JobComparison, "GET", f"/jobs/{a}/compare/{b}")

    def failures(self, job: int) -> list[FailureView]:
        """Return how the trials of a job failed, the most frequent way first."""
        return list(self._pages(FailureView, f"/jobs/{job}/failures", {}))

    def recording(self, job: int) -> bytes:
        """Return the compressed curves of a job's tasks, as ``tuner replay`` reads them."""
        return self._transport.request("GET", f"/jobs/{job}/recording").content

    def events(
        self, job: int, after: int = 0, *, patience_secs: float = _RECONNECT_TIMEOUT_SECS
    ) -> Iterator[Event]:
        """Yield the events of a job as they happen, until the caller leaves the loop.

        Every event is yielded exactly once, even if the connection breaks.

        Args:
            job: Number of the job.
            after: Number of the last event that the caller has.
            patience_secs: Time to wait for a service that stopped answering, seconds.

        Raises:
            ServiceError: If the job does not exist, or the service does not come back in time.
        """
        transport = self._open()
        try:
            yield from streams.follow(transport, job, after, patience_secs)
        finally:
            transport.close()

    def wait(self, job: int, timeout_secs: float = math.inf) -> JobSummary:
        """Wait until a job has ended or is paused, and return it.

        While the service does not answer, keep trying for some minutes.

        Args:
            job: Number of the job.
            timeout_secs: Time after which the job is returned as it is then.
        """
        end = time.monotonic() + timeout_secs
        while True:
            secs = min(max(end - time.monotonic(), 0.0), _MAX_WAIT_SECS)
            read = partial(self.job, job, wait_secs=secs)
            summary = call_until_available(read, _RECONNECT_TIMEOUT_SECS).job
            if summary.state in ENDED or time.monotonic() >= end:
                return summary
            time.sleep(_POLL_INTERVAL_SECS)

    def cancel(self, job: int) -> JobSummary:
        """Stop a job after its running rounds; its measurements stay."""
        return self._change(job, "cancel")

    def pause(self, job: int) -> JobSummary:
        """Pause a job after its running rounds."""
        return self._change(job, "pause")

    def resume(self, job: int) -> JobSummary:
        """Resume a job that is paused, cancelled or failed."""
        return self._change(job, "resume")

    def release(self, job: int) -> JobSummary:
        """Queue a quarantined job and its quarantined builds again; for administrators."""
        return self._change(job, "release")

    def raise_budget(
        self, job: int, *, trials: int | None = None, seconds: float | None = None
    ) -> JobSummary:
        """Raise the limits of a job; smaller ones change nothing."""
        limits = {"trials": trials, "seconds": seconds}
        return self._change(job, "budget", {k: v for k, v in limits.items() if v is not None})

    def set_priority(self, job: int, priority: int) -> JobSummary:
        """Change the priority of a job; one more doubles its share of device time."""
        return self._change(job, "priority", {"priority": priority})

    def label(
        self, job: int, *, tags: Sequence[str] | None = None, note: str | None = None
    ) -> JobSummary:
        """Replace the tags of a job, its note, or both; None leaves them, and empty ones remove."""
        labels = {"tags": None if tags is None else list(tags), "note": note}
        body = {name: value for name, value in labels.items() if value is not None}
        return self._transport.read(JobSummary, "PATCH", f"/jobs/{job}", json=body)

    def delete(self, job: int) -> None:
        """Remove a job that does not run from all lists; its measurements stay."""
        self._transport.request("DELETE", f"/jobs/{job}")

    def build(
        self, job: int, *, strict: bool = False, model_index: int = 0, profile: bool = False
    ) -> Build:
        """Request the library of a job's network, built with the current best records.

        Args:
            job: Number of the job.
            strict: Fail if a subgraph has no record.
            model_index: Index of the network among those of the job, from 0.
            profile: Have the service profile the library, too; see :meth:`profile`.
        """
        body = {"strict": strict, "model_index": model_index, "profile": profile}
        return self._transport.read(Build, "POST", f"/jobs/{job}/build", json=body)

    def wait_for_build(self, build: Build) -> Build:
        """Wait until a requested build has ended, and return it.

        Raises:
            ServerError: If the library cannot be built.
        """
        while build.state not in ("done", "failed"):
            time.sleep(_POLL_INTERVAL_SECS)
            build = call_until_available(partial(self._build_of, build), _RECONNECT_TIMEOUT_SECS)
        if build.state == "failed":
            raise ServerError(f"build {build.id} of job {build.job_id} failed: {build.message}")
        return build

    def profile(self, job: int) -> "LibraryProfile":
        """Return the last profile of a job's library."""
        from tuner.profiling.results import StoredProfile

        return self._transport.read(StoredProfile, "GET", f"/jobs/{job}/profile").profile

    def upload_profile(self, job: int, profile: "LibraryProfile") -> "LibraryProfile":
        """Store the profile of a job's library for its page; return it as the service judges it."""
        from tuner.profiling.results import StoredProfile, as_json

        body = as_json(profile)
        path = f"/jobs/{job}/profile"
        return self._transport.read(StoredProfile, "PUT", path, json=body).profile

    def download_library(
        self,
        job: int,
        out: Path,
        *,
        model_index: int = 0,
        received: downloads.Received = lambda _n, _all: None,
    ) -> manifests.Manifest:
        """Download the newest library of a job into a folder, and verify it.

        The folder is replaced at once, after all files have arrived. A library is code: the
        settings ``trusted_keys`` and ``signatures`` say whose are accepted.

        Args:
            job: Number of the job.
            out: Folder of the library.
            model_index: Index of the network among those of the job, from 0.
            received: Callback that gets the bytes received so far and the size of the archive.

        Raises:
            RequestRejected: If the job has no finished build.
            RequestError: If the trusted keys cannot be read.
            WorkError: If the library arrives damaged, its signature is refused, or it cannot be
                written.
        """
        signatures = policy_of(read_settings({}))
        with tempfile.TemporaryFile() as archive:
            params = {"model_index": model_index}
            path = f"/jobs/{job}/library"
            downloads.fetch(self._transport, path, params, archive, received)
            replace_folder(out, lambda folder: downloads.unpack(archive, folder, signatures))
        return manifests.read(out)

    def best_records(
        self,
        *,
        workload: str | None = None,
        name: str | None = None,
        target: int | None = None,
        job: int | None = None,
    ) -> Rows[BestView]:
        """Return the best record of every task, or of the tasks of one workload, target or job.

        ``workload`` is a hash or its beginning, ``name`` a part of the workload's name.
        """
        params = {"workload": workload, "name": name, "target": target, "job": job}
        return Rows(self._pages(BestView, "/records/best", params))

    def list_records(
        self,
        *,
        workload: str | None = None,
        name: str | None = None,
        task: int | None = None,
        failed: bool = False,
    ) -> Iterator[RecordView]:
        """Iterate over measure records, the newest first; see :meth:`best_records`."""
        params = {"workload": workload, "name": name, "task": task, "failed": failed or None}
        return self._pages(RecordView, "/records/list", params)

    def record(self, record: int) -> RecordDetails:
        """Return a measure record with its trace."""
        return self._transport.read(RecordDetails, "GET", f"/records/{record}")

    def record_code(
        self, record: int, *parts: str, timeout_secs: float = _CODE_TIMEOUT_SECS
    ) -> dict[str, str]:
        """Have the service compile a record again, and return parts of its code.

        Args:
            record: Number of the record.
            parts: ``schedule``, ``source`` and ``assembly``; all of them by default.
            timeout_secs: Time to wait for a worker of the service.

        Raises:
            ServerError: If a part cannot be printed, or not in time.
        """
        path, end = f"/records/{record}/code", time.monotonic() + timeout_secs
        chosen = tuple(dict.fromkeys(parts or CODE_PARTS))
        code = self._transport.read(RecordCode, "POST", path, json={"parts": list(chosen)})
        while True:
            items = {item.part: item for item in code.items if item.part in chosen}
            for name, item in items.items():
                if item.message is not None:
                    raise ServerError(f"no {name} of record {record}: {item.message}")
            texts = {name: item.text for name, item in items.items() if item.text is not None}
            if len(texts) == len(chosen):
                return {name: texts[name] for name in chosen}
            if time.monotonic() >= end:
                raise ServerError(f"no worker printed record {record} in {timeout_secs:.0f} s")
            time.sleep(_POLL_INTERVAL_SECS)
            code = self._transport.read(RecordCode, "GET", path)

    def export_records(self, *, target: int | None = None) -> Iterator[str]:
        """Yield the lines of a log of all records, or of one target's, as they arrive.

        Raises:
            ConnectError: If the connection breaks; the lines before are an incomplete log.
        """
        params = {} if target is None else {"target": target}
        with self._transport.stream("GET", "/records", params=params) as response:
            for line in streams.lines_of(response.iter_bytes()):
                yield f"{line}\n"

    def import_records(self, log: Iterable[bytes], *, trust: bool = False) -> Imported:
        """Send a log of records while reading it; the service imports all of it or nothing.

        Args:
            log: Bytes of the log in pieces of any size, or an open file.
            trust: True to take the records as measured by the service; they are claims otherwise.
        """
        content, headers = uploads.log_body(log)
        response = self._transport.send(
            "POST",
            "/records",
            content=content,
            headers=headers,
            params={"trust": trust},
            timeout=_UPLOAD_TIMEOUT_SECS,
        )
        return read_answer(Imported, response.content)

    def networks(self) -> Iterator[NetworkInfo]:
        """Iterate over the networks of the service, the newest first."""
        return self._pages(NetworkInfo, "/networks", {})

    def network_tasks(self, network: int, target: int) -> list[NetworkTask]:
        """Return the tasks of a network on a target."""
        params = {"target": target}
        return list(self._pages(NetworkTask, f"/networks/{network}/tasks", params))

    def targets(self) -> Iterator[TargetInfo]:
        """Iterate over the targets of the service, the newest first."""
        return self._pages(TargetInfo, "/targets", {})

    def workers(self) -> Iterator[WorkerInfo]:
        """Iterate over the processes that measure or are on standby."""
        return self._pages(WorkerInfo, "/workers", {})

    def devices(self) -> Iterator[DeviceInfo]:
        """Iterate over the devices, sorted by name."""
        return self._pages(DeviceInfo, "/devices", {})

    def libraries(self) -> Iterator[LibraryInfo]:
        """Iterate over the libraries in the build cache of the service."""
        return self._pages(LibraryInfo, "/libraries", {})

    def audit(self) -> Iterator[AuditEntry]:
        """Iterate over the audit log, the newest entry first; requires the scope admin."""
        return self._pages(AuditEntry, "/audit", {})

    def usage(self) -> TokenInfo:
        """Return the token of this client, with its use of quotas."""
        return self._transport.read(TokenInfo, "GET", "/usage")

    def webhook_secret(self) -> str:
        """Return the secret that signs the webhooks of the jobs of this client's token."""
        return self._transport.read(WebhookSecret, "GET", "/usage/webhook-secret").secret

    def health(self) -> Health:
        """Return the condition of the service."""
        return read_health(self._transport)

    def _change(self, job: int, action: str, body: dict[str, Any] | None = None) -> JobSummary:
        return self._transport.read(JobSummary, "POST", f"/jobs/{job}/{action}", json=body)

    def _build_of(self, build: Build) -> Build:
        path = f"/jobs/{build.job_id}/builds/{build.id}"
        return self._transport.read(Build, "GET", path, params={"wait": _MAX_WAIT_SECS})

    def _pages(
        self, kind: type[Item], path: str, params: dict[str, Any], cursor: str = "cursor"
    ) -> Iterator[Item]:
        query = {name: value for name, value in params.items() if value not in (None, "", [])}
        query["limit"] = _PAGE_SIZE
        page_of = Page[kind]  # type: ignore[valid-type]
        while True:
            page: Page[Item] = self._transport.read(page_of, "GET", path, params=query)
            yield from page.items
            if page.next is None:
                return
            query[cursor] = page.next
