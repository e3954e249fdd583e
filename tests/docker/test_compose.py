"""The promises of compose.yaml."""

import re
from pathlib import Path
from typing import Any

import pytest

from records.storage.roles import API, PASSWORDS, WORKER
from tests.docker import images
from tests.docker.images import ROOT
from tuner.settings import request_caps

_VARIABLE = re.compile(r"\$\{(\w+)(:[-?][^}]*)?\}")

SERVICES = ("postgres", "api", "worker", "migrate")
OURS = SERVICES[1:]


@pytest.fixture
def compose() -> dict[str, Any]:
    """compose.yaml as it is written."""
    return images.read_compose()


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_confined(compose: dict[str, Any], name: str) -> None:
    """They gain no rights and write to volumes and memory; the API alone is reached."""
    service = compose["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"]
    assert not service["mem_limit"].endswith((":-}", ":-0}"))
    assert not {"privileged", "network_mode"} & set(service)
    # PostgreSQL's image begins as root.
    assert name == "postgres" or "user" not in service
    published = ["${TUNER_PUBLISH:-127.0.0.1:8080}:8080"] if name == "api" else None
    assert service.get("ports") == published
    assert published or service["networks"] == ["inside"]
    assert compose["networks"]["inside"] == {"internal": True}


def test_images_are_pinned(compose: dict[str, Any]) -> None:
    """No image is :latest; ours carry the version of the project."""
    version = images.read_project()["version"]
    images_of = {"api": "api", "worker": "worker", "migrate": "api"}
    for name, image in images_of.items():
        named = compose["services"][name]["image"]
        assert named == f"subgraph-tuner-{image}:${{TUNER_TAG:-{version}}}"
    database = compose["services"]["postgres"]["image"]
    assert re.fullmatch(r"\$\{TUNER_POSTGRES_IMAGE:-postgres:\d+\.\d+-\w+\}", database)


@pytest.mark.parametrize("name", OURS)
def test_base_may_be_a_digest(compose: dict[str, Any], name: str) -> None:
    """Every image is built on what .env says, and by default on what its Dockerfile says."""
    build = compose["services"][name]["build"]
    dockerfile = Path(build["dockerfile"]).stem
    (tag,) = (
        text.removeprefix("BASE=")
        for text in images.texts(images.read_dockerfile(dockerfile), "ARG")
        if text.startswith("BASE=")
    )
    assert build["args"] == {"BASE": f"${{TUNER_BASE_IMAGE:-{tag}}}"}


def test_locks_are_on_a_volume_of_their_own(compose: dict[str, Any]) -> None:
    """The data directory may be shared with other machines, whose CPUs are other ones."""
    worker = compose["services"]["worker"]
    folder = worker["environment"]["TUNER_RUNTIME_DIR"]
    assert f"locks:{folder}" in worker["volumes"]
    assert not folder.startswith("/data")
    assert any(
        f" {folder} " in text for text in images.texts(images.read_dockerfile("worker"), "RUN")
    )


def test_folders_of_the_api_are_the_volumes_of_its_image(compose: dict[str, Any]) -> None:
    """A new volume gets the owner and the mode that the folder has in the image."""
    (volumes,) = images.texts(images.read_dockerfile("api"), "VOLUME")
    mounts = compose["services"]["api"]["volumes"]
    assert images.command_of(volumes) == [mount.split(":")[1] for mount in mounts]


def test_every_process_has_a_role_of_its_own(compose: dict[str, Any]) -> None:
    """Only the one that migrates owns the database, and it ends before the others start."""
    services = compose["services"]
    roles = {name: services[name]["environment"]["TUNER_DATABASE"] for name in OURS}
    assert roles == {
        "migrate": "postgresql://tuner@postgres/tuner",
        "api": f"postgresql://{API}@postgres/tuner",
        "worker": f"postgresql://{WORKER}@postgres/tuner",
    }
    assert services["postgres"]["environment"]["POSTGRES_USER"] == "tuner"
    assert set(PASSWORDS.values()) <= set(services["migrate"]["environment"])
    assert services["migrate"]["restart"] == "no"
    assert services["migrate"]["command"] == ["python", "-P", "-m", "records.storage.roles"]
    for name in ("api", "worker"):
        condition = services[name]["depends_on"]["migrate"]
        assert condition == {"condition": "service_completed_successfully"}


def test_passwords_have_no_default(compose: dict[str, Any]) -> None:
    """Without them nothing starts, and the message says where to set them."""
    services = compose["services"]
    given = {
        "TUNER_DB_PASSWORD": [
            services["postgres"]["environment"]["POSTGRES_PASSWORD"],
            services["migrate"]["environment"]["PGPASSWORD"],
        ],
        "TUNER_DB_API_PASSWORD": [services["api"]["environment"]["PGPASSWORD"]],
        "TUNER_DB_WORKER_PASSWORD": [services["worker"]["environment"]["PGPASSWORD"]],
    }
    for name, values in given.items():
        assert set(values) == {f"${{{name}:?set it in .env, see .env.example}}"}
        assert f"{name}=\n" in (ROOT / ".env.example").read_text()
    assert "/.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_every_variable_is_explained() -> None:
    """The variables of the compose files are those of .env.example; all others have defaults."""
    text = "".join((ROOT / p).read_text() for p in ("compose.yaml", "docker/compose.cuda.yaml"))
    used = dict(_VARIABLE.findall(text))
    explained = set(re.findall(r"^#?(\w+)=", (ROOT / ".env.example").read_text(), re.M))
    assert set(used) == explained
    without_default = {name for name, rest in used.items() if not rest.startswith(":-")}
    assert without_default == {"TUNER_DB_PASSWORD", *PASSWORDS.values()}


@pytest.mark.parametrize("name", ["api", "worker"])
def test_every_limit_on_requests_can_be_set(compose: dict[str, Any], name: str) -> None:
    """The API refuses requests by them; the worker chooses sizes of rounds by one of them."""
    environment = compose["services"][name]["environment"]

    for variable in (f"TUNER_{key.upper()}" for key in request_caps.KEYS):
        assert environment[variable] == f"${{{variable}:-}}"


def test_worker_is_bound_to_cores_without_a_quota(compose: dict[str, Any]) -> None:
    """Nothing stops a worker in the middle of a measurement."""
    worker = compose["services"]["worker"]
    assert worker["cpuset"] == "${TUNER_WORKER_CPUS:-}"
    assert not {"cpus", "cpu_quota", "deploy"} & set(worker)
