"""Sessions of ONNX Runtime on the device that a function was given. Use it for models of your own too."""

from pathlib import Path

import onnxruntime

__all__ = ["PROVIDERS", "open_session"]

PROVIDERS = {
    "cpu": ("CPUExecutionProvider",),
    "cuda": ("CUDAExecutionProvider", "MIGraphXExecutionProvider", "ROCMExecutionProvider"),
    "xpu": ("OpenVINOExecutionProvider",),
}
"""What computes on a kind of device, by the names of ONNX Runtime; AMD's devices have the kind `cuda` too."""


def open_session(model: Path, device: str, threads: int = 1) -> onnxruntime.InferenceSession:
    """Load a model for one device.

    ONNX Runtime itself computes on the CPU if it cannot use the device. Here that is an error.

    Args:
        model: The file of the model.
        device: The device of `FunctionContext`, such as "cpu" or "cuda:0".
        threads: Number of threads with which a call computes on the CPU. The sessions of several instances, and of
            several processes, have separate threads, so all of them together should not exceed the cores.

    Raises:
        RuntimeError: The installed ONNX Runtime does not compute on this device.
    """
    kind, _, number = device.partition(":")
    wanted, installed = PROVIDERS.get(kind, ()), onnxruntime.get_available_providers()
    provider = next((each for each in wanted if each in installed), None)
    found = installed
    if provider is not None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        settings = {"device_id": int(number)} if kind == "cuda" else {}
        session = onnxruntime.InferenceSession(str(model), options, providers=[(provider, settings)])
        if session.get_providers()[0] == provider:
            return session
        found = session.get_providers()
    raise RuntimeError(
        f"model {model.name}: ONNX Runtime does not compute on device {device!r}: expected one of "
        f"{', '.join(wanted) or 'none that is known'}, found {', '.join(found)}. Install the package of ONNX Runtime "
        "for this device, such as onnxruntime-gpu, in place of onnxruntime"
    )
