"""Workers do not get the secrets of the process that starts them."""

from pathlib import Path

import pytest

from tests.tuner.executors import helpers
from tuner.workers.confinement.environment import scrubbed
from tuner.workers.pool import Pool, WorkerSettings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TUNER_DATABASE", "sqlite:///x"),
        ("PGPASSWORD", "x"),
        ("TUNER_TOKEN", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("GITHUB_PAT", "x"),
        ("OPENAI_KEY", "x"),
        ("NVIDIA_API_KEY", "x"),
        ("TORCH_HUB_TOKEN", "x"),
        ("JWT", "x"),
        ("DB_PASS", "x"),
        ("SSH_AUTH_SOCK", "/tmp/agent"),
        ("KUBECONFIG", "/home/me/.kube/config"),
        ("MY_OWN", "x"),
        ("CUDA_STORE", "https://me:secret@example.com/cache"),
    ],
)
def test_what_is_not_permitted_is_left_out(name: str, value: str) -> None:
    """Variables are permitted by name; of those of libraries, none with the name of a secret."""
    assert name not in scrubbed({name: value, "PATH": "/bin"})


@pytest.mark.parametrize(
    "name",
    ["PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "TVM_LOG_DEBUG", "PYTHONPATH",
     "LC_ALL", "OMP_NUM_THREADS", "ORT_LOGGING_LEVEL", "LD_PRELOAD"],
)  # fmt: skip
def test_what_programs_need_stays(name: str) -> None:
    """Compilers, drivers and Python find what they need."""
    assert scrubbed({name: "/x:/y"})[name] == "/x:/y"


def test_the_operator_may_name_more() -> None:
    """By name, or by the beginning of names."""
    environ = {
        "TUNER_WORKER_ENVIRONMENT": "MY_OWN, TOY_*",
        "MY_OWN": "1",
        "TOY_A": "2",
        "YOUR": "3",
    }

    assert {"MY_OWN", "TOY_A"} < set(scrubbed(environ))
    assert not {"YOUR", "TUNER_WORKER_ENVIRONMENT"} & set(scrubbed(environ))


@pytest.mark.parametrize("name", ["PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "CPATH"])
def test_search_paths_do_not_lead_to_the_current_folder(name: str) -> None:
    """Programs take an empty entry for it."""
    assert scrubbed({name: ":/x:.::lib:/y:"})[name] == "/x:/y"
    assert name not in scrubbed({name: ":"})


def test_a_worker_never_had_the_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not even in the memory that the kernel filled when it started."""
    monkeypatch.setenv("TUNER_DATABASE", "postgresql://me:secret@db/tuner")
    monkeypatch.setenv("TUNER_TEST_SETTING", "kept")
    monkeypatch.setenv("GITHUB_PAT", "a-pat")
    with Pool(WorkerSettings(1, tmp_path / "worker.log")) as pool:
        first = pool.call(helpers.NAME, "read_text", "/proc/self/environ")
        kept = pool.call(helpers.NAME, "environ", "TUNER_TEST_SETTING")

    assert "me:secret" not in first
    assert "a-pat" not in first
    assert kept == "kept"
