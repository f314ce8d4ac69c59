"""The values of the Helm chart: their defaults, what they mean, and the schema by which Helm checks them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

__all__ = ["VALUES", "schema", "values_file"]

BASE = Path(__file__).parent / "kubernetes/base"
TYPES = {str: "string", bool: "boolean", int: "integer", list: "array", dict: "object"}


@dataclass(frozen=True)
class Value:
    """One value. `path` has a dot between the name of its group and its own."""

    path: str
    default: Any
    doc: str
    limits: dict[str, Any] = field(default_factory=dict)
    """Further keywords of its JSON schema."""


def _resources() -> dict[str, Any]:
    """Those of the container in the manifest of kustomize."""
    deployment = yaml.safe_load((BASE / "deployment.yaml").read_text())
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]
    return found


VALUES = (
    Value("name", "udf-server", "Name of the resources and of their label. The rules of alerts expect the default.",
          {"minLength": 1}),
    Value("image.repository", "udf-server", "Image of the server with your plugins.", {"minLength": 1}),
    Value("image.tag", "", "Its tag."),
    Value("imagePullSecrets", [], "Secrets for the image's registry."),
    Value("replicas", 2, "Number of servers without autoscaling.", {"minimum": 0}),
    Value("settings", (BASE / "server.toml").read_text(), "The server's settings: the text of `server.toml`."),
    Value("env", [], "Further environment variables of the server, such as settings that are secret."),
    Value("resources", _resources(), "Resources of a server. It runs a process for each whole core of `limits.cpu`."),
    Value("nodeSelector", {}, "Labels of the nodes on which servers run."),
    Value("tolerations", [], "Taints that servers tolerate."),
    Value("groupPorts", 0, "Number of ports for groups, after 50051. Without one, the process there passes streams on.",
          {"minimum": 0}),
    Value("allowAnonymous", False, "Accept every pod of Spark without a token."),
    Value("access.secretName", "", "Secret with `access.toml`, the rules of access. Empty: none."),
    Value("tls.secretName", "", "Secret with the certificate, which turns on TLS. Empty: no TLS."),
    Value("tls.issuer", "", "ClusterIssuer of cert-manager that creates it. Empty: the Secret is there already."),
    Value("spark.namespace", "", "Namespace of Spark's pods. Empty: that of the release."),
    Value("autoscaling.kind", "none", "`none`, `hpa` (needs prometheus-adapter) or `keda`.",
          {"enum": ["none", "hpa", "keda"]}),
    Value("autoscaling.minReplicas", 0, "Least number of servers. 0 needs `keda`.", {"minimum": 0}),
    Value("autoscaling.maxReplicas", 20, "Largest number of servers.", {"minimum": 1}),
    Value("autoscaling.rowsInFlight", 2000, "Rows that a server should have in flight.", {"minimum": 1}),
    Value("autoscaling.prometheus", "http://prometheus-operated.monitoring.svc:9090", "Prometheus that KEDA asks."),
    Value("monitoring.enabled", False, "Create a ServiceMonitor and a PrometheusRule, for the operator of Prometheus."),
    Value("monitoring.namespace", "monitoring", "Namespace of Prometheus, which may read metrics.", {"minLength": 1}),
)  # fmt: skip


def _tree() -> dict[str, Any]:
    """The values by group and name, as a tree."""
    tree: dict[str, Any] = {}
    for value in VALUES:
        group, _, name = value.path.rpartition(".")
        (tree.setdefault(group, {}) if group else tree)[name] = value
    return tree


def values_file() -> str:
    """The text of values.yaml."""
    return "# Made by `python -m deploy`.\n" + "".join(_lines(_tree(), ""))


def _lines(tree: dict[str, Any], indent: str) -> list[str]:
    lines = []
    for name, each in tree.items():
        if isinstance(each, Value):
            text = yaml.dump({name: each.default}, Dumper=_Dumper, sort_keys=False, width=1000)
            lines += [f"{indent}# {each.doc}\n", *(f"{indent}{line}\n" for line in text.splitlines())]
        else:
            lines += [f"{indent}{name}:\n", *_lines(each, f"{indent}  ")]
    return lines


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else '"' if not text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def schema() -> dict[str, Any]:
    """The JSON schema of the values. A value that is not known is an error."""
    return {"$schema": "http://json-schema.org/draft-07/schema#", **_object(_tree(), "")}


def _object(tree: dict[str, Any], group: str) -> dict[str, Any]:
    properties = {}
    for name, each in tree.items():
        if isinstance(each, Value):
            properties[name] = {"type": TYPES[type(each.default)], "description": each.doc, **each.limits}
        else:
            properties[name] = _object(each, name)
    if not group:
        # Helm gives every chart these.
        properties["global"] = {"type": "object"}
    return {"type": "object", "additionalProperties": False, "properties": properties}
