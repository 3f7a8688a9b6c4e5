"""Checks the files in deploy/ against the schemas of Kubernetes and KServe, and against the command: deploy.py DEPLOY BELLOWS

The schemas of Kubernetes are those of the package kubernetes-validate. With the environment variable KSERVE_CRD, a file
config/crd/full/serving.kserve.io_servingruntimes.yaml of KServe, runtimes are also checked against this definition.
"""

import copy
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import jsonschema
import kubernetes_validate
import yaml
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

DEPLOY, BELLOWS = pathlib.Path(sys.argv[1]), sys.argv[2]
VERSIONS = ["1.25", "1.31", kubernetes_validate.latest_version()]
TOKEN = "deploy-test-token-0123"


class Invalid(Exception):
    """A document that a cluster would reject, or that would not work."""


def require(condition, message):
    if not condition:
        raise Invalid(message)


def options_of_command():
    text = subprocess.run([BELLOWS, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z][a-z-]+", text))


OPTIONS = options_of_command()


def check_with_schema(validator, value):
    for error in validator.iter_errors(value):
        raise Invalid(f"{'/'.join(map(str, error.path))}: {error.message}")


def crd_validator():
    """Objects of a custom resource have only the properties that its definition names."""
    def close(schema):
        if isinstance(schema, dict):
            if "properties" in schema and "x-kubernetes-preserve-unknown-fields" not in schema:
                schema.setdefault("additionalProperties", False)
            if schema.get("x-kubernetes-int-or-string"):
                schema.pop("type", None)
            for part in schema.values():
                close(part)
        elif isinstance(schema, list):
            for part in schema:
                close(part)

    crd = yaml.safe_load(pathlib.Path(os.environ["KSERVE_CRD"]).read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    close(schema)
    return jsonschema.Draft202012Validator(schema)


def check_runtime(document):
    require(document["apiVersion"] == "serving.kserve.io/v1alpha1", f"unknown apiVersion {document['apiVersion']}")
    require(set(document) <= {"apiVersion", "kind", "metadata", "spec"}, f"unknown fields in {sorted(document)}")
    require(document.get("metadata", {}).get("name"), "the runtime has no name")
    schema = json.loads((pathlib.Path(__file__).parent / "serving_runtime.json").read_text())
    definitions = schema_contents("kubernetes-json-schema/v1.31.0-local-strict/_definitions.json", "1.31")
    registry = Registry().with_resource("_definitions.json", Resource.from_contents(definitions, default_specification=DRAFT202012))
    spec = document.get("spec")
    check_with_schema(jsonschema.Draft202012Validator(schema, registry=registry), spec)
    if "KSERVE_CRD" in os.environ:
        check_with_schema(crd_validator(), spec)
    names = [container["name"] for container in spec["containers"]]
    require("kserve-container" in names, f"KServe expects a container kserve-container, found {names}")


def check_resource(document):
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            raise Invalid(f"Kubernetes {version}: {getattr(error, 'message', error)}") from error


def pod_of(document):
    if document["kind"] == "Deployment":
        return document["spec"]["template"]["spec"]
    return document["spec"] if document["kind"] == "ServingRuntime" else None


def check_arguments(container):
    names = [argument.split("=")[0] for argument in container["args"] if argument.startswith("-")]
    for name in names:
        require(name in OPTIONS, f"`bellows serve` has no option {name}")
    values = dict(argument.split("=", 1) for argument in container["args"] if "=" in argument)
    port = int(values["--port"])
    for option in ("--port", "--grpc-port"):
        number = int(values.get(option, port))
        require(any(one["containerPort"] == number for one in container["ports"]), f"no containerPort {number}")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        target = container.get(probe, {}).get("httpGet", {}).get("port", port)
        require(target == port or any(one["name"] == target for one in container["ports"]), f"{probe}: no port {target}")
    return values


def check_pod(pod):
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        values = check_arguments(container)
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        require(mounted == volumes, f"volumes {sorted(volumes)}, but {sorted(mounted)} are mounted")
        security = container["securityContext"]
        require(security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"] and
                security["capabilities"]["drop"] == ["ALL"], "the container has more rights than it needs")
        require({"cpu", "memory"} <= set(container["resources"]["limits"]), "no limits of resources")
        grace = pod.get("terminationGracePeriodSeconds", 30)
        require(int(values["--drain-seconds"]) <= grace, f"--drain-seconds is larger than the grace period {grace}")


def check_document(document):
    check_runtime(document) if document["kind"] == "ServingRuntime" else check_resource(document)
    if pod_of(document):
        check_pod(pod_of(document))


def check_selectors(documents):
    deployment = next(document for document in documents if document["kind"] == "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    ports = [port["name"] for container in pod_of(deployment)["containers"] for port in container["ports"]]
    for document in documents:
        if document["kind"] == "Service":
            require(document["spec"]["selector"].items() <= labels, "the service selects no pod")
            require(all(port["targetPort"] in ports for port in document["spec"]["ports"]), "the service has a wrong port")


def change(document, path, value):
    changed = copy.deepcopy(document)
    place = changed
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return changed


def check_that_errors_are_found(deployment, service, runtime):
    container = ["spec", "template", "spec", "containers", 0]
    arguments = pod_of(deployment)["containers"][0]["args"]
    broken = [
        (deployment, ["spec", "replicas"], "two"),
        (deployment, ["spec", "replica"], 2),
        (deployment, ["spec", "selector"], None),
        (deployment, ["apiVersion"], "apps/v9"),
        (deployment, container + ["livenessProbe", "httpGet", "port"], None),
        (deployment, container + ["livenessProbe", "httpGet", "port"], "https"),
        (deployment, container + ["livenessProbe", "htttpGet"], {"path": "/"}),
        (deployment, container + ["resources", "limits", "memory"], ["4Gi"]),
        (deployment, container + ["securityContext", "readOnlyRootFilesystem"], False),
        (deployment, container + ["args"], arguments + ["--no-such-option"]),
        (deployment, container + ["args"], [a.replace("8000", "8002") for a in arguments]),
        (deployment, container + ["args"], [a.replace("8001", "8002") for a in arguments]),
        (deployment, container + ["volumeMounts", 0, "name"], "none"),
        (service, ["spec", "ports", 0, "port"], "eight"),
        (service, ["spec", "portz"], []),
        (runtime, ["spec", "containers"], None),
        (runtime, ["spec", "containers", 0, "name"], "other"),
        (runtime, ["spec", "containers", 0, "imagee"], "x"),
        (runtime, ["spec", "protocolVersions"], "v2"),
        (runtime, ["spec", "supportedModelFormats", 0, "name"], None),
        (runtime, ["spec", "supportedModelFormats", 0, "priority"], 0),
        (runtime, ["spec", "supportedModelFormat"], []),
        (runtime, ["apiVersion"], "serving.kserve.io/v9"),
    ]
    for document, path, value in broken:
        try:
            check_document(change(document, path, value))
        except Invalid as error:
            print("ok: finds", error)
        else:
            raise AssertionError(f"no check finds {path} = {value!r}")


def status_of(port, path, token=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        return urllib.request.urlopen(request, timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code


def start_with(container, tokens_expected):
    """Runs the command of the container with other paths, and sends what its probes send."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "tokens").write_text(f"client:{TOKEN}\n")
        arguments = [re.sub("^--model-repository=.*", f"--model-repository={folder}", argument) for argument in container["args"]]
        arguments = [re.sub("^--token-file=.*", f"--token-file={folder}/tokens", argument) for argument in arguments]
        arguments = [re.sub("^(--port|--grpc-port)=.*", r"\1=0", argument) for argument in arguments]
        with subprocess.Popen([BELLOWS] + arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
            try:
                line = next(line for line in server.stdout if "http://" in line)
                port = int(line.rsplit(":", 1)[1])
                for _ in range(300):
                    if status_of(port, container["readinessProbe"]["httpGet"]["path"]) == 200:
                        break
                    time.sleep(0.1)
                for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                    if probe in container:
                        assert status_of(port, container[probe]["httpGet"]["path"]) == 200, probe
                assert status_of(port, "/metrics") == 200
                assert status_of(port, "/v2") == (401 if tokens_expected else 200)
                assert status_of(port, "/v2", TOKEN) == 200
            finally:
                server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0, server.stderr.read()


def check_dockerfile():
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    known = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}
    for line in lines:
        require(line.split()[0] in known, f"Dockerfile: unknown instruction {line}")
        if line.startswith(("ENTRYPOINT", "CMD")):
            json.loads(line.split(" ", 1)[1])
        for script in re.findall(r"script/\S+", line):
            require((DEPLOY.parent / script).exists(), f"Dockerfile: there is no {script}")
        for preset in re.findall(r"--preset (\S+)", line):
            presets = json.loads((DEPLOY.parent / "CMakePresets.json").read_text())["configurePresets"]
            require(preset in [one["name"] for one in presets], f"Dockerfile: there is no preset {preset}")


def main():
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    runtime = yaml.safe_load((DEPLOY / "kserve.yaml").read_text())
    for document in documents + [runtime]:
        check_document(document)
        print("ok:", document["kind"], document["metadata"]["name"])
    check_selectors(documents)
    check_dockerfile()
    by_kind = {document["kind"]: document for document in documents}
    check_that_errors_are_found(by_kind["Deployment"], by_kind["Service"], runtime)
    start_with(pod_of(by_kind["Deployment"])["containers"][0], tokens_expected=True)
    start_with(pod_of(runtime)["containers"][0], tokens_expected=False)


main()
