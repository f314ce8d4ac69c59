"""The setting `devices`: names, variables of the environment, and what is refused."""

import pytest

from udf_server.base.errors import InvalidConfig
from udf_server.serving.config import ServerConfig, load_config
from udf_server.serving.devices import device_inside, environment_of


@pytest.mark.parametrize(
    "text", ['devices = ["cuda:0", "cuda:1"]', 'devices = "0,1"', 'devices = ["0, 1"]', 'devices = "cuda:0, 1,"']
)
def test_devices_are_a_list_or_a_text_and_a_number_means_cuda(tmp_path, text):
    file = tmp_path / "server.toml"
    file.write_text(text)
    assert load_config(file).devices == ("cuda:0", "cuda:1")


def test_devices_come_from_the_environment_and_from_flags():
    assert load_config(None, {"UDF_CONFIG_DEVICES": "rocm:1,xpu:0"}).devices == ("rocm:1", "xpu:0")
    assert load_config(flags={"devices": ("0,1", "cuda:GPU-8932f937-d72c")}).devices == (
        "cuda:0", "cuda:1", "cuda:GPU-8932f937-d72c",
    )  # fmt: skip


@pytest.mark.parametrize("device", ["gpu0", "cuda", "cuda:", "cpu", "-1", "tpu:0", "cuda:0 1", "cuda:a,b:c"])
def test_what_is_no_device_is_refused(device):
    with pytest.raises(
        InvalidConfig, match=r"setting 'devices': .* is not a device; write a number, or cuda:0, rocm:0"
    ):
        ServerConfig(devices=(device,))


def test_a_device_has_one_process():
    with pytest.raises(InvalidConfig, match=r"'cuda:1' is listed twice; .* set the option 'instances'"):
        ServerConfig(devices=("cuda:1", "1"))
    with pytest.raises(InvalidConfig, match="setting 'processes': 3, but each of the 2 devices has one process"):
        ServerConfig(devices=("0", "1"), processes=3)
    assert ServerConfig(devices=("0", "1"), processes=2).devices == ("cuda:0", "cuda:1")


@pytest.mark.parametrize(
    ("device", "environment", "variables"),
    [
        ("cuda:1", {}, {"CUDA_VISIBLE_DEVICES": "1"}),
        ("cuda:1", {"CUDA_VISIBLE_DEVICES": "2, 5"}, {"CUDA_VISIBLE_DEVICES": "5"}),
        ("cuda:MIG-1", {"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "MIG-1"}),
        ("rocm:0", {"CUDA_VISIBLE_DEVICES": "7"}, {"HIP_VISIBLE_DEVICES": "0"}),
        ("xpu:3", {}, {"ZE_AFFINITY_MASK": "3"}),
    ],
)
def test_a_process_is_shown_its_device_only(device, environment, variables):
    assert environment_of(device, environment) == variables


def test_a_number_that_the_environment_does_not_show_is_refused():
    with pytest.raises(
        InvalidConfig, match=r"no 'cuda:2': CUDA_VISIBLE_DEVICES .* is '4,5', so the last one is cuda:1"
    ):
        environment_of("cuda:2", {"CUDA_VISIBLE_DEVICES": "4,5"})


def test_a_device_is_number_0_in_its_process():
    assert list(map(device_inside, ("cuda:3", "xpu:1", "rocm:2"))) == ["cuda:0", "xpu:0", "cuda:0"]
