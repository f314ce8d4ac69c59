"""Devices: the accelerators of a group. Each has a worker process, which sees no other device.

Libraries such as CUDA read from an environment variable which devices there are. A process that sees one finds it
under the number 0, so functions need not know how many the server has.
"""

import re
from collections.abc import Mapping, Sequence

from udf_server.base.errors import InvalidConfig

__all__ = ["VARIABLES", "device_inside", "environment_of", "named_devices"]

VARIABLES = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}
"""The variable that says which devices a process sees, by kind: those of NVIDIA, AMD and Intel."""
INSIDE = {"rocm": "cuda"}
"""Kinds that libraries call by another name: PyTorch for AMD names its devices `cuda`."""
PATTERN = re.compile(rf"({'|'.join(VARIABLES)}):([A-Za-z0-9_./-]+)")


def named_devices(given: Sequence[str], processes: int, source: str = "setting ") -> tuple[str, ...]:
    """The devices of a setting: a number `1` means `cuda:1`, and a text may list several.

    `processes` is the number beside them, 0 if there is none. Raises InvalidConfig, with `source` before the key.
    """
    devices: list[str] = []
    for device in (part.strip() for text in given for part in text.split(",") if part.strip()):
        name = f"cuda:{device}" if device.isdecimal() else device
        if not PATTERN.fullmatch(name):
            raise InvalidConfig(
                f"{source}'devices': {device!r} is not a device; write a number, or "
                f"{', '.join(f'{kind}:0' for kind in VARIABLES)}, with the number or the identifier of the device"
            )
        if name in devices:
            raise InvalidConfig(
                f"{source}'devices': {name!r} is listed twice; a device has one worker process, so for several calls "
                "at once on one device set the option 'instances' of its functions"
            )
        devices.append(name)
    if devices and processes not in (0, len(devices)):
        raise InvalidConfig(
            f"{source}'processes': {processes}, but each of the {len(devices)} devices has one process (devices: "
            f"{', '.join(devices)}); remove 'processes', or list as many devices"
        )
    return tuple(devices)


def environment_of(device: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variable with which a process sees this device only.

    If the environment of the server shows some devices only, as Slurm does, the numbers of the setting count those.

    Raises InvalidConfig if there is no device of that number.
    """
    kind, _, number = device.partition(":")
    variable = VARIABLES[kind]
    visible = [each.strip() for each in environment.get(variable, "").split(",") if each.strip()]
    if not visible or not number.isdecimal():
        return {variable: number}
    if int(number) >= len(visible):
        raise InvalidConfig(
            f"setting 'devices': there is no {device!r}: {variable} of the server's environment is "
            f"{environment[variable]!r}, so the last one is {kind}:{len(visible) - 1}"
        )
    return {variable: visible[int(number)]}


def device_inside(device: str) -> str:
    """The name of a device in the process that sees it alone, such as `cuda:0`."""
    kind = device.partition(":")[0]
    return f"{INSIDE.get(kind, kind)}:0"
