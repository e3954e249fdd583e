"""Every front end takes the options of a job under their names in the spec."""

from typing import get_type_hints

import pytest
from pydantic import TypeAdapter

import tuner.api
from api.uploads.forms import TuneForm
from tuner.cli.main import make_program
from tuner.cli.options import option_of
from tuner.client.models import TuneFields
from tuner.jobs import fields
from tuner.jobs.spec import TuneSpec
from tuner.settings import SettingOverrides

NAMES = list(TuneSpec.model_fields)
TUNE = make_program().commands["tune"]
PARAMETERS = {parameter.name: parameter for parameter in TUNE.params}


def test_keywords_are_the_fields_of_the_spec() -> None:
    """The keywords for type checkers have the names and the order of the fields."""
    assert list(get_type_hints(fields.SpecFields)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_keyword_has_the_type_of_its_field(name: str) -> None:
    """A type checker accepts the default of the spec."""
    hint = get_type_hints(fields.SpecFields)[name]

    TypeAdapter(hint).validate_python(getattr(TuneSpec(), name), strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_an_option_of_the_command_line_is_a_field(name: str) -> None:
    """It has the description and the default of the spec."""
    field, option = TuneSpec.model_fields[name], PARAMETERS[name]

    assert option.opts == [option_of(name)]
    assert option.help == field.description
    assert option.default in (field.default, [])


def test_the_form_has_every_field() -> None:
    """The form adds fields for the models."""
    own = {
        "zoo",
        "target",
        "input",
        "bucket",
        "mask",
        "random_weights",
        "name",
        "webhook",
        "models_of",
    }

    assert set(TuneForm.model_fields) == {*NAMES, *own}


def test_the_client_sends_every_field() -> None:
    """The client adds fields for the models."""
    own = {"target", "inputs", "buckets", "masks", "random_weights", "name", "webhook"}

    assert set(get_type_hints(TuneFields)) == {*NAMES, *own}


def test_the_python_api_takes_every_field() -> None:
    """The Python API adds settings."""
    own = get_type_hints(SettingOverrides)

    assert set(get_type_hints(tuner.api.TuneArguments)) == {*NAMES, *own}
