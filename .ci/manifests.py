"""Checks Kubernetes manifests: against the schemas of the oldest and the newest version meant, and that their names fit together.

Reads the manifests of ops/kubernetes/base, or the files named as arguments. Needs the package kubernetes-validate. Prints what is
wrong and exits with 1.
"""

import pathlib
import sys

import kubernetes_validate
import yaml

BASE = pathlib.Path("ops/kubernetes/base")
# The label pod-index came with the first; the last is the newest that the package knows.
VERSIONS = ["1.28.0", kubernetes_validate.latest_version()]


def pod_of(documents):
    """The set, its pod and its one container."""
    (stateful_set,) = [document for document in documents if document["kind"] == "StatefulSet"]
    template = stateful_set["spec"]["template"]
    (container,) = template["spec"]["containers"]
    return stateful_set, template, container


def named(documents, kind):
    """The name of the one document of a kind; none if there is no such document."""
    names = [document["metadata"]["name"] for document in documents if document["kind"] == kind]
    return names[0] if len(names) == 1 else None


def selects(selector, labels):
    return bool(selector) and selector.items() <= labels.items()


def faults(documents):
    """What does not fit together."""
    stateful_set, template, container = pod_of(documents)
    spec, pod, labels = stateful_set["spec"], template["spec"], template["metadata"]["labels"]
    (service,) = [document for document in documents if document["kind"] == "Service"]
    (budget,) = [document for document in documents if document["kind"] == "PodDisruptionBudget"]
    (policy,) = [document["spec"] for document in documents if document["kind"] == "NetworkPolicy"]
    (rule,) = policy["ingress"]
    (port,) = container["ports"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    secret = named(documents, "Secret")
    probes = [container[kind]["exec"]["command"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
    stop = container["lifecycle"]["preStop"]["exec"]["command"]
    yield "the service selects the pods", selects(service["spec"]["selector"], labels)
    yield "the budget selects the pods", selects(budget["spec"]["selector"]["matchLabels"], labels)
    yield "the network policy holds for the pods", selects(policy["podSelector"]["matchLabels"], labels)
    yield "the network policy lets nodes reach nodes, and nobody else", all(selects(one["podSelector"]["matchLabels"], labels) for one in rule["from"]) and rule["ports"] == [{"port": port["name"], "protocol": port["protocol"]}]
    yield "the set selects its pods", selects(spec["selector"]["matchLabels"], labels)
    yield "the set names the headless service", spec["serviceName"] == service["metadata"]["name"]
    yield "the service is headless and names pods that are not ready", service["spec"]["clusterIP"] == "None" and service["spec"].get("publishNotReadyAddresses")
    yield "service and pod have the same port", all(one["protocol"] == "UDP" for one in (port, *service["spec"]["ports"])) and service["spec"]["ports"][0]["port"] == port["containerPort"]
    yield "nodes look at the service", variables["SLOWMO_DISCOVER"] == f"dns:{service['metadata']['name']}:{port['containerPort']}"
    yield "nodes listen where the service points", variables["SLOWMO_LISTEN"].endswith(f":{port['containerPort']}")
    names = [variable["name"] for variable in container["env"]]
    yield "the pod's address is set before it is used", names.index("POD_IP") < names.index("SLOWMO_LISTEN")
    yield "the founders are more than half", 2 * int(variables["SLOWMO_MIN_NODES"]) > spec["replicas"]
    yield "every mount has a volume, and every volume a mount", mounts.keys() == volumes.keys()
    yield "the key is in the secret", variables["SLOWMO_CLUSTER_KEY_FILE"].startswith(mounts["cluster-key"] + "/")
    yield "the secret is the one that is made", secret in (None, volumes["cluster-key"]["secret"]["secretName"])
    yield "the claim is the one that is made", volumes["checkpoints"]["persistentVolumeClaim"]["claimName"] == named(documents, "PersistentVolumeClaim")
    yield "checkpoints go to the claim", variables["SLOWMO_CHECKPOINTS"].startswith(mounts["checkpoints"])
    yield "probes and the drain ask the node's socket", all(variables["SLOWMO_ADMIN"] in command for command in (*probes, stop))
    yield "the drain ends before the pod does", int(stop[stop.index("--wait") + 1]) < pod["terminationGracePeriodSeconds"]
    yield "services set no variables", pod["enableServiceLinks"] is False


def main():
    paths = [pathlib.Path(path) for path in sys.argv[1:]]
    if not paths:
        kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
        paths = [BASE / name for name in kustomization["resources"]]
        listed = {path.name for path in paths} | {"kustomization.yaml"}
        if forgotten := {path.name for path in BASE.glob("*.yaml")} - listed:
            sys.exit(f"kustomization.yaml leaves out {sorted(forgotten)}")
    documents = [document for path in paths for document in yaml.safe_load_all(path.read_text())]
    wrong = []
    for document in documents:
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                wrong.append(f"{document['kind']} {document['metadata']['name']}, Kubernetes {version}: {error.message}")
    wrong += [f"not so: {what}" for what, fits in faults(documents) if not fits]
    sys.exit("\n".join(wrong) or 0)


main()
