"""A device that knows a URL measures for a service, through a kill of the service."""

from pathlib import Path

import pytest

from records.models import MeasureRecord
from tests.service.rig import rig
from tests.waiting import wait_for
from tuner.client import TunerClient

_TRIALS = 24


@pytest.mark.in_ci
@pytest.mark.slow("10 s of tuning")
def test_a_job_and_its_library_on_a_device_elsewhere(tmp_path: Path) -> None:
    """The job ends with the service that is started again, and the device is listed."""
    with rig(f"sqlite:///{tmp_path / 'tuner.db'}", tmp_path, run_secs=0.05) as opened:
        url = opened.serve()
        service = tuple(opened.processes)
        locks = {"TUNER_RUNTIME_DIR": str(tmp_path / "locks of lab")}
        opened.start("lab", "--server", url, "--name", "lab", "--device", "cpu", **locks)
        wait_for(lambda: "lab/cpu is online" in [line["message"] for line in opened.logs()])
        with TunerClient(url) as client:
            submitted = client.tune(
                "zoo:mlp", target="llvm@lab", trials=_TRIALS, trials_per_round=4
            )

        job = submitted.job.id
        wait_for(lambda: opened.n_trials() >= 8, 60.0)
        for process in service:
            process.kill()
        opened.serve(int(url.rpartition(":")[2]))
        wait_for(lambda: opened.state(job) == "done", 60.0)
        build = opened.build(job)
        with TunerClient(url) as client:
            devices = [device.name for device in client.devices()]

        opened.check_counts(job)
        assert len(opened.all(MeasureRecord.id)) == _TRIALS
        assert "lab/cpu" in opened.all(MeasureRecord.worker)
    assert (build.state, build.message) == ("done", None)
    assert "lab/cpu" in devices
