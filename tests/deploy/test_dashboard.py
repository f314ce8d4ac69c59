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
    # Bytes are shown by direction, which udf_bytes_total has, and batches by their rows.
    assert served - shown == {"udf_batch_bytes", "udf_batches_total"}


def test_panels_stand_beside_each_other():
    taken = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < WIDTH for x, _ in cells)
        taken |= cells


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
