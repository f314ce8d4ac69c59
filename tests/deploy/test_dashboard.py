"""The Grafana dashboard: committed as it is made, of metrics there are, laid out without overlaps."""

import json
import re

import pytest
import yaml

from deploy.__main__ import FOLDER, generated
from deploy.dashboard import WIDTH, dashboard
from tests.deploy.queries import catalogue, metrics_of, panels


@pytest.mark.parametrize("path", generated(), ids=lambda path: path.name)
def test_generated_files_are_up_to_date(path):
    """`make monitoring` makes them so."""
    assert path.read_text() == generated()[path]


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_asks_for_metrics_that_there_are(panel):
    asked = {name for target in panel["targets"] for name in metrics_of(target["expr"])}
    assert asked
    assert asked <= catalogue()


def test_every_metric_is_on_the_dashboard():
    def family(name):
        return re.sub("_(bucket|sum|count)$", "", name)

    shown = {family(name) for panel in panels() for target in panel["targets"] for name in metrics_of(target["expr"])}
    served = {family(name) for name in catalogue() if ":" not in name} - {"up"}
    assert served - shown == set()


def test_panels_stand_beside_each_other():
    taken = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < WIDTH for x, _ in cells)
        taken |= cells


def test_rows_of_panels_have_no_gaps():
    rows = {}
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        rows.setdefault(place["y"], []).append((place["x"], place["w"], place["h"]))
    for places in rows.values():
        assert sum(width for _, width, _ in places) == WIDTH
        assert len({height for _, _, height in places}) == 1


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_series_of_a_panel_have_names_of_their_own(panel):
    """Each label that tells series apart is in the legend, and no other one, which would be empty."""
    for target in panel["targets"]:
        kept = [set(found.replace(" ", "").split(",")) for found in re.findall(r"\bby \(([^)]*)\)", target["expr"])]
        apart = set.union(*kept) if kept else set()
        if "histogram_quantile" in target["expr"]:
            apart -= {"le"}
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) == apart
    if panel["type"] == "stat":
        return
    legends = [target["legendFormat"] for target in panel["targets"]]
    assert all(legends) and len(set(legends)) == len(legends)


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_has_the_unit_of_its_queries(panel):
    unit = panel["fieldConfig"]["defaults"]["unit"]
    for target in panel["targets"]:
        query = target["expr"]
        if panel["type"] == "heatmap":
            assert (panel["options"]["yAxis"]["unit"], panel["options"]["cellValues"]["unit"]) == ("s", "cps")
        elif query.startswith("histogram_quantile"):
            assert unit == "s" and "_seconds_bucket" in query
        elif ") / sum" in query:
            # Of two rates: a share if they are of one metric, a mean if they are of one summary.
            first, second = (metrics_of(part) for part in query.split(" / "))
            assert unit == ("percentunit" if first == second else "s" if "_seconds_sum" in query else "short")
        elif "_ratio" in query:
            assert unit == "percentunit"
        elif "rate(" in query:
            of_time = "_seconds_total" in query
            assert unit == ("percentunit" if of_time else "Bps" if "bytes" in query else "cps")
        else:
            assert unit == ("bytes" if "_bytes" in query else "short")


def test_ids_and_titles_are_unique():
    made = dashboard()["panels"]
    assert len({panel["id"] for panel in made}) == len(made)
    assert len({panel["title"] for panel in panels()}) == len(panels())


def test_provisioning_finds_the_dashboard_and_its_data():
    """Grafana reads these files at its start; compose.yaml mounts them."""
    (source,) = yaml.safe_load((FOLDER / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    (provider,) = yaml.safe_load((FOLDER / "grafana/provisioning/dashboards/dashboards.yml").read_text())["providers"]
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    assert any(
        mount.endswith(f":{provider['options']['path']}:ro") for mount in compose["services"]["grafana"]["volumes"]
    )
    made = json.loads((FOLDER / "grafana/dashboards/udf-server.json").read_text())
    used = {panel["datasource"]["uid"] for panel in made["panels"] if panel["type"] != "row"}
    assert used == {"${datasource}"}
    assert made["templating"]["list"][0]["name"] == "datasource"
