"""FileTypes finds the types of files by their contents, with the files of the model that the package magika ships.

The code of magika is not used: it computes on the CPU only, with threads for all cores, for one file at a time.
"""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from udf_onnx.session import open_session

__all__ = ["BLOCK", "FileType", "FileTypes"]

MODEL = "models/standard_v3_3"
KINDS = "config/content_types_kb.min.json"
BEGIN = END = 1024
"""Bytes from the beginning and from the end that the model takes."""
BLOCK = 4096
"""Bytes at the beginning, and at the end, in which these bytes begin after white space."""
PADDING = 256
"""In place of bytes that a short file does not have."""
FEWEST = 8
"""Bytes of the shortest file that the model is asked about."""


class FileType(NamedTuple):
    """A type, such as `python` and `text/x-python`, and the probability that the model gives it."""

    label: str
    mime_type: str
    score: float


class FileTypes:
    """Magika's standard model, version 3.3 (Y. Fratantonio et al., 2024). Not thread-safe on every device."""

    def __init__(self, device: str = "cpu", threads: int = 1) -> None:
        """Raises FileNotFoundError if the package has no such files, RuntimeError if the device cannot be used."""
        spec = importlib.util.find_spec("magika")
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError("the package magika, which has the model, is not installed")
        folder = Path(spec.submodule_search_locations[0])
        config = json.loads((folder / MODEL / "config.min.json").read_text())
        self._labels: list[str] = config["target_labels_space"]
        self._overwritten: dict[str, str] = config["overwrite_map"]
        self._least = [config["thresholds"].get(label, config["medium_confidence_threshold"]) for label in self._labels]
        self._kinds = json.loads((folder / KINDS).read_text())
        self._session = open_session(folder / MODEL / "model.onnx", device, threads)

    def of(self, begins: Sequence[bytes], ends: Sequence[bytes]) -> list[FileType]:
        """The types of files, in their order.

        Args:
            begins: The first BLOCK bytes of each file, or all of it if it is shorter.
            ends: The last BLOCK bytes of each file, or all of it if it is shorter.
        """
        features = np.full((len(begins), BEGIN + END), PADDING, np.int32)
        for row, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            first, last = begin.lstrip()[:BEGIN], end.rstrip()[-END:]
            features[row, : len(first)] = np.frombuffer(first, np.uint8)
            features[row, BEGIN + END - len(last) :] = np.frombuffer(last, np.uint8)
        asked = np.flatnonzero(features[:, FEWEST - 1] != PADDING).tolist()
        found = [self._of_few_bytes(begin) for begin in begins]
        if asked:
            (scores,) = self._session.run(None, {"bytes": features[asked]})
            for row, place, score in zip(asked, scores.argmax(axis=1), scores.max(axis=1), strict=True):
                found[row] = self._of_score(place, float(score))
        return found

    def _of_few_bytes(self, content: bytes) -> FileType:
        if not content:
            return self._type("empty", 1.0)
        try:
            content.decode()
        except UnicodeDecodeError:
            return self._type("unknown", 1.0)
        return self._type("txt", 1.0)

    def _of_score(self, place: int, score: float) -> FileType:
        label = self._labels[place]
        output = self._overwritten.get(label, label)
        if score < self._least[place]:
            output = "txt" if self._kinds[output]["is_text"] else "unknown"
        return self._type(output, score)

    def _type(self, label: str, score: float) -> FileType:
        return FileType(label, self._kinds[label]["mime_type"], score)
