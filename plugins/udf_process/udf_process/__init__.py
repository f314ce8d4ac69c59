"""Process table functions: changelogs, sessions, joins, rules, deduplication, medians, funnels, deadlines."""

import udf_server as udf
from udf_process.changelogs import FromChangelog, ToChangelog
from udf_process.deduplicating import Deduplicate
from udf_process.fraud import FraudRules
from udf_process.funnel import Funnel
from udf_process.joining import OneMatchJoin
from udf_process.median import TrailingMedian
from udf_process.sessions import SessionAlerts
from udf_process.sla import SlaAlerts

__all__ = [
    "Deduplicate", "FraudRules", "FromChangelog", "Funnel", "OneMatchJoin", "SessionAlerts", "SlaAlerts",
    "ToChangelog", "TrailingMedian", "udf_functions",
]  # fmt: skip


@udf.hookimpl
def udf_functions() -> list[type[udf.ProcessTableFunction]]:
    """The functions of this plugin."""
    return [
        ToChangelog, FromChangelog, SessionAlerts, OneMatchJoin, FraudRules, Deduplicate, TrailingMedian, Funnel,
        SlaAlerts,
    ]  # fmt: skip
