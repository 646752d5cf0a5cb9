"""Generate deploy/grafana-dashboard.json from a list of panels.

Each panel is one line here. A test executes every query.
"""

import json
from typing import Any

from render import ROOT, main

TARGET = ROOT / "deploy" / "grafana-dashboard.json"
# of a panel; a row has 24
WIDTH = 8
HEIGHT = 7

# Title, unit (Grafana's name), and queries with their legends. A study is chosen above; "All" is
# every one.
PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Sites connected",
        "none",
        (("sum(coreg_site_connected)", "here"), ("count(coreg_site_connected)", "listed")),
    ),
    ("Runs", "none", (("coreg_runs", "{{state}}"),)),
    (
        "Runs finished, a day",
        "none",
        (('sum by (stop) (increase(coreg_runs_finished_total{study=~"$study"}[1d]))', "{{stop}}"),),
    ),
    (
        "Rounds a second",
        "none",
        (('sum by (study) (rate(coreg_rounds_total{study=~"$study"}[5m]))', "{{study}}, rounds"),),
    ),
    (
        "Seconds a step",
        "s",
        (
            (
                (
                    'sum by (study, phase) (rate(coreg_step_seconds_sum{study=~"$study"}[5m]))'
                    ' / sum by (study, phase) (rate(coreg_step_seconds_count{study=~"$study"}[5m]))'
                ),
                "{{study}} {{phase}}, mean",
            ),
            (
                (
                    "histogram_quantile(0.95, sum by (le)"
                    ' (rate(coreg_step_seconds_bucket{study=~"$study"}[5m])))'
                ),
                "95 %",
            ),
        ),
    ),
    (
        "On the wire",
        "Bps",
        (("sum by (direction) (rate(coreg_bytes_total[5m]))", "{{direction}}"),),
    ),
    ("Free disk of the run store", "bytes", (("coreg_store_free_bytes", "free"),)),
    (
        "Rejected, stalled",
        "none",
        (
            ("sum by (what) (increase(coreg_refused_total[1h]))", "{{what}} rejected"),
            ("sum(increase(coreg_stalls_total[1h]))", "stalls"),
        ),
    ),
    (
        "Days to the ends of certificates",
        "d",
        (("(coreg_site_certificate_not_after_seconds - time()) / 86400", "{{site}}"),),
    ),
)
SOURCE = {"type": "prometheus", "uid": "${source}"}
STUDIES = "label_values(coreg_rounds_total, study)"


def dashboard() -> dict[str, Any]:
    variables = [
        {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "study",
            "type": "query",
            "datasource": SOURCE,
            "query": STUDIES,
            "definition": STUDIES,
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    return {
        "uid": "coreg",
        "title": "coreg",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "panels": [panel(number, *each) for number, each in enumerate(PANELS)],
    }


def panel(
    number: int, title: str, unit: str, queries: tuple[tuple[str, str], ...]
) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": {
            "x": WIDTH * (number % 3),
            "y": HEIGHT * (number // 3),
            "w": WIDTH,
            "h": HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": unit, "custom": {}}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + k),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for k, (expression, legend) in enumerate(queries)
        ],
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    raise SystemExit(main(__doc__, lambda: {TARGET: text()}))
