"""The examples of running outbox-relay: manifests fit the schemas, and files name what exists."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cluster import REPOSITORY, Installation

EXAMPLES = REPOSITORY / "examples"
MANIFESTS = sorted([*EXAMPLES.glob("kubernetes/*.yaml"), *EXAMPLES.glob("cloud-run/*.yaml")])


def validated(installation: Installation, *files: Path) -> dict[str, Any]:
    python = installation.build / "servers/python/bin/python"
    arguments = [str(python), str(REPOSITORY / "tests/manifests/validate.py"), *map(str, files)]
    known = python.exists() and subprocess.run(
        [str(python), "-c", "import kubernetes_validate, googleapiclient"], capture_output=True
    )
    if not known or known.returncode != 0:
        pytest.skip("NOT TESTED: kubernetes-validate is not installed; see tests/requirements.txt")
    return json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)


def test_manifests_fit_the_schemas(installation: Installation) -> None:
    result = validated(installation, *MANIFESTS)
    assert result["errors"] == []
    kinds = {document["kind"] for file in result["documents"].values() for document in file}
    assert kinds == {"ConfigMap", "Deployment", "Job", "PodDisruptionBudget", "Secret", "Service"}


@pytest.mark.parametrize(
    "file, right, wrong, complaint",
    [
        ("kubernetes/deployment.yaml", "livenessProbe", "livenesProbe", "livenesProbe"),
        ("kubernetes/deployment.yaml", "replicas: 2", "replicas: two", "two"),
        ("cloud-run/service.yaml", "livenessProbe", "livenesProbe", "livenesProbe: unknown key"),
        ("cloud-run/service.yaml", "minScale", "minScal", "minScal: no such annotation"),
        ("cloud-run/service.yaml", "containerPort: 8080", "containerPort: http", "not of type integer"),
    ],
)
def test_the_schemas_refuse_mistakes(
    installation: Installation, tmp_path: Path, file: str, right: str, wrong: str, complaint: str
) -> None:
    text = (EXAMPLES / file).read_text()
    assert right in text
    changed = tmp_path / "changed.yaml"
    changed.write_text(text.replace(right, wrong))
    (error,) = validated(installation, changed)["errors"]
    assert complaint in error


def pod_of(document: dict[str, Any]) -> dict[str, Any]:
    spec = document["spec"]["template"]["spec"]
    return spec["template"]["spec"] if "template" in spec else spec


def test_volumes_and_references_exist(installation: Installation) -> None:
    documents = [d for file in validated(installation, *MANIFESTS)["documents"].values() for d in file]
    named = {(d["kind"], d["metadata"]["name"]) for d in documents}
    for document in documents:
        if document["kind"] not in ("Deployment", "Job"):
            continue
        pod = pod_of(document)
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} == set(volumes)
        for volume in volumes.values():
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in named
            else:
                assert ("Secret", volume["secret"]["secretName"]) in named


# -------------------------------------------------------------------------------------------------
# Configurations
# -------------------------------------------------------------------------------------------------


def assert_is_a_configuration(installation: Installation, folder: Path, toml: str, **variables: str) -> None:
    """The databases do not exist, so --check fails, but not because of the file."""
    program = next(installation.stage.rglob("bin/outbox-relay"), None)
    if program is None:
        pytest.skip("NOT TESTED: outbox-relay is not part of this build")

    def create(match: re.Match[str]) -> str:
        secret = folder / Path(match[1]).name
        secret.write_text("secret\n")
        return f'file = "{secret}"'

    toml = re.sub(r'file = "([^"]+)"', create, toml)
    toml = re.sub(r'url = "postgresql://[^"]+"', 'url = "postgresql://127.0.0.1:1/orders"', toml)
    path = folder / "relay.toml"
    path.write_text(toml)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOX_", "PG"))}
    done = subprocess.run(
        [str(program), "--config", str(path), "--log-format", "text", "--check"], env={**kept, **variables}, timeout=180,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "FAIL  orders  connection" in done.stdout


def test_the_configuration_of_kubernetes(installation: Installation, tmp_path: Path) -> None:
    files = [EXAMPLES / "kubernetes" / name for name in ("config-map.yaml", "secret.yaml", "deployment.yaml")]
    documents = validated(installation, *files)["documents"]
    (config_map,), (secret,), (deployment,) = (documents[str(file)] for file in files)
    toml = config_map["data"]["relay.toml"]
    assert_is_a_configuration(installation, tmp_path, toml)
    mounts = {mount["name"]: mount["mountPath"] for mount in pod_of(deployment)["containers"][0]["volumeMounts"]}
    assert set(re.findall(r'file = "([^"]+)"', toml)) == {f"{mounts['secrets']}/{key}" for key in secret["stringData"]}
    grace = pod_of(deployment)["terminationGracePeriodSeconds"]
    limit = re.search(r'shutdown_timeout = "(\d+)s"', toml)
    assert limit is not None and int(limit[1]) < grace


def test_the_other_configurations(installation: Installation, tmp_path: Path) -> None:
    for name in ("cloud-run", "systemd"):
        toml = (EXAMPLES / name / "relay.toml").read_text()
        assert_is_a_configuration(installation, tmp_path, toml, ORDERS_PASSWORD="secret")


# -------------------------------------------------------------------------------------------------
# Unit and image
# -------------------------------------------------------------------------------------------------


def test_the_systemd_unit(installation: Installation, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("NOT TESTED: systemd is not installed")
    program = next(installation.stage.rglob("bin/outbox-relay"), None)
    unit = (EXAMPLES / "systemd/outbox-relay.service").read_text()
    assert "/usr/local/bin/outbox-relay" in unit
    copy = tmp_path / "outbox-relay.service"
    copy.write_text(unit.replace("/usr/local/bin/outbox-relay", str(program or "/bin/true")))
    verify = ["systemd-analyze", "verify", "--man=no", str(copy)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=180)
    ours = [line for line in done.stderr.splitlines() if "outbox-relay.service" in line]
    assert (done.returncode, ours) == (0, [])
    copy.write_text(copy.read_text().replace("DynamicUser=", "DynamikUser="))
    done = subprocess.run(verify, capture_output=True, text=True, timeout=180)
    assert "DynamikUser" in done.stderr, "systemd-analyze tells mistakes"


def needed_libraries(file: Path) -> set[str]:
    text = subprocess.run(["objdump", "-p", str(file)], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"NEEDED +(\S+)", text))


def test_the_image_has_the_libraries_of_the_program(installation: Installation) -> None:
    release = Path("/etc/os-release").read_text()
    if "VERSION_CODENAME=bookworm" not in release:
        pytest.skip("NOT TESTED: the packages of the image are those of Debian 12")
    program = next(installation.stage.rglob("bin/outbox-relay"), None)
    if program is None:
        pytest.skip("NOT TESTED: outbox-relay is not part of this build")
    files = [program, *installation.stage.rglob("lib/outbox-relay/*.so")]
    needed = set().union(*map(needed_libraries, files))
    image = (EXAMPLES / "container/Containerfile").read_text().split("\nFROM ")[-1]
    assert {"libpq.so.5", "libcurl.so.4"} <= needed
    packages = {"libc6", "libgcc-s1", "libstdc++6"}  # of every image
    for library in needed:
        owners = subprocess.run(["dpkg", "-S", f"*/{library}"], capture_output=True, text=True).stdout
        names = {line.split(":")[0] for line in owners.splitlines() if line.endswith(f"/{library}")}
        assert names & packages or any(re.search(rf"\s{re.escape(name)}\s", image) for name in names), library
