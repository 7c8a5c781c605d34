"""The files in packaging/ are what systemd, Docker, Compose and Kubernetes read, and start servers
with settings that those accept. No image is built and no cluster runs here."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cometmq.broker.config import load
from cometmq.cli.configuration import Given
from cometmq.cli.main import main
from cometmq.cli.servers import build_parser, gather
from cometmq.namesrv import config as namesrv_config
from cometmq.testing.cluster import Cluster
from scripts import build_core
from tests.architecture.rules import ROOT
from tests.packaging.tools import locked, systemd_analyze

PACKAGING = ROOT / "packaging"
UNITS = sorted((PACKAGING / "systemd").glob("*.service"))
DOCKERFILE = PACKAGING / "docker" / "Dockerfile"
COMPOSE = sorted((PACKAGING / "docker").glob("compose*.yaml"))
MANIFESTS = sorted((PACKAGING / "kubernetes").glob("[!k]*.yaml"))
COMMAND = Path(sys.executable).parent / "cometmq"
#: From "OK" on, systemd-analyze security takes a service for well confined.
EXPOSURE_MAX = 2.0
KUBERNETES = ("1.31", "1.34", "1.37")

pytestmark = pytest.mark.operation


# ------------------------------------------------------------------------------------------ systemd


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    assert "/opt/cometmq/bin/cometmq " in text
    copy = tmp_path / unit.name
    copy.write_text(text.replace("/opt/cometmq/bin/cometmq", str(COMMAND)), encoding="utf-8")
    assert systemd_analyze("verify", "--man=no", str(copy)).strip() == ""
    report = systemd_analyze("security", "--offline=yes", str(copy))
    found = re.search(r"exposure level for \S+: ([\d.]+)", report)
    assert found is not None, report
    assert float(found[1]) <= EXPOSURE_MAX, report


def test_a_mistake_in_a_unit_is_found(tmp_path: Path) -> None:
    copy = tmp_path / "cometmq-broker.service"
    copy.write_text("[Service]\nExecStart=/nowhere/cometmq\nLimitNOFILE=many\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="is not executable"):
        systemd_analyze("verify", "--man=no", str(copy))


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_a_server_that_init_configured(unit: Path, tmp_path: Path) -> None:
    found = re.search(r"^ExecStart=(.+)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    _, *words = shlex.split(found[1])
    assert main(["init", str(tmp_path), "--store", str(tmp_path / "store")]) == 0
    words = [word.replace("/etc/cometmq", str(tmp_path)) for word in words]
    assert main([*words, "--set", "listenPort=0", "--check"]) == 0


# ------------------------------------------------------------------------------------------- Docker


def test_hadolint_finds_nothing() -> None:
    assert locked("hadolint", str(DOCKERFILE)).strip() == ""


def instructions(name: str) -> list[str]:
    """What follows each instruction of a name in the Dockerfile."""
    text = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(rf"^{name} (.+)$", text, re.MULTILINE)


def test_what_the_image_copies_is_enough_to_build(tmp_path: Path) -> None:
    """The context is what .dockerignore leaves; the wheel that pip builds comes from it."""
    ignore = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text(encoding="utf-8")
    kept = {line[1:] for line in ignore.splitlines() if line.startswith("!")}
    copied = [
        word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]
    ]
    assert set(copied) == kept
    for name in copied:
        target = tmp_path / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            for path in (ROOT / name).rglob("*"):
                if path.is_file() and path.suffix not in (".so", ".c", ".pyc"):
                    place = target / path.relative_to(ROOT / name)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.symlink_to(path)
        else:
            target.symlink_to(ROOT / name)
    environment = {k: v for k, v in os.environ.items() if k not in ("COMETMQ_PURE", "PYTHONPATH")}
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "out")]
    subprocess.run(words, cwd=tmp_path / "source", env=environment, check=True, timeout=300)
    [wheel] = (tmp_path / "out").iterdir()
    assert wheel.name.endswith(f"-cp311-abi3-{build_core.this_platform()}.whl")


def test_the_health_check_asks_the_port(cometmq_cluster: Cluster) -> None:
    [line] = instructions("HEALTHCHECK")
    words = json.loads(line[line.index("CMD ") + 4 :])
    assert words[0] == "python"

    def ask(port: str) -> int:
        environment = os.environ | {"COMETMQ_HEALTH_PORT": port}
        return subprocess.run(
            [sys.executable, *words[1:]], env=environment, check=False, capture_output=True
        ).returncode

    assert ask(cometmq_cluster.broker.rpartition(":")[2]) == 0
    assert ask("1") != 0


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_compose_files_fit_their_schema(path: Path, tmp_path: Path) -> None:
    locked("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(path))
    wrong = tmp_path / path.name
    wrong.write_text(path.read_text(encoding="utf-8").replace("restart:", "restarts:"))
    with pytest.raises(AssertionError, match="restarts"):
        locked("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(wrong))


def test_compose_files_mount_what_is_there() -> None:
    for path in COMPOSE:
        text = path.read_text(encoding="utf-8")
        mounted = re.findall(r"^ +- (\.\./[^:]+):", text, re.MULTILINE)
        assert [name for name in mounted if not (path.parent / name).is_file()] == []
        whole = yaml.safe_load(text)
        configs = whole.get("configs", {})
        for config in configs.values():
            assert isinstance(yaml.safe_load(config["content"]), dict)
        for service in whole["services"].values():
            assert {each["source"] for each in service.get("configs", ())} <= configs.keys()


def test_the_workflow_fits_its_schema() -> None:
    path = ROOT / ".github" / "workflows" / "packages.yml"
    locked("check-jsonschema", "--builtin-schema", "vendor.github-workflows", str(path))


# --------------------------------------------------------------------------------------- Kubernetes


def documents() -> Iterator[tuple[str, Any]]:
    """All manifests, with a name."""
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield f"{document['kind']}-{document['metadata']['name']}", document


@pytest.mark.parametrize("version", KUBERNETES)
def test_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    paths = [str(path) for path in MANIFESTS]
    locked("kubernetes-validate", "--strict", "-k", version, *paths)


def test_a_mistake_in_a_manifest_is_found(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    text = (PACKAGING / "kubernetes" / "broker.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("readinessProbe", "readyProbe"), encoding="utf-8")
    with pytest.raises(AssertionError, match="readyProbe"):
        locked("kubernetes-validate", "--strict", "-k", KUBERNETES[0], str(path))


def test_the_kustomization_names_all_manifests() -> None:
    text = (PACKAGING / "kubernetes" / "kustomization.yaml").read_text(encoding="utf-8")
    assert sorted(yaml.safe_load(text)["resources"]) == [path.name for path in MANIFESTS]


def test_labels_and_ports_of_manifests_belong_together() -> None:
    found = dict(documents())
    for name, document in found.items():
        spec = document.get("spec", {})
        if document["kind"] != "StatefulSet":
            continue
        template = spec["template"]
        labels = template["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items(), name
        service = found[f"Service-{spec['serviceName']}"]["spec"]
        assert service["selector"].items() <= labels.items()
        budget = found[f"PodDisruptionBudget-{document['metadata']['name']}"]["spec"]
        assert budget["selector"]["matchLabels"] == labels
        [container] = template["spec"]["containers"]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert ports == {each["name"]: each["port"] for each in service["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in ports


# ----------------------------------------------------------------------------------------- commands


def server_commands() -> Iterator[tuple[str, list[str]]]:
    """The words after ``cometmq`` of every container, with a name."""
    for path in COMPOSE:
        services = yaml.safe_load(path.read_text(encoding="utf-8"))["services"]
        for name, service in services.items():
            if service["image"] == "cometmq":
                yield f"{path.stem}-{name}", service["command"]
    for name, document in documents():
        if document["kind"] == "StatefulSet":
            yield name, document["spec"]["template"]["spec"]["containers"][0]["args"]
    [words] = instructions("CMD")[-1:]
    yield "image", json.loads(words)


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=name) for name, words in server_commands()]
)
def test_a_container_starts_a_server_with_settings_that_it_knows(
    words: list[str], tmp_path: Path
) -> None:
    conf = dict(documents())["ConfigMap-cometmq-broker"]["data"]["broker.conf"]
    (tmp_path / "broker.conf").write_text(conf, encoding="utf-8")
    words = [
        word.replace("/etc/cometmq", str(tmp_path)).replace("$(POD_INDEX)", "0") for word in words
    ]
    options = build_parser().parse_args(words)
    given = Given()
    gather(given, options)
    values = {key: value.replace("$(POD_IP)", "10.1.2.3") for key, value in given.values.items()}
    if options.command == "namesrv":
        assert namesrv_config.load(values)[0].bind_address == "0.0.0.0"
        return
    broker, store, notices = load(values)
    assert notices == [] or "brokerIP1 127.0.0.1" in notices[0]
    assert broker.bind_address == "0.0.0.0" or options.command == "start"
    assert store.store_path_root_dir == "/var/lib/cometmq" or options.command == "start"
