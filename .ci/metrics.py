"""Reads a node's metrics with the parsers of Prometheus' own Python client: OpenMetrics, which a node speaks, strictly."""

import re
import sys
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families

# The base units of Prometheus' conventions; a metric that has a unit ends with it.
UNITS = {"", "seconds", "bytes", "ratio"}

with urllib.request.urlopen(sys.argv[1]) as answer:
    kind, text = answer.headers["Content-Type"], answer.read().decode()
assert kind.startswith("application/openmetrics-text; version=1.0.0"), kind
families = list(text_string_to_metric_families(text))
for family in families:
    assert re.fullmatch(r"slowmo_[a-z][a-z0-9_]*", family.name), f"{family.name}: not named by the conventions"
    assert family.documentation, f"{family.name}: no help"
    assert family.unit in UNITS, f"{family.name}: {family.unit} is no base unit"
    assert family.samples or family.type == "histogram" or "measure" in family.name, f"{family.name}: no sample"
    for word in ("milliseconds", "_ms", "kilobytes", "_mb"):
        assert word not in family.name, f"{family.name}: not in base units"
names = {family.name for family in families}
for wanted in ("slowmo_rounds", "slowmo_round_phase_seconds", "slowmo_push_sum_weight", "slowmo_disagreement_ratio", "slowmo_loss"):
    assert wanted in names, f"{wanted} is missing among {sorted(names)}"
print(f"        {len(families)} families, {sum(len(family.samples) for family in families)} samples")
