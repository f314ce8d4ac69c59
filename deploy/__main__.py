"""`python -m deploy`: writes the generated files: the Grafana dashboard, the rules as a resource, the Helm chart."""

import json
from pathlib import Path

from deploy.chart import chart
from deploy.dashboard import dashboard

__all__ = ["generated", "main"]

FOLDER = Path(__file__).parent
RULES_HEAD = """\
# Made by `python -m deploy` of prometheus/rules; the operator of Prometheus reads it.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: udf-server
spec:
  groups:
"""


def _rules() -> str:
    """The groups of every rule file, as a Kubernetes PrometheusRule."""
    parts = []
    for path in sorted((FOLDER / "prometheus/rules").glob("*.yml")):
        _, _, groups = path.read_text().partition("groups:\n")
        parts += [f"  {line}" if line.strip() else line for line in groups.splitlines(keepends=True)]
    return RULES_HEAD + "".join(parts)


def generated() -> dict[Path, str]:
    """The expected content of each generated file."""
    return {
        FOLDER / "grafana/dashboards/udf-server.json": json.dumps(dashboard(), indent=2) + "\n",
        FOLDER / "kubernetes/components/monitoring/rules.yaml": _rules(),
        **{FOLDER / "helm/udf-server" / path: text for path, text in chart(_rules()).items()},
    }


def main() -> None:
    """Writes the generated files."""
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
