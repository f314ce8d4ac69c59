"""metric_value reads the metrics that a plugin has declared."""

from udf_server.plugins.metrics import PLUGIN_METRICS

__all__ = ["metric_value"]


def metric_value(sample: str, **labels: object) -> float:
    """The value of a metric of a plugin, in this process since its start. Compare the values before and after a call.

    Args:
        sample: A name as Prometheus has it: a counter's ends with `_total`, a histogram has `_count` and `_sum`.
        **labels: Values of labels, `function` and `version` among them. Series that differ in others are added.

    Returns:
        The sum; 0.0 if nothing was counted.
    """
    wanted = {label: str(value) for label, value in labels.items()}
    return sum(
        each.value
        for metric in PLUGIN_METRICS.collect()
        for each in metric.samples
        if each.name == sample and wanted.items() <= each.labels.items()
    )
