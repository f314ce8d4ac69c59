"""The image, really built and really run: its settings, its user, its read-only root, a Spark job against it."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_udf.version import __version__
from tests.deploy.images import ROOT, Container, Images, why_not, write_base
from tests.ports import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.timeout(900),
]

PAGE = (ROOT / "docs/deployment.md").read_text()
CHILD = re.findall(r"^```dockerfile\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
ACME = """
import os
import udf_server as udf

@udf.scalar(deterministic=False)
def who(x: int) -> str:
    try:
        open("/opt/udf-server/written", "w")
    except OSError as error:
        return f"{os.getuid()}:{os.getgid()} {os.getcwd()} {error.strerror}"

@udf.hookimpl
def udf_functions():
    return [who]
"""
NUMBERED = """
# /// script
# dependencies = ["iniconfig==2.0.0"]
# ///
from importlib import metadata
import udf_server as udf

@udf.scalar
def number_of_group(x: int) -> str:
    return metadata.version("iniconfig")
"""


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    """The image of the project with the plugin geo, and an image that adds a wheel to it."""
    # Not pytest's own folder, which keeps what the last runs made: gigabytes.
    with tempfile.TemporaryDirectory(prefix="udf-images-") as name:
        folder = Path(name)
        images = Images(folder / "store")
        write_base(folder / "base.tar")
        images.load(folder / "base.tar", "localhost/base")
        (folder / "base.tar").unlink()
        images.build(
            "localhost/udf-server", ROOT / "deploy/container/Dockerfile", ROOT,
            BASE_IMAGE="localhost/base", PLUGINS="./plugins/udf_geo", VERSION=__version__,
        )  # fmt: skip
        child = folder / "child"
        child.mkdir()
        (child / "Dockerfile").write_text(CHILD)
        write_wheel(child / "acme_udfs-1.0-py3-none-any.whl")
        images.build("localhost/child", child / "Dockerfile", child)
        yield images


def write_wheel(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("acme_udfs.py", ACME)
        info = "acme_udfs-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: acme-udfs\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/entry_points.txt", "[udf_server]\nacme = acme_udfs\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_the_image_says_how_it_is_run(images: Images):
    config = images.config("localhost/udf-server")
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["udf-server"]
    assert config["Cmd"] == ["serve"]
    assert config["Healthcheck"]["Test"] == ["CMD", "udf-server", "health"]
    assert config["Labels"]["org.opencontainers.image.version"] == __version__
    assert set(config["ExposedPorts"]) == {"50051/tcp", "9464/tcp"}


def test_a_server_in_the_image_serves_a_spark_job(images: Images, spark, tmp_path: Path):
    from spark_client import connect

    config = images.config("localhost/child")
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    (tmp_path / "server.toml").write_text('drain_seconds = 5.0\n[functions.who]\ntimeout = "20 s"\n')
    ports = {"UDF_CONFIG_PORT": str(free_port()), "UDF_CONFIG_METRICS_PORT": str(free_port())}
    with images.mounted("localhost/child") as root:
        closed = Container(root, config, tmp_path, **ports).run(*config["Entrypoint"], *config["Cmd"])
        assert closed.returncode == 1
        assert "would accept every caller" in closed.stderr
        container = Container(root, config, tmp_path, **ports, UDF_CONFIG_ALLOW_ANONYMOUS="true")
        command = container.command(*config["Entrypoint"], *config["Cmd"])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                ready = json.loads(server.stdout.readline())
                geo = {"bearing@1", "geohash@1", "haversine@1", "nearest@1", "reverse_geocode@1"}
                assert set(ready["functions"]) == {*geo, "who@1"}
                asked = container.run(*config["Healthcheck"]["Test"][1:])
                assert (asked.returncode, asked.stdout.rpartition(": ")[2]) == (0, "ok\n"), asked.stderr
                remote = connect(spark, f"127.0.0.1:{ports['UDF_CONFIG_PORT']}")
                rows = spark.range(20).select(
                    remote.function("who")("id").alias("who"),
                    remote.function("haversine")("id", "id", "id", "id").alias("metres"),
                )
                assert {tuple(row) for row in rows.collect()} == {
                    ("10001:10001 /etc/udf-server Read-only file system", 0.0)
                }
            finally:
                os.kill(server.pid, signal.SIGTERM)
            assert server.wait(30) == 0
        assert container.run(*config["Healthcheck"]["Test"][1:]).returncode == 1


@pytest.fixture(scope="module")
def grouped(images: Images, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image whose settings have a group with a package of its own."""
    context = tmp_path_factory.mktemp("context")
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            copy = shutil.copytree if (ROOT / line[1:]).is_dir() else shutil.copy
            (context / line[1:]).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / line[1:], context / line[1:])
    (context / "deploy/container/numbered.py").write_text(NUMBERED)
    (context / "deploy/container/server.toml").write_text('[groups.numbered]\nplugins = ["numbered.py"]\n')
    images.build(
        "localhost/grouped", context / "deploy/container/Dockerfile", context, BASE_IMAGE="localhost/base"
    )  # fmt: skip
    return "localhost/grouped"


def test_groups_in_the_image_have_their_packages_and_nobody_can_build_more(images: Images, grouped: str):
    config = images.config(grouped)
    with images.mounted(grouped) as root:
        settings = root / "etc/udf-server"
        assert (settings / "groups.lock").exists()
        assert not list(root.glob("opt/udf-server/lib/python3*/site-packages/uv"))
        container = Container(root, config, settings)
        listed = container.run("udf-server", "functions")
        assert "number_of_group(x bigint) -> string" in listed.stdout, listed.stderr
        called = container.run("udf-server", "call", "number_of_group", "1")
        assert called.stdout == '"2.0.0"\n', called.stderr
        missing = Container(root, config, settings, UDF_CONFIG_ENVIRONMENTS="/tmp").run("udf-server", "functions")
        assert "groups.numbered: its environment /tmp/numbered-" in missing.stderr
        assert "was not built; run `udf-server sync`" in missing.stderr


def test_the_image_can_send_traces(images: Images, tmp_path: Path):
    tmp_path.chmod(0o755)
    code = "from remote_udf.tracing import start_span; print(type(start_span('udf-server', 'a span', ())).__module__)"
    with images.mounted("localhost/udf-server") as root:
        config = images.config("localhost/udf-server")
        asked = Container(root, config, tmp_path, OTEL_TRACES_EXPORTER="otlp").run("python", "-c", code)
    assert asked.stdout == "remote_udf.open_telemetry\n", asked.stderr


def test_the_image_holds_no_tests_and_no_caches(images: Images):
    with images.mounted("localhost/udf-server") as root:
        assert not list(root.glob("root/.cache/*")) and not list(root.glob("tmp/*"))
        assert not (root / "build").exists()
        packages = next(root.glob("opt/udf-server/lib/python3*/site-packages"))
        assert {path.name for path in packages.glob("udf_*")} >= {"udf_server", "udf_geo"}
        assert not (packages / "udf_geo" / "tests").exists() and not (packages / "tests").exists()
