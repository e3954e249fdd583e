"""From an uploaded form to a job: the way of REST and of the dashboard alike."""

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from api.app_state import State, state_of
from api.auth import Subject
from api.errors import Problem
from api.forms import TuneForm, read_form
from api.uploads import Staged, stage
from records import audit, submissions
from records.models import Job
from tuner.jobs.submission import submit_request

_KEEP_KEYS = timedelta(hours=24)
_MOST_FIELDS, _MOST_FILES = 400, 16
# Of one field; fields are kept in memory.
_MOST_TEXT_BYTES = 64 * 1024
_MOST_KEY = 200


async def submit_form(
    request: Request, subject: Subject, key: str | None = None
) -> tuple[int, bool]:
    """Receive a form with its models, and make it a job; returns its number, and if it is new.

    Call it after the subject is known: nothing is received from anybody else.

    Args:
        request: Its body is the form, unread.
        subject: Who asks.
        key: The client's Idempotency-Key: the same form again is the same job.

    Raises:
        Problem: If the form is wrong.
        RequestError: If what it asks for is.
        KeyReused: If the key stands for another form.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise Problem("invalid", "the body must be multipart/form-data")
    _check_key(key)
    async with _received(request) as form:
        # A page shows a form again if something in it is wrong.
        request.state.form = form
        options, files = read_form(form)
        return await run_in_threadpool(_store, state_of(request), options, files, subject, key)


@asynccontextmanager
async def _received(request: Request) -> AsyncIterator[FormData]:
    """Receive a form, and close its files however that ends.

    Raises:
        Problem: If it is damaged, or has too many parts.
    """
    parser = MultiPartParser(
        request.headers,
        request.stream(),
        max_files=_MOST_FILES,
        max_fields=_MOST_FIELDS,
        max_part_size=_MOST_TEXT_BYTES,
    )
    opened: list[Any] = parser._files_to_close_on_error
    try:
        form = await parser.parse()
        # A part that never ended is in no form, and Starlette forgets its file.
        if len(opened) != sum(isinstance(value, UploadFile) for _, value in form.multi_items()):
            raise Problem("bad-request", "the form is cut off")
        yield form
    except MultiPartException as error:
        raise Problem("bad-request", f"the form cannot be read: {error.message}") from error
    finally:
        for file in opened:
            file.close()


def _store(
    state: State, options: TuneForm, files: list[UploadFile], subject: Subject, key: str | None
) -> tuple[int, bool]:
    staged: list[Staged] = []
    try:
        for file in files:
            staged.append(stage(file.file, file.filename or "", state.settings.data_dir))  # noqa: PERF401  a failure needs those before it
        fingerprint = _fingerprint(options, staged)
        with state.sessions.begin() as session:
            job_id = _job_of_key(session, subject, key, fingerprint)
            if job_id is not None:
                return job_id, False
            uploads = [(each.reference, each.name) for each in staged]
            job, is_new = submit_request(session, options.request(uploads), options.name)
            if key is not None:
                submissions.keep_key(session, subject.name, key, fingerprint, job.id)
            detail = {"name": job.name, "created": is_new, "models": [e.sha256 for e in staged]}
            audit.log_action(session, subject.name, subject.address, "tune", job.id, detail)
            for each in staged:
                each.keep()
            return job.id, is_new
    finally:
        for each in staged:
            each.discard()


def _job_of_key(
    session: Session, subject: Subject, key: str | None, fingerprint: str
) -> int | None:
    if key is None:
        return None
    found = submissions.job_of_key(session, subject.name, key, fingerprint, _KEEP_KEYS)
    # A job that was deleted since is asked for anew.
    return None if found is None or session.get_one(Job, found).hidden else found


def _fingerprint(options: TuneForm, staged: list[Staged]) -> str:
    content = [options.model_dump(mode="json"), [(each.sha256, each.name) for each in staged]]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _check_key(key: str | None) -> None:
    if key is not None and not (0 < len(key) <= _MOST_KEY and key.isascii() and key.isprintable()):
        raise Problem("invalid", f"an Idempotency-Key has 1 to {_MOST_KEY} printable characters")
