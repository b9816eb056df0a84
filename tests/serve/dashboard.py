"""The dashboard names only series that a pond has in /metrics, and each panel asks for something.

dashboard.py DASHBOARD METRICS
"""

import json
import re
import sys

# A duck without a sensor tells no temperature: a family without a series, so without labels.
NOT_EVERYWHERE = {"duckpond_duck_temperature_celsius"}

with open(sys.argv[2], encoding="utf-8") as file:
    page = file.read()
there = set()
endings = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
labels = {}
for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE):
    there.update(name + ending for ending in endings[kind])
for name, written in re.findall(r"^(\w+)\{(.*)\} \S+$", page, re.MULTILINE):
    labels.setdefault(name, set()).update(re.findall(r'(\w+)="', written))
assert "duckpond_ready" in there and "duckpond_port_up" in there, page

with open(sys.argv[1], encoding="utf-8") as file:
    dashboard = json.load(file)
assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]), "two panels have one id"
panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
# What Prometheus adds itself.
ADDED = {"job", "instance"}
named = set()
for panel in panels:
    assert panel["targets"], panel["title"]
    for target in panel["targets"]:
        series = set(re.findall(r"\bduckpond_\w+", target["expr"]))
        assert series, panel["title"]
        named |= series
        used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        for name in series - NOT_EVERYWHERE:
            missing = used - labels.get(name, set()) - ADDED
            assert not missing, f"{panel['title']}: {name} has no label {missing}"
for variable in dashboard["templating"]["list"]:
    named |= set(re.findall(r"\bduckpond_\w+", variable["query"]))
unknown = sorted(named - there)
assert not unknown, f"the dashboard names what /metrics has not: {unknown}"
unseen = sorted(name for name in there - named if not name.endswith(("_sum", "_count")))
assert not unseen, f"the dashboard does not show {unseen}"
print(f"ok: {len(panels)} panels over {len(named)} series")
