"""Submission of an uploaded form as a job, for REST and the dashboard."""

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import anyio
from fastapi import Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from api.app_state import State, state_of
from api.clients import access
from api.clients.auth import Subject
from api.errors import Problem, wrong_field
from api.settings import MIB, ApiSettings
from api.uploads.forms import TuneForm, read_form
from api.uploads.uploads import Staged, stage
from api.webhooks.addresses import check_url
from records import jobs
from records.models import Job
from records.service import submissions, webhooks
from records.service.owners import audit
from records.service.owners.access import check_visible
from records.service.owners.quotas import add_upload, check_upload
from records.service.service_models import Upload
from tuner.errors import RequestError
from tuner.jobs.submission import submit_request, upload_reference

_KEY_LIFETIME = timedelta(hours=24)
_MAX_FIELDS, _MAX_FILES = 400, 16
# Fields, unlike files, are held in memory.
_MAX_FIELD_BYTES = 64 * 1024
_MAX_KEY_CHARS = 200
# Part of a body that its fields and boundaries may take.
_MAX_FORM_BYTES = MIB


async def submit_form(
    request: Request, subject: Subject, key: str | None = None
) -> tuple[int, bool]:
    """Receive a form with its models and submit it; return the job, and whether it is new.

    Call it after authentication, because it receives the body of the request.

    Args:
        request: Request with the form as its unread body.
        subject: Authenticated sender.
        key: Idempotency-Key; the same form with the same key is the same job.

    Raises:
        Problem: If the form is invalid.
        RequestError: If the request in it is invalid.
        KeyReused: If the key was used for another form.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise Problem("invalid", "the body must be multipart/form-data")
    if key is not None and not (
        0 < len(key) <= _MAX_KEY_CHARS and key.isascii() and key.isprintable()
    ):
        raise Problem(
            "invalid", f"an Idempotency-Key must have 1 to {_MAX_KEY_CHARS} printable characters"
        )
    state = state_of(request)
    async with state.incoming.receiving(request, subject) as n_bytes:
        n_model_bytes = n_bytes - _MAX_FORM_BYTES
        if n_model_bytes > 0 and not subject.viewer.is_admin:
            await state.reads.run(_check_quotas, state.settings, subject, key, n_model_bytes)
        async with _received(request) as form:
            # The page shows an invalid form again.
            request.state.form = form
            options, files = read_form(form)
            async with _staged(state, files) as staged:
                submitted = _Submitted(options, staged, subject, key)
                return await state.writes.run(_store, state.settings, submitted)


@asynccontextmanager
async def _received(request: Request) -> AsyncIterator[FormData]:
    """Receive a form, and close its files in any case.

    Raises:
        Problem: If the form is malformed or has too many parts.
    """
    parser = MultiPartParser(
        request.headers,
        request.stream(),
        max_files=_MAX_FILES,
        max_fields=_MAX_FIELDS,
        max_part_size=_MAX_FIELD_BYTES,
    )
    # Private; see ADR 0028.
    opened: list[Any] = parser._files_to_close_on_error
    try:
        form = await parser.parse()
        # A part that never ended is missing in the form, and Starlette drops its file.
        if len(opened) != sum(isinstance(value, UploadFile) for _, value in form.multi_items()):
            raise Problem("bad-request", "the form is cut off")
        yield form
    except MultiPartException as error:
        raise Problem("bad-request", f"the form cannot be read: {error.message}") from error
    finally:
        for file in opened:
            file.close()


@dataclass(frozen=True)
class _Submitted:
    """A received form: its options, its models, its sender and its Idempotency-Key."""

    options: TuneForm
    staged: list[Staged]
    subject: Subject
    key: str | None


def _check_quotas(
    session: Session, settings: ApiSettings, subject: Subject, key: str | None, n_bytes: int
) -> None:
    """Check the quotas for uploads before a body is received; a repeated request needs none.

    Raises:
        QuotaExceeded: If the body exceeds one.
    """
    if key is None or not submissions.has_key(session, subject.name, key):
        check_upload(session, subject.name, settings.quotas, n_bytes)


@asynccontextmanager
async def _staged(state: State, files: list[UploadFile]) -> AsyncIterator[list[Staged]]:
    """Copy the models of a form, before the transaction, and discard what it does not keep."""
    staged: list[Staged] = []
    try:
        async with state.files.slot():
            for file in files:
                arguments = (file.file, file.filename or "", state.settings.data_dir)
                staged.append(await run_in_threadpool(stage, *arguments))
        yield staged
    finally:
        with anyio.CancelScope(shield=True):
            await run_in_threadpool(_discard, staged)


def _discard(staged: list[Staged]) -> None:
    for model in staged:
        model.discard()


def _store(session: Session, settings: ApiSettings, submitted: _Submitted) -> tuple[int, bool]:
    staged, subject, key = submitted.staged, submitted.subject, submitted.key
    content = [submitted.options.model_dump(mode="json"), [(m.sha256, m.name) for m in staged]]
    fingerprint = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    job_id = _job_of_key(session, subject, key, fingerprint)
    if job_id is not None:
        return job_id, False
    job, is_new = _submit(session, settings, submitted)
    if key is not None:
        submissions.keep_key(session, subject.name, key, fingerprint, job.id)
    detail: dict[str, Any] = {
        "name": job.name,
        "created": is_new,
        "models": [m.sha256 for m in staged],
    }
    if submitted.options.models_of is not None:
        detail["models_of"] = submitted.options.models_of
    audit.log_action(session, subject.name, subject.address, "tune", job.id, detail)
    for model in staged:
        model.keep()
    return job.id, is_new


def _submit(session: Session, settings: ApiSettings, submitted: _Submitted) -> tuple[Job, bool]:
    options, staged, subject = submitted.options, submitted.staged, submitted.subject
    access.check_priority(subject, options.priority, settings)
    again = [] if options.models_of is None else _uploads_of(session, subject, options.models_of)
    models = [(model.reference, model.name) for model in staged]
    models += [(upload_reference(upload.sha256), name) for upload, name in again]
    request = options.request(models)
    hooks = settings.webhooks
    if options.webhook:
        if hooks is None:
            raise RequestError("is not possible: this service sends no webhooks", field="webhook")
        check_url(options.webhook, allows_private=hooks.allows_private)
    with access.enforced(session, subject, settings):
        job, is_new = submit_request(
            session,
            request,
            options.name,
            owner=subject.owner,
            project=subject.project,
            caps=settings.tuner.request_caps,
        )
        for model in staged:
            add_upload(session, job.id, subject.owner, model.sha256, model.n_bytes)
        for upload, _ in again:
            add_upload(session, job.id, subject.owner, upload.sha256, upload.n_bytes, sent=False)
    if options.webhook:
        webhooks.register(session, job, options.webhook)
    if hooks is not None and hooks.url is not None:
        webhooks.register(session, job, hooks.url, of_service=True)
    return job, is_new


def _uploads_of(session: Session, subject: Subject, job_id: int) -> list[tuple[Upload, str]]:
    """Return the models that were uploaded with a job, each with its name.

    Raises:
        NoSuchRow: If the sender may not see the job, or it was deleted.
        Problem: If it has no uploaded model.
    """
    check_visible(session, subject.viewer, job_id)
    job = jobs.get_job(session, job_id)
    names = {
        str(model["reference"]): str(model.get("name", ""))
        for model in (job.request or {}).get("models", ())
    }
    rows = session.scalars(select(Upload).where(Upload.job_id == job_id).order_by(Upload.id))
    uploads = {upload_reference(row.sha256): row for row in rows}
    if not uploads:
        raise wrong_field("models_of", f"no model was uploaded with job {job_id}")
    return [(row, names.get(reference, "")) for reference, row in uploads.items()]


def _job_of_key(
    session: Session, subject: Subject, key: str | None, fingerprint: str
) -> int | None:
    if key is None:
        return None
    job_id = submissions.job_of_key(session, subject.name, key, fingerprint, _KEY_LIFETIME)
    # The key of a deleted job submits it again.
    return None if job_id is None or session.get_one(Job, job_id).hidden else job_id
