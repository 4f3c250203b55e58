"""Runs the pods of ops/kubernetes/base as processes of this machine: see `.ci/pods`, which starts this inside namespaces.

What differs from a Kubernetes: pods share one loopback network, their service's name stands in /etc/hosts, and the image is the
example 02_digits.
"""

import os
import pathlib
import subprocess
import sys
import time

import yaml

BASE = pathlib.Path("ops/kubernetes/base")
MEMBERS_SECONDS, DRAIN_SECONDS = 60, 60
# Steps short enough for many rounds a second; the image's own arguments.
ARGUMENTS = ["--steps", "100000000", "--step-ms", "20"]

binaries = pathlib.Path(sys.argv[1])
stateful_set = yaml.safe_load((BASE / "statefulset.yaml").read_text())
service = yaml.safe_load((BASE / "service.yaml").read_text())["metadata"]["name"]
spec = stateful_set["spec"]
pod = spec["template"]["spec"]
(container,) = pod["containers"]
security = pod["securityContext"]
first, replicas = spec["ordinals"]["start"], spec["replicas"]
ordinals = range(first, first + replicas)
work = pathlib.Path("/mnt/pods")


def saw(what):
    print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)


def run(*command, **options):
    return subprocess.run(command, check=True, text=True, **options)


def address(ordinal):
    return f"127.0.1.{ordinal}"


def environment(ordinal):
    """The container's variables, with what refers to the pod or to earlier ones filled in."""
    of_pod = {
        "status.podIP": address(ordinal),
        "metadata.labels['apps.kubernetes.io/pod-index']": str(ordinal),
    }
    told = {}
    for variable in container["env"]:
        value = variable.get("value")
        if value is None:
            value = of_pod[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        for name, earlier in told.items():
            value = value.replace(f"$({name})", earlier)
        assert "$(" not in value, f"{variable['name']}: {value} names a variable that is not set before"
        told[variable["name"]] = value
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **told}


def volumes(ordinal):
    """Shell commands that mount the container's volumes, where the manifest says, as it says."""
    owner = f"uid={security['runAsUser']},gid={security['fsGroup']}"
    for mount in container["volumeMounts"]:
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
        path = mount["mountPath"]
        if "emptyDir" in volume:
            yield f"mount -t tmpfs -o {owner},mode=0770 tmpfs {path}"
        elif "persistentVolumeClaim" in volume:
            yield f"mount --bind {work}/claim {path}"
        else:
            yield f"mount --bind {work}/secret {path}"
        if mount.get("readOnly"):
            yield f"mount -o remount,bind,ro {path}"


def started(ordinal):
    """A pod: namespaces, volumes, a read-only root, the user without rights; then the image's entry point."""
    steps = [
        "set -e",
        *volumes(ordinal),
        "mount -o remount,bind,ro /" if container["securityContext"]["readOnlyRootFilesystem"] else "true",
        f"exec setpriv --reuid {security['runAsUser']} --regid {security['runAsGroup']} --groups {security['fsGroup']}"
        f" --no-new-privs --bounding-set -all --inh-caps -all {binaries_inside}/02_digits {' '.join(ARGUMENTS)}",
    ]
    log = open(work / f"log-{ordinal}", "w")
    return subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "bash", "-c", "\n".join(steps)],
        env=environment(ordinal), stdout=log, stderr=log, cwd="/",
    )


def inside(process, command, seconds):
    """Runs a command of the manifest in a pod, as the kubelet would: its exit code."""
    user = ["setpriv", "--reuid", str(security["runAsUser"]), "--regid", str(security["runAsGroup"]), "--groups", str(security["fsGroup"])]
    done = subprocess.run(
        ["nsenter", "--target", str(process.pid), "--mount", "--", *user, *command],
        env={"PATH": f"{binaries_inside}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=seconds, cwd="/",
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def probe(process, kind):
    told = container[kind]
    return inside(process, told["exec"]["command"], told["timeoutSeconds"])


def until(what, holds, seconds):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            fail(f"not so in time: {what}")
        time.sleep(0.2)


def fail(why):
    for log in sorted(work.glob("log-*")):
        print(f"--- {log.name}", *log.read_text().splitlines()[-10:], sep="\n", file=sys.stderr)
    sys.exit(f"BROKEN  {why}")


def prepare():
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "tmpfs", "tmpfs", "/mnt")
    run("ip", "link", "set", "lo", "up")
    for folder in ("claim", "secret", "binaries", "etc"):
        (work / folder).mkdir(parents=True)
    run("mount", "--bind", str(binaries), str(binaries_inside))
    # The image has these folders; here those that are missing are made, and removed in the end.
    for mount in container["volumeMounts"]:
        path = pathlib.Path(mount["mountPath"])
        if not path.exists():
            path.mkdir()
            made.append(path)
    key = work / "secret" / "cluster.key"
    run(str(binaries / "slowmo"), "keygen", "--out", str(key), stdout=subprocess.DEVNULL)
    (mode,) = [volume["secret"]["defaultMode"] for volume in pod["volumes"] if "secret" in volume]
    # With fsGroup, the kubelet gives a secret's files to that group, and lets it read them.
    os.chown(key, 0, security["fsGroup"])
    os.chmod(key, mode | 0o040)
    os.chown(work / "claim", 0, security["fsGroup"])
    os.chmod(work / "claim", 0o2770)
    hosts = work / "etc" / "hosts"
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address(ordinal)} {service}\n" for ordinal in ordinals))
    run("mount", "--bind", str(hosts), "/etc/hosts")


def main():
    prepare()
    pods = {ordinal: started(ordinal) for ordinal in ordinals}
    until("the startup probes succeed", lambda: all(probe(process, "startupProbe")[0] == 0 for process in pods.values()), MEMBERS_SECONDS)
    until("the readiness probes succeed", lambda: all(probe(process, "readinessProbe")[0] == 0 for process in pods.values()), MEMBERS_SECONDS)
    for ordinal, process in pods.items():
        code, told = probe(process, "livenessProbe")
        if code != 0:
            fail(f"liveness of pod {ordinal}: {told}")
    saw(f"{replicas} pods are started, live and ready")
    last = pods.pop(ordinals[-1])
    stop = container["lifecycle"]["preStop"]["exec"]["command"]
    code, told = inside(last, stop, DRAIN_SECONDS)
    if code != 0 or last.wait(timeout=DRAIN_SECONDS) != 0:
        fail(f"the pre-stop command ended with {code}, the container with {last.returncode}: {told}")
    saw(f"pod {ordinals[-1]}: pre-stop command and container ended with 0")
    # A pod that is deleted without its pre-stop command gets SIGTERM.
    last = pods.pop(ordinals[-2])
    last.terminate()
    if last.wait(timeout=DRAIN_SECONDS) != 0:
        fail(f"the container ended with {last.returncode} after SIGTERM")
    saw(f"pod {ordinals[-2]}: ended with 0 after SIGTERM")
    for ordinal, process in pods.items():
        code, told = probe(process, "readinessProbe")
        if code != 0:
            fail(f"readiness of pod {ordinal} afterwards: {told}")
    again = started(ordinals[-1])
    until("a pod that starts again is ready", lambda: probe(again, "readinessProbe")[0] == 0, MEMBERS_SECONDS)
    saw(f"pod {ordinals[-1]}: started again, and ready")


began = time.monotonic()
binaries_inside = work / "binaries"
made = []
try:
    main()
finally:
    for path in made:
        path.rmdir()
print("ok      the pods of ops/kubernetes/base, as processes")
