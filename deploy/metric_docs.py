"""Generate docs/reference/metrics.md from the exporter's tables (`make reference`)."""

from __future__ import annotations

from hora_rl.deploy.monitor.prometheus import COUNTERS, GAUGES

HEAD = """# Prometheus metrics

Ray exports these with its own metrics, and every one carries the label `run`. Several ingress replicas
export the same snapshot, so aggregate with `max by (run)`. The scrape file, the alerts and the dashboard are
described in [Prometheus and Grafana](monitoring.md#prometheus-and-grafana). Generated from
`deploy/monitor/prometheus.py`.

## Gauges

| name | labels | meaning |
|---|---|---|
"""
TOTALS = """
## Counters

They count from the start of the process that exports them. A restart is an ordinary counter reset.

| name | labels | meaning |
|---|---|---|
"""


def document() -> str:
    """The page: gauges, then counters, with the names of Ray's metrics endpoint."""
    gauges = [_row(f"ray_{name}", *about) for name, about in GAUGES.items()]
    counters = [_row(f"ray_{name}_total", *about) for name, about in COUNTERS.items()]
    return "".join([HEAD, *gauges, TOTALS, *counters])


def _row(name: str, meaning: str, labels: tuple[str, ...]) -> str:
    return f"| `{name}` | {', '.join(f'`{label}`' for label in labels)} | {meaning} |\n"


if __name__ == "__main__":
    print(document(), end="")
