"""The manifests for Kubernetes: complete, restricted, and in agreement with the program."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from records.storage.roles import API, PASSWORDS, WORKER
from tests.docker import images
from tests.docs.documents import ROOT
from tuner.service.alive import LIVENESS
from tuner.settings import check_variables

FOLDER = ROOT / "deploy" / "kubernetes"


def manifests(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Return the objects of the files that a kustomization names."""
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    texts = [(folder / name).read_text() for name in names]
    return [item for text in texts for item in yaml.safe_load_all(text)]


def kinds(kind: str, folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Return the objects of a kind."""
    return [item for item in manifests(folder) if item["kind"] == kind]


def pod(name: str) -> dict[str, Any]:
    """Return the pod specification of a deployment or job."""
    owners = [*kinds("Deployment"), *kinds("Job", FOLDER / "upgrade")]
    (owner,) = [o for o in owners if o["metadata"]["name"] == name]
    return dict(owner["spec"]["template"]["spec"])


def deployment(name: str) -> dict[str, Any]:
    """Return the container of a deployment."""
    (container,) = pod(name)["containers"]
    return dict(container)


@pytest.mark.parametrize(
    ("name", "image"), [("api", "api"), ("worker", "worker"), ("db-upgrade", "api")]
)
def test_pods_keep_the_restricted_standard(name: str, image: str) -> None:
    """The user of the image, no capabilities, no token of the cluster, no writable image."""
    spec = pod(name)
    user, _, group = images.texts(images.read_dockerfile(image), "USER")[0].partition(":")
    context = spec["securityContext"]
    assert context["runAsNonRoot"] is True
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user), int(group))
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    for container in containers:
        assert container["image"] == f"subgraph-tuner-{image}"
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        for kind in ("requests", "limits"):
            assert set(container["resources"][kind]) == {"cpu", "memory"}
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        assert mounted == {volume["name"] for volume in spec.get("volumes", [])}


def test_volumes_are_those_of_compose() -> None:
    """The API writes uploads and reads archives; the build cache is the worker's alone."""
    services = images.read_compose()["services"]
    for name in ("api", "worker"):
        claims = {
            volume["name"]: volume["persistentVolumeClaim"]["claimName"]
            for volume in pod(name)["volumes"]
            if "persistentVolumeClaim" in volume
        }
        mounts = {
            ":".join(
                [
                    claims.get(mount["name"], mount["name"]),
                    mount["mountPath"],
                    *(["ro"] if mount.get("readOnly") else []),
                ]
            )
            for mount in deployment(name)["volumeMounts"]
        }
        in_memory = {mount for mount in mounts if mount.startswith(("scratch:", "memory:"))}
        # Two pods on one machine do not see each other's locks, and are kept apart instead.
        on_machine = {mount for mount in services[name]["volumes"] if mount.startswith("locks:")}
        assert mounts - in_memory == set(services[name]["volumes"]) - on_machine


def test_every_process_has_a_role_and_a_secret_of_its_own() -> None:
    """The owner's is that of the job alone, which gives the others their passwords."""
    document = (ROOT / "docs" / "kubernetes.md").read_text()
    upgrade = pod("db-upgrade")
    containers = [*upgrade["initContainers"], *upgrade["containers"]]
    roles = {name: deployment(name)["envFrom"][1] for name in ("api", "worker")}
    owner = {"secretRef": {"name": "subgraph-tuner-database-owner"}}

    assert roles == {
        name: {"secretRef": {"name": f"subgraph-tuner-database-{name}"}} for name in roles
    }
    assert [container["envFrom"] for container in containers] == [[owner], [owner]]
    passwords = {
        variable["name"]: variable["valueFrom"]["secretKeyRef"]["name"]
        for variable in containers[1]["env"]
    }
    assert passwords == {
        PASSWORDS[API]: "subgraph-tuner-database-api",
        PASSWORDS[WORKER]: "subgraph-tuner-database-worker",
    }
    for role in (API, WORKER):
        assert f"=postgresql://{role}@" in document


def test_probes_ask_what_the_program_answers() -> None:
    """Readiness is that of the database; liveness does not depend on it."""
    api, worker = deployment("api"), deployment("worker")

    assert api["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert api["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    program = [*worker["startupProbe"]["exec"]["command"]]
    assert program[-1] == "tuner.service.alive"
    assert program[-1] + '"]' in (ROOT / "docker" / "worker.Dockerfile").read_text()
    # A restart would not bring the database back.
    assert worker["livenessProbe"]["exec"]["command"] == [*program, LIVENESS]


def test_settings_are_known_and_names_resolve(caplog: pytest.LogCaptureFixture) -> None:
    """Config maps, secrets and claims that pods name are made, or documented."""
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    (config,) = kustomization["configMapGenerator"]
    names = {literal.partition("=")[0] for literal in config["literals"]}
    document = (ROOT / "docs" / "kubernetes.md").read_text()

    check_variables(dict.fromkeys(names, ""))
    assert caplog.text == ""
    claims = {claim["metadata"]["name"] for claim in kinds("PersistentVolumeClaim")}
    assert claims == {"uploads", "archives", "data"}
    for name in ("api", "worker"):
        sources = deployment(name)["envFrom"]
        assert sources[0] == {"configMapRef": {"name": config["name"]}}
        assert f"create secret generic {sources[1]['secretRef']['name']}" in document
    images = {image["name"] for image in kustomization["images"]}
    assert images == {deployment("api")["image"], deployment("worker")["image"]}


def test_only_the_api_is_reached_and_only_the_database_is_left_for() -> None:
    """Everything is denied first; ingress is to the API alone, egress to DNS and PostgreSQL."""
    policies = {item["metadata"]["name"]: item["spec"] for item in kinds("NetworkPolicy")}
    ports = [port["port"] for rule in policies["database"]["egress"] for port in rule["ports"]]

    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert [name for name, spec in policies.items() if "ingress" in spec] == ["api"]
    selected = {"matchLabels": {"app.kubernetes.io/component": "api"}}
    assert policies["api"]["podSelector"] == selected
    assert set(ports) == {53, 5432}
    # A rule without addresses leads to all of them.
    assert all(rule["to"] for rule in policies["database"]["egress"])


@pytest.mark.parametrize("folder", [FOLDER, FOLDER / "upgrade"])
def test_kustomize_accepts_the_folder(folder: Path) -> None:
    """It renders every object with the name, namespace and image of the deployment."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    rendered = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert rendered.returncode == 0, rendered.stderr
    items = list(yaml.safe_load_all(rendered.stdout))

    assert len(items) >= len(manifests(folder))
    assert "image: registry.example.com/subgraph-tuner-api:" in rendered.stdout


def test_the_worker_has_cores_of_its_own() -> None:
    """A quota that is not a whole number of cores suspends processes during a measurement."""
    resources = deployment("worker")["resources"]

    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["cpu"].isdecimal()


def test_an_upgrade_is_a_job_of_its_own() -> None:
    """The job upgrades the schema once, and then sets up the roles, which get the new tables."""
    (job,) = kinds("Job", FOLDER / "upgrade")
    (upgrade,), (roles,) = (pod("db-upgrade")[kind] for kind in ("initContainers", "containers"))

    assert upgrade["command"] == ["tuner", "db", "upgrade"]
    assert roles["command"] == ["python", "-P", "-m", "records.storage.roles"]
    assert job["spec"]["backoffLimit"] == 0
