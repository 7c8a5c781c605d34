"""Prints what `spark-submit` would do: what Spark makes of its words, without asking a cluster.

Each line of standard input has the words of one command, and its environment, as JSON. For
Kubernetes, the pod of the driver is built, too.
"""

import json
import sys
from typing import Any

from pyspark.java_gateway import launch_gateway

KUBERNETES = "k8s://"


def prepared(gateway: Any, words: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """What becomes of one command."""
    jvm = gateway.jvm
    arguments = jvm.org.apache.spark.deploy.SparkSubmitArguments(
        jvm.PythonUtils.toSeq(words), jvm.PythonUtils.toScalaMap(environment)
    )
    submit = jvm.org.apache.spark.deploy.SparkSubmit()
    default = getattr(submit, "prepareSubmitEnvironment$default$2")()
    found = submit.prepareSubmitEnvironment(arguments, default)
    conf = found._3()
    said = {
        "arguments": list(jvm.scala.jdk.javaapi.CollectionConverters.asJava(found._1())),
        "conf": {pair._1(): pair._2() for pair in conf.getAll()},
        "main": found._4(),
    }
    if conf.get("spark.master").startswith(KUBERNETES):
        said |= pod(gateway, conf, said["arguments"])
    return said


def pod(gateway: Any, conf: Any, arguments: list[str]) -> dict[str, Any]:
    """The pod of a driver and its container, as they would be sent to Kubernetes."""
    jvm = gateway.jvm
    array = gateway.new_array(jvm.java.lang.String, len(arguments))
    for at, argument in enumerate(arguments):
        array[at] = argument
    kubernetes = jvm.org.apache.spark.deploy.k8s
    client = kubernetes.submit.ClientArguments.fromCommandLineArgs(array)
    driver = kubernetes.KubernetesConf.createDriverConf(
        conf, "dry", client.mainAppResource(), client.mainClass(), client.driverArgs(),
        client.proxyUser(),
    )  # fmt: skip
    api = jvm.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()
    try:
        spec = kubernetes.submit.KubernetesDriverBuilder().buildFromFeatures(driver, api)
        built = spec.pod()
        as_json = jvm.io.fabric8.kubernetes.client.utils.Serialization.asJson
        return {
            "pod": json.loads(as_json(built.pod())),
            "container": json.loads(as_json(built.container())),
        }
    finally:
        api.close()


def main() -> None:
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    try:
        for line in sys.stdin:
            command = json.loads(line)
            print(json.dumps(prepared(gateway, command["words"], command["environment"])))
    finally:
        gateway.shutdown()


if __name__ == "__main__":
    main()
