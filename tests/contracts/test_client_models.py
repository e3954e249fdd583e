"""What the client reads is what the API answers, field by field."""

import types
from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

from api import schemas
from api.events import encode
from api.forms import TuneForm
from records.models import Event as EventRow
from records.models import now
from tuner.client import models
from tuner.client.streams import parse_events

PAIRS = [
    (schemas.Submitted, models.Submitted),
    (schemas.Build, models.Build),
    (schemas.JobDetail, models.JobDetails),
    (schemas.Imported, models.Imported),
    (schemas.NetworkOut, models.NetworkInfo),
    (schemas.NetworkTask, models.NetworkTask),
    (schemas.TargetOut, models.TargetInfo),
    (schemas.WorkerOut, models.WorkerInfo),
    (schemas.DeviceOut, models.DeviceInfo),
    (schemas.LibraryOut, models.LibraryInfo),
    (schemas.Action, models.AuditEntry),
]


def may_be_none(hint: object) -> bool:
    """Return whether an annotation allows None."""
    return types.NoneType in get_args(hint)


@pytest.mark.parametrize(("answered", "read"), PAIRS, ids=[pair[1].__name__ for pair in PAIRS])
def test_fields_of_answers_have_one_name(answered: type, read: type) -> None:
    """The client asks for no field that is not there, and takes null where it may come."""
    theirs, ours = get_type_hints(answered), get_type_hints(read)

    assert set(ours) <= set(theirs)
    nullable = {name for name in ours if may_be_none(theirs[name])}
    assert nullable <= {name for name, hint in ours.items() if may_be_none(hint)}


def test_every_dataclass_of_the_client_is_compared() -> None:
    """But for those that are no answer: what a stream sends, and what the client concludes."""
    known = {read for _, read in PAIRS} | {models.Event, models.Health}
    found = {
        each
        for each in vars(models).values()
        if isinstance(each, type)
        and each.__module__ == models.__name__
        and hasattr(each, "__dataclass_fields__")
    }

    assert found == known


def test_options_of_a_job_have_one_name() -> None:
    """``inputs`` is sent as ``input``, and models as the form's own fields."""
    sent = {"input" if name == "inputs" else name for name in models.TuneFields.__annotations__}

    assert sent == set(TuneForm.model_fields) - {"zoo"}


def test_an_event_arrives_as_it_was_sent() -> None:
    """Through the text of a stream."""
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
