"""The promises of compose.yaml."""

import re
from typing import Any

import pytest

from tests.docker import images
from tests.docker.images import ROOT

_VARIABLE = re.compile(r"\$\{(\w+)(:[-?][^}]*)?\}")

SERVICES = ("postgres", "api", "worker")


@pytest.fixture
def compose() -> dict[str, Any]:
    """compose.yaml as it is written."""
    return images.read_compose()


def test_services(compose: dict[str, Any]) -> None:
    """There are three processes and no more."""
    assert set(compose["services"]) == set(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_service_starts_again_and_stops_in_peace(compose: dict[str, Any], name: str) -> None:
    """Each comes back after a crash, has time to stop, and keeps its logs short."""
    service = compose["services"][name]
    assert service["restart"] == "unless-stopped"
    assert int(service["stop_grace_period"].removesuffix("s")) >= 20
    assert service["logging"]["options"]["max-size"]


@pytest.mark.parametrize("name", SERVICES)
def test_service_has_a_health_check(compose: dict[str, Any], name: str) -> None:
    """Each has a check, in compose.yaml or in its image."""
    service = compose["services"][name]
    if "healthcheck" in service:
        assert service["healthcheck"]["test"][0] == "CMD"
    else:
        assert service["build"]["dockerfile"] == f"docker/{name}.Dockerfile"
        assert images.texts(images.read_dockerfile(name), "HEALTHCHECK")


@pytest.mark.parametrize("name", ["api", "worker"])
def test_our_service_has_no_rights_to_gain(compose: dict[str, Any], name: str) -> None:
    """Each waits for PostgreSQL, gives up every capability and can gain none."""
    service = compose["services"][name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert service["depends_on"]["postgres"] == {"condition": "service_healthy"}
    assert not {"privileged", "user", "network_mode"} & set(service)


def test_images_are_pinned(compose: dict[str, Any]) -> None:
    """No image is :latest; ours carry the version of the project."""
    version = images.read_project()["version"]
    for name in ("api", "worker"):
        image = compose["services"][name]["image"]
        assert image == f"subgraph-tuner-{name}:${{TUNER_TAG:-{version}}}"
    assert re.fullmatch(r"postgres:\d+\.\d+-\w+", compose["services"]["postgres"]["image"])


def test_volumes_are_named_and_shared(compose: dict[str, Any]) -> None:
    """The database and the data have volumes; API and worker share the data."""
    mounts = {name: compose["services"][name]["volumes"] for name in SERVICES}
    assert mounts["api"] == mounts["worker"] == ["data:/data"]
    assert mounts["postgres"] == ["database:/var/lib/postgresql/data"]
    assert set(compose["volumes"]) == {"database", "data"}


def test_only_the_api_is_reached(compose: dict[str, Any]) -> None:
    """The API is published, on loopback unless said; the others have no way in and none out."""
    services = compose["services"]
    assert services["api"]["ports"] == ["${TUNER_PUBLISH:-127.0.0.1:8080}:8080"]
    for name in ("postgres", "worker"):
        assert "ports" not in services[name]
        assert services[name]["networks"] == ["inside"]
    assert compose["networks"]["inside"] == {"internal": True}


def test_password_has_no_default(compose: dict[str, Any]) -> None:
    """Without a password nothing starts, and the message says where to set it."""
    services = compose["services"]
    given = [
        services["postgres"]["environment"]["POSTGRES_PASSWORD"],
        services["api"]["environment"]["PGPASSWORD"],
        services["worker"]["environment"]["PGPASSWORD"],
    ]
    assert set(given) == {"${TUNER_DB_PASSWORD:?set it in .env, see .env.example}"}
    assert "TUNER_DB_PASSWORD=\n" in (ROOT / ".env.example").read_text()
    assert "/.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_every_variable_is_explained() -> None:
    """The variables of the compose files are those of .env.example; all others have defaults."""
    text = "".join((ROOT / p).read_text() for p in ("compose.yaml", "docker/compose.cuda.yaml"))
    used = dict(_VARIABLE.findall(text))
    explained = set(re.findall(r"^#?(\w+)=", (ROOT / ".env.example").read_text(), re.M))
    assert set(used) == explained
    without_default = {name for name, rest in used.items() if not rest.startswith(":-")}
    assert without_default == {"TUNER_DB_PASSWORD"}


def test_worker_is_bound_to_cores_without_a_quota(compose: dict[str, Any]) -> None:
    """Nothing stops a worker in the middle of a measurement."""
    worker = compose["services"]["worker"]
    assert worker["cpuset"] == "${TUNER_WORKER_CPUS:-}"
    assert not {"cpus", "cpu_quota", "deploy"} & set(worker)
