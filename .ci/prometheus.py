"""Asks a Prometheus that scrapes nodes whether each query of the Grafana dashboard and each rule's expression returns data.

`addresses` reads what `slowmo status --json` says, a line each, and prints where the nodes serve, as JSON; exits with 1 if one does
not yet. `configuration TARGETS FOLDER` prints a configuration of Prometheus that scrapes them under the rules of a folder.
`check URL` waits until all of it returns data, and exits with 1 and what does not.
"""

import json
import math
import pathlib
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

DASHBOARD = pathlib.Path("ops/grafana/slowmo.json")
# The jobs of this run: the four nodes, and the one with a certificate.
JOBS, NODES = ["training", "certificate"], [4, 1]
# Until two rounds and two checkpoints are behind; a rate needs two scrapes.
WAIT_SECONDS = 90


def addresses():
    decoder, text, reports = json.JSONDecoder(), sys.stdin.read().strip(), []
    while text:
        report, end = decoder.raw_decode(text)
        reports.append(report)
        text = text[end:].lstrip()
    found = [[node.get("http") for node in report["nodes"]] for report in reports]
    if [len(list(filter(None, nodes))) for nodes in found] != NODES:
        sys.exit(1)
    print(json.dumps(dict(zip(JOBS, found))))


def configuration(targets, folder):
    # JSON is YAML.
    scrapes = [
        {"job_name": job, "scrape_interval": "1s", "static_configs": [{"targets": nodes}]}
        for job, nodes in json.loads(targets).items()
    ]
    print(json.dumps({"global": {"evaluation_interval": "1s"}, "rule_files": [f"{folder}/slowmo.rules.yml"], "scrape_configs": scrapes}))


def ask(url, path, **arguments):
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}", timeout=5) as answer:
        return json.load(answer)["data"]


def panels(folder):
    for panel in folder["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", []))
        yield from panels(panel) if "panels" in panel else ()


def filled(query):
    """A query of the dashboard as Grafana asks it, with all nodes of the four chosen."""
    for variable, value in (("$job", JOBS[0]), ("$instance", ".+"), ("$__rate_interval", "10s"), ("$__range", "1m")):
        query = query.replace(variable, value)
    assert "$" not in query, f"{query}: a variable that this script does not know"
    return query


def judged(expression):
    """A rule's expression that says 0 where the rule would not fire, instead of nothing."""
    judged, count = re.subn(r" (==|!=|<=|>=|<|>) ", r" \1 bool ", expression)
    assert count == 1, f"{expression}: no single comparison"
    return judged


def numbers(url, query):
    """Values of a query that are numbers. A quantile of no observation is none."""
    values = [float(sample["value"][1]) for sample in ask(url, "query", query=query)["result"]]
    return [value for value in values if not math.isnan(value)]


def lacking(url):
    """What returns no data now, by name."""
    dashboard = json.loads(DASHBOARD.read_text())
    for title, query in panels(dashboard):
        if not numbers(url, filled(query)):
            yield f"panel {title!r}: {query}"
    for variable in dashboard["templating"]["list"]:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable.get("definition", ""))
        if found and not ask(url, f"label/{found[2]}/values", **{"match[]": filled(found[1])}):
            yield f"variable {variable['name']!r}: {variable['definition']}"
    for group in ask(url, "rules")["groups"]:
        for rule in group["rules"]:
            if rule["health"] != "ok":
                yield f"rule {rule['name']}: {rule.get('lastError') or rule['health']}"
            elif not numbers(url, judged(rule["query"])):
                yield f"rule {rule['name']}: {rule['query']}"
    for target in ask(url, "targets")["activeTargets"]:
        if target["health"] != "up":
            yield f"node {target['labels']['instance']}: {target['lastError'] or target['health']}"


def wrong(url):
    """What a training that is well must not say."""
    firing = {alert["labels"]["alertname"] for alert in ask(url, "alerts")["alerts"] if alert["state"] == "firing"}
    yield from (f"{alert} fires" for alert in sorted(firing))
    pending = {alert["labels"]["alertname"] for alert in ask(url, "alerts")["alerts"]}
    if pending != {"SlowmoCertificateNearItsEnd"}:
        yield f"alerts that are pending: {sorted(pending)}, where only the certificate's is expected"
    (members,) = numbers(url, f'max(slowmo_members{{job="{JOBS[0]}"}})')
    if members != NODES[0]:
        yield f"{members} members, where {NODES[0]} nodes run"


def check(url):
    deadline, found = time.monotonic() + WAIT_SECONDS, ["Prometheus does not answer"]
    while found and time.monotonic() < deadline:
        time.sleep(1)
        try:
            found = list(lacking(url)) or list(wrong(url))
        except (urllib.error.URLError, TimeoutError) as error:
            found = [f"{url}: {error}"]
    if found:
        sys.exit("\n".join(["no data, or not what was expected:", *found]))
    queries = len(list(panels(json.loads(DASHBOARD.read_text()))))
    rules = sum(len(group["rules"]) for group in ask(url, "rules")["groups"])
    print(f"        {queries} queries, {rules} rules, {len(ask(url, 'targets')['activeTargets'])} nodes")


commands = {"addresses": addresses, "configuration": configuration, "check": check}
commands[sys.argv[1]](*sys.argv[2:])
