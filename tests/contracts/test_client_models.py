"""The client reads answers with the shapes that the API declares, and sends its options."""

import types
import typing
from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

import pytest
from fastapi.routing import APIRoute

from api.events import encode
from api.routes import catalogue, jobs, libraries, profiles, records, tasks, tune, usage
from records.models import Event as EventRow
from records.models import now
from tuner import schemas
from tuner.client import TunerClient, models
from tuner.client.streams import parse_events
from tuner.profiling.results import LibraryProfile, StoredProfile
from tuner.reporting.job_report import JobReport

_ROUTERS = (catalogue, jobs, libraries, profiles, records, tasks, tune, usage)
# Shapes that the client imports when it reads them.
_LATE = {"LibraryProfile": LibraryProfile, "StoredProfile": StoredProfile}
# A stream of events and the probes declare no model; a report is read by several requests,
# a profile out of a stored one.
_UNDECLARED = {schemas.Event, models.Health, JobReport, LibraryProfile}


@pytest.mark.parametrize("name", schemas.__all__)
def test_a_field_that_may_be_null_has_a_default(name: str) -> None:
    """A client reads the answer of an older service, which lacks the field."""
    shape: Any = getattr(schemas, name)
    hints = get_type_hints(shape)

    required = {
        field.name
        for field in fields(shape)
        if field.default is MISSING and field.default_factory is MISSING
    }

    assert not {field for field in required if types.NoneType in get_args(hints[field])}


def test_the_client_reads_with_the_declared_shapes() -> None:
    """Each method returns, or iterates over, a shape that some operation declares."""
    declared = set()
    for module in _ROUTERS:
        for route in module.router.routes:
            assert isinstance(route, APIRoute)
            model: Any = route.response_model
            hints = get_type_hints(model) if isinstance(model, type) else {}
            declared |= {model, *get_args(model), *get_args(hints.get("items"))}

    read = {
        shape
        for method in vars(TunerClient).values()
        if isinstance(method, types.FunctionType) and not method.__name__.startswith("_")
        for shape in _shapes(get_type_hints(method, localns=_LATE).get("return"))
    }

    assert {schemas.JobSummary, schemas.Build, schemas.WorkerInfo} < read
    assert read - _UNDECLARED <= declared


def _shapes(hint: Any) -> set[Any]:
    kinds = (hint, *get_args(hint)) if typing.get_origin(hint) else (hint,)
    return {kind for kind in kinds if hasattr(kind, "__dataclass_fields__")} - {_MANIFEST}


_MANIFEST = get_type_hints(TunerClient.download_library)["return"]


def test_an_event_arrives_as_it_was_sent() -> None:
    """An event survives the text of a stream."""
    row = EventRow(job_id=1, sequence=7, kind="trial", created=now(), data={"latency_secs": 0.5})

    (event,) = parse_events(encode(row).decode().split("\n"))

    assert event is not None
    assert {field.name for field in fields(event)} == {"sequence", "kind", "created", "data"}
    assert (event.sequence, event.kind, event.created, event.data) == (
        row.sequence,
        row.kind,
        row.created,
        row.data,
    )
