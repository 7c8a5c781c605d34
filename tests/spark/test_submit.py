"""The commands of the page about clusters for YARN and Kubernetes, as far as Spark itself checks
them without a cluster: its parser of arguments, the settings that follow, and the driver's pod."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.rules import ROOT

pytestmark = pytest.mark.spark

PAGE = (ROOT / "docs" / "spark" / "deploy.md").read_text(encoding="utf-8")
RUN_S = 240
IN_CLUSTER = "spark.yarn.appMasterEnv.PYSPARK_PYTHON=./environment/bin/python"


def submitted(section: str) -> tuple[list[str], dict[str, str]]:
    """The words after `spark-submit` in a section, and the variables before it."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    [command] = [
        line
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
        if "spark-submit" in line
    ]
    words = shlex.split(command)
    at = words.index("spark-submit")
    return words[at + 1 :], dict(word.split("=", 1) for word in words[:at])


def dry(folder: Path, *commands: tuple[list[str], dict[str, str]]) -> list[dict[str, Any]]:
    """What Spark would do about each command."""
    lines = [json.dumps({"words": words, "environment": given}) for words, given in commands]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.submit_dry"],
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
        input="\n".join(lines), cwd=folder, check=False, capture_output=True, text=True,
        timeout=RUN_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_the_commands_for_yarn_and_kubernetes_are_what_spark_takes(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text("")
    (tmp_path / "environment.tar.gz").write_bytes(b"")
    assert IN_CLUSTER in PAGE
    words, given = submitted("YARN")
    given["HADOOP_CONF_DIR"] = str(tmp_path)
    in_cluster = ["cluster" if word == "client" else word for word in words]
    in_cluster[-1:-1] = ["--conf", IN_CLUSTER]
    client, cluster, kubernetes = dry(
        tmp_path, (words, given), (in_cluster, given), submitted("Kubernetes")
    )
    archive = f"file:{tmp_path}/environment.tar.gz#environment"
    assert client["main"] == "org.apache.spark.deploy.PythonRunner"
    assert client["arguments"][0].endswith("orders.py")
    for found in (client, cluster):
        conf = found["conf"]
        assert conf["spark.yarn.dist.archives"].replace("///", "/") == archive
        assert conf["spark.yarn.isPython"] == "true"
    assert given["PYSPARK_PYTHON"] == "./environment/bin/python"
    assert cluster["main"] == "org.apache.spark.deploy.yarn.YarnClusterApplication"
    assert cluster["conf"][IN_CLUSTER.split("=")[0]] == "./environment/bin/python"
    assert kubernetes["main"] == "org.apache.spark.deploy.k8s.submit.KubernetesClientApplication"
    spec, container = kubernetes["pod"]["spec"], kubernetes["container"]
    assert container["image"] == "registry/cometmq-spark:1"
    assert spec["serviceAccountName"] == "spark"
    assert container["args"][0] == "driver"
    assert "local:///opt/app/orders.py" in container["args"]
    assert "org.apache.spark.deploy.PythonRunner" in container["args"]
