"""The page of a job shows the last profile of its network's library."""

import re

import httpx
import pytest

from api.settings import ApiSettings
from records import jobs
from records.models import Network, Target
from records.tuning import profiles
from tests.api import make
from tests.api.conftest import Served, serving
from tests.tuner.profiling.small_profile import PROFILE
from tuner.profiling.results import as_json, from_json

_BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def page_of(served: Served, content: dict[str, object] | None) -> httpx.Response:
    """Store a job, and a profile of its network if there is one; return the job's page."""
    with served.sessions.begin() as session:
        job = jobs.get_job(session, make.tuned(session))
        network = session.get_one(Network, job.network_id)
        target = session.get_one(Target, job.target_id)
        if content is not None:
            row = profiles.find(session, network.sha256, target.fingerprint)
            assert row == (network.id, target.id)
            profiles.store_profile(session, *row, content)
    return served.client.get("/jobs/1", headers=_BROWSER)


def test_the_profile_of_the_network_is_shown(quick: ApiSettings) -> None:
    """Kernel, variant, nodes, peer and verdict are in the table, escaped; the calls in a chart."""
    with serving(quick) as served:
        text = page_of(served, as_json(PROFILE)).text

    section = text[text.index('id="profile"') : text.index('id="picks"')]
    assert "conv2d_add_relu[1x8x8x8] by winograd-4x4" in section
    assert "conv_&lt;1&gt;, bias, relu_1, pool" in section
    assert "tuner tune net.onnx" in section
    assert "1.5000" in section
    assert 'class="compute" x="0.000" width="1000.000"' in section
    assert "The same nodes in onnxruntime" in section
    assert not re.search(r"<[^>]+ (?:style|on[a-z]+)=", section)


@pytest.mark.parametrize("content", [None, {"model_name": "of another version"}])
def test_a_job_without_a_profile_says_how_to_get_one(
    quick: ApiSettings, content: dict[str, object] | None
) -> None:
    """A profile of another version is as good as none."""
    with serving(quick) as served:
        answer = page_of(served, content)

    assert answer.status_code == 200
    assert "No profile yet" in answer.text


def test_a_profile_replaces_the_one_before(served: Served) -> None:
    """One row is kept for a network on a target, on both databases; other owners have theirs."""
    page_of(served, as_json(PROFILE))
    with served.sessions.begin() as session:
        job = jobs.get_job(session, 1)
        network = session.get_one(Network, job.network_id)
        target = session.get_one(Target, job.target_id)
        profiles.store_profile(session, network.id, target.id, {"second": True})
        assert profiles.find(session, "0" * 64, target.fingerprint) is None
        profiles.store_profile(session, network.id, target.id, {"third": True}, "ada")
        contents = [
            row and row.content
            for owner in ("", "eve", "ada")
            for row in [profiles.profile_of(session, network.id, target.id, owner)]
        ]

    assert contents == [{"second": True}, {"second": True}, {"third": True}]


def test_a_profile_survives_its_storage() -> None:
    """The profile that is read equals the one that was stored."""
    assert from_json(as_json(PROFILE)) == PROFILE
