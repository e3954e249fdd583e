"""The dashboard and the alert rules name metrics and labels that the service exports."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from api.settings import ApiSettings
from records import jobs, measure_records, tasks
from records.models import now
from records.service import leases
from tests.api import make
from tests.api.conftest import serving
from tests.docs.documents import ROOT
from tests.records import make as rows

FOLDER = ROOT / "deploy" / "monitoring"
# Labels that Prometheus adds to every sample; it renames one of the same name in a sample.
_ADDED = {"instance", "job"}


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    return list(dashboard["panels"])


def expressions() -> Iterator[str]:
    """Yield every expression of the rules and of the dashboard."""
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in panels() for target in panel["targets"])


@pytest.fixture
def exported(quick: ApiSettings) -> dict[str, set[str]]:
    """Labels by the name of each sample of a service with a job and a worker."""
    with serving(quick) as served:
        with served.sessions.begin() as session:
            job_id = make.tuned(session, n_trials=4)
            second = tasks.tasks_of_job(session, jobs.get_job(session, job_id))[1].task_id
            measure_records.add_record(session, rows.timed(second, "only", 0.02))
            make.worker(session, progress=now())
            assert leases.acquire(session, leases.COORDINATOR, "here:1", 10.0)
        served.client.get("/api/v1/jobs")
        text = served.client.get("/metrics").text
    labels: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            names = {f"exported_{n}" if n in _ADDED else n for n in sample.labels}
            labels[sample.name] |= names
    return labels


def test_every_metric_is_exported(exported: dict[str, set[str]]) -> None:
    """With all the labels that its expression selects or groups by."""
    named = set()
    for expression in expressions():
        names = re.findall(r"subgraph_tuner_\w+", expression)
        assert names or "up{" in expression, expression
        named |= set(names)
        assert set(names) <= set(exported), expression
        selected = set(re.findall(r"[{,]\s*(\w+)\s*(?:=|!=|=~|!~)", expression))
        grouped = {
            word.strip()
            for group in re.findall(r"\b(?:by|without) \(([^)]*)\)", expression)
            for word in group.split(",")
        }
        offered = set().union(_ADDED, *(exported[name] for name in names))
        assert selected | grouped <= offered, expression

    assert len(named) > 12


def test_rules_are_complete() -> None:
    """Each has a name of its own, a duration, a severity and a sentence for people."""
    names = [rule["alert"] for rule in rules()]

    assert len(names) == len(set(names)) > 5
    for rule in rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert re.fullmatch(r"\d+[ms]", rule["for"])
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"].endswith(".")


def test_every_alert_has_a_remedy() -> None:
    """docs/operations.md says what to do about each."""
    text = (ROOT / "docs" / "operations.md").read_text()

    assert [rule["alert"] for rule in rules() if f"`{rule['alert']}`" not in text] == []
