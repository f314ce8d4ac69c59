"""The Helm chart, made from the manifests of kustomize: what differs between installations becomes a value.

`deploy/kubernetes` is the only source. A replacement names text of a manifest, so a manifest that changes is noticed.
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from deploy.chart_values import schema, values_file
from remote_udf.version import __version__

__all__ = ["chart"]

KUBERNETES = Path(__file__).parent / "kubernetes"
NAME, PART = "{{ .Values.name }}", "remote-udf"
HEAD = "# Made by `python -m deploy` of {source}.\n"
LABEL = re.compile(r"^( +)app\.kubernetes\.io/name: udf-server\n", re.MULTILINE)
LABELS = {"app.kubernetes.io/name": "udf-server", "app.kubernetes.io/part-of": PART}
ACCESS, TLS = ".Values.access.secretName", ".Values.tls.secretName"
NAMESPACE = """\
          namespaceSelector:
            matchLabels:
              kubernetes.io/metadata.name: {{ .Values.spark.namespace }}
"""
SECRETS = {"udf-server-access": f"{{{{ {ACCESS} }}}}", "udf-server-tls": f"{{{{ {TLS} }}}}"}
CHART = f"""\
# Made by `python -m deploy`.
apiVersion: v2
name: udf-server
description: User-defined functions in their own service, for PySpark
type: application
version: {__version__}
appVersion: {__version__}
kubeVersion: ">=1.29.0-0"
"""


def _replaced(text: str, *pairs: tuple[str, str]) -> str:
    """The text with each of these parts replaced. Raises ValueError if one is not there exactly once."""
    for old, new in pairs:
        if text.count(old) != 1:
            raise ValueError(f"found {text.count(old)} times in the manifest, expected once: {old!r}")
        text = text.replace(old, new)
    return text


def _when(condition: str, lines: str) -> str:
    return f"{{{{- if {condition} }}}}\n{lines}{{{{- end }}}}\n"


def _each_group(line: str) -> str:
    """The line for each port of a group: its number is `$n`, and its port `$port`."""
    return (
        "{{- range $n := untilStep 1 (int .Values.groupPorts | add1 | int) 1 }}\n"
        f"{line.replace('$n', '{{ $n }}').replace('$port', '{{ add 50051 $n }}')}{{{{- end }}}}\n"
    )


def _labels(indent: int) -> str:
    return "".join(f"{' ' * indent}{key}: {value}\n" for key, value in LABELS.items())


def _base(name: str, *pairs: tuple[str, str], head: str = "metadata:\n  name: udf-server\n") -> str:
    """A manifest of the base as a template, with the labels that kustomize adds."""
    source = f"kubernetes/base/{name}"
    # kustomize adds the second label to the selectors too.
    text = LABEL.sub(rf"\g<0>\1app.kubernetes.io/part-of: {PART}\n", (KUBERNETES / "base" / name).read_text())
    text = _replaced(text, (head, f"{head}  labels:\n{_labels(4)}"), *pairs)
    return HEAD.format(source=source) + text


def _component(name: str, condition: str, *pairs: tuple[str, str]) -> str:
    """A manifest of a component as a template that is there only under a condition."""
    text = _replaced((KUBERNETES / "components" / name).read_text(), *pairs)
    return HEAD.format(source=f"kubernetes/components/{name}") + _when(condition, text)


def _additions(component: str, target: str) -> str:
    """The items that a component adds to a list of the Deployment, as lines of YAML."""
    settings = yaml.safe_load((KUBERNETES / f"components/{component}/kustomization.yaml").read_text())
    lines = ""
    for patch in settings["patches"]:
        for each in yaml.safe_load(patch["patch"]):
            if each["op"] == "add" and each["path"].endswith(f"/{target}/-"):
                item = yaml.safe_dump(each["value"], default_flow_style=True, sort_keys=False, width=1000).strip()
                for secret, value in SECRETS.items():
                    item = item.replace(secret, f'"{value}"')
                lines += f"{'        ' if target == 'volumes' else '            '}- {item}\n"
    return lines


def _optional(target: str) -> str:
    return _when(ACCESS, _additions("access", target)) + _when(TLS, _additions("tls", target))


def _named(text: str) -> str:
    """The template with the value `name` in place of the name of resources and labels. The container keeps its name."""
    for before in (
        "  name: udf-server\n", "serviceAccountName: udf-server\n", "app.kubernetes.io/name: udf-server\n",
        "- udf-server\n", "- udf-server.",
    ):  # fmt: skip
        text = text.replace(before, before.replace("udf-server", NAME))
    return text.replace("name: udf-server-settings", f"name: {NAME}-settings")


def _deployment() -> str:
    metrics = "            - name: metrics\n              containerPort: 9464\n"
    env = '            - {name: UDF_CONFIG_PORT, value: "50051"}\n'
    tmp = "            - {name: tmp, mountPath: /tmp}\n"
    last = "          emptyDir: {sizeLimit: 256Mi}\n"
    anonymous = '            - {name: UDF_CONFIG_ALLOW_ANONYMOUS, value: "true"}\n'
    own = "{{- with .Values.env }}\n{{ toYaml . | indent 12 }}\n{{- end }}\n"
    pod = "".join(f"{{{{- with .Values.{name} }}}}\n      {name}:\n{{{{ toYaml . | indent 8 }}}}\n{{{{- end }}}}\n"
                  for name in ("nodeSelector", "tolerations", "imagePullSecrets"))  # fmt: skip
    text = _base(
        "deployment.yaml",
        ("  replicas: 2\n", _when('eq .Values.autoscaling.kind "none"', "  replicas: {{ .Values.replicas }}\n")),
        (
            "  template:\n    spec:\n",
            f"  selector:\n    matchLabels:\n{_labels(6)}  template:\n    metadata:\n      labels:\n{_labels(8)}"
            "      annotations:\n        checksum/settings: {{ .Values.settings | sha256sum }}\n    spec:\n" + pod,
        ),
        ("          image: udf-server\n",
         "          image: {{ .Values.image.repository }}{{ with .Values.image.tag }}:{{ . }}{{ end }}\n"),
        (env, env + _optional("env") + _when(".Values.allowAnonymous", anonymous) + own),
        (metrics, metrics + _each_group("            - {name: group-$n, containerPort: $port}\n")),
        (tmp, tmp + _optional("volumeMounts")),
        (last, last + _optional("volumes")),
        ('            requests: {cpu: "1", memory: 1Gi}\n            limits: {memory: 2Gi}\n',
         "{{ toYaml .Values.resources | indent 12 }}\n"),
        # The container keeps its name whatever the release is called.
        ("        - name: udf-server\n", "        - name: &container udf-server-container\n"),
    )  # fmt: skip
    return _named(text).replace("&container udf-server-container", "udf-server")


def _templates() -> dict[str, str]:
    plain = ", appProtocol: kubernetes.io/h2c"
    grpc, metrics = "        - {port: grpc}\n", "    - {name: metrics, port: 9464, targetPort: metrics}\n"
    groups = "        - {port: 50052, endPort: {{ add 50051 .Values.groupPorts }}}\n"
    driver = "              - {key: spark-role, operator: In, values: [driver, executor]}\n"
    hpa, keda = '(eq .Values.autoscaling.kind "hpa")', '(eq .Values.autoscaling.kind "keda")'
    least, most = "{{ .Values.autoscaling.minReplicas }}", "{{ .Values.autoscaling.maxReplicas }}"
    spark = "{{ .Values.spark.namespace | default .Release.Namespace }}"
    rows = "{{ .Values.autoscaling.rowsInFlight }}"
    prometheus = "serverAddress: http://prometheus-operated.monitoring.svc:9090\n"
    scaled = (KUBERNETES / "components/keda/scaled-object.yaml").read_text()
    found = {
        "service-account.yaml": _base("service-account.yaml"),
        "service.yaml": _base(
            "service.yaml",
            ("  ports:\n", f"  selector:\n{_labels(4)}  ports:\n"),
            (plain, f"{{{{ if not {TLS} }}}}{plain}{{{{ end }}}}"),
            (metrics, metrics + _each_group("    - {name: group-$n, port: $port, targetPort: group-$n}\n")),
        ),
        "disruption-budget.yaml": _base("disruption-budget.yaml"),
        "network-policy.yaml": _base(
            "network-policy.yaml",
            (driver, driver + _when(".Values.spark.namespace", NAMESPACE)),
            (grpc, grpc + _when(".Values.groupPorts", groups)),
            ("metadata.name: monitoring", "metadata.name: {{ .Values.monitoring.namespace }}"),
        ),
        "autoscaler.yaml": _component(
            "autoscaling/autoscaler.yaml", hpa,
            ("minReplicas: 3", f"minReplicas: {least}"), ("maxReplicas: 20", f"maxReplicas: {most}"),
            ('averageValue: "2000"', f'averageValue: "{rows}"'),
        ),
        "scaled-object.yaml": _component(
            "keda/scaled-object.yaml", keda,
            (scaled, _replaced(
                scaled.replace(prometheus, "serverAddress: {{ .Values.autoscaling.prometheus }}\n"),
                ("minReplicaCount: 0", f"minReplicaCount: {least}"),
                ("maxReplicaCount: 20", f"maxReplicaCount: {most}"),
                ('namespace="spark"', f'namespace="{spark}"'), ('threshold: "2000"', f'threshold: "{rows}"'),
            ).replace('job="udf-server"', f'job="{NAME}"')),
        ),
        "certificate.yaml": _component(
            "tls/certificate.yaml", "and .Values.tls.issuer .Values.tls.secretName",
            ("secretName: udf-server-tls", f"secretName: {SECRETS['udf-server-tls']}"),
            ("name: internal # set this to your issuer", "name: {{ .Values.tls.issuer }}"),
        ),
        "service-monitor.yaml": _component("monitoring/service-monitor.yaml", ".Values.monitoring.enabled"),
    }  # fmt: skip
    certificate = found["certificate.yaml"].replace("udf-server.udf", "udf-server.{{ .Release.Namespace }}")
    settings = (
        HEAD.format(source="kubernetes/base/server.toml") + "apiVersion: v1\nkind: ConfigMap\nmetadata:\n"
        f"  name: udf-server-settings\n  labels:\n{_labels(4)}"
        "data:\n  server.toml: |\n{{ .Values.settings | indent 4 }}\n"
    )
    # Helm does not read the braces of the rules, because they are in a file.
    rules = _when(".Values.monitoring.enabled", '{{ .Files.Get "files/rules.yaml" }}')
    return {
        **{name: _named(text) for name, text in found.items()},
        "certificate.yaml": _named(certificate),
        "deployment.yaml": _deployment(),
        "settings.yaml": _named(settings),
        "rules.yaml": rules,
    }


def chart(rules: str) -> dict[str, str]:
    """The files of the chart by their path in it. `rules` are those of Prometheus, as a resource."""
    values: dict[str, Any] = schema()
    return {
        "Chart.yaml": CHART,
        "values.yaml": values_file(),
        "values.schema.json": json.dumps(values, indent=2) + "\n",
        "files/rules.yaml": rules,
        **{f"templates/{name}": text for name, text in _templates().items()},
    }
