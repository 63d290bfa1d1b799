"""Cached predictions of a calibrated run.

Another promise for the same map then needs no new passes.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from uce_edge._util.atomic_files import replacing
from uce_edge.contract import Method, PriorFrom
from uce_edge.datasets.splits import Dataset, Split
from uce_edge_export.options import PostHoc
from uce_edge_train.choices import Rates
from uce_edge_train.networks import tensor_files
from uce_edge_train.networks.tensor_files import TensorFileError
from uce_edge_train.runs import LAPLACE, WEIGHTS, Run, tool_versions

FILE = "calibrated.safetensors"
_MAP, _GUARANTEE = "map", "guarantee"
_TENSORS = {"uncertainty": np.float32, "confidence": np.float32, "wrong": np.bool_, "class_ids": np.int32}
_SHA256 = "sha256"


@dataclass(frozen=True)
class Settings:
    """Settings that determine a map, besides run and images."""

    method: Method
    samples: int
    seed: int
    tune: Rates
    posterior: PostHoc | None
    prior: PriorFrom


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions for the guarantee images."""

    uncertainty: npt.NDArray[np.float32]
    confidence: npt.NDArray[np.float32]
    """The largest probability, whose order of images differs from that of the entropy."""
    wrong: npt.NDArray[np.bool_]
    """Whether the predicted label is wrong."""
    class_ids: npt.NDArray[np.int32]
    """The labels."""


@dataclass(frozen=True)
class Cache:
    """The cache file of one calibration, and its key."""

    folder: Path
    fit: str
    """SHA-256 of everything that determines the map."""

    @classmethod
    def of(cls, folder: str | Path, run: Run, settings: Settings, data: Split, dataset: Dataset | None) -> "Cache":
        """The cache of a run.

        Args:
            folder: The run.
            run: Its description.
            settings: How it is calibrated.
            data: The images of the map.
            dataset: The run's own, whose training images a posterior is fitted on.
        """
        trained_on = None
        if settings.posterior is not None:
            assert dataset is not None
            trained_on = dataset.splits["train"].sha256()
        inputs = {
            "asked": [str(part) for part in vars(settings).values()],
            "weights": _sha256(Path(folder) / WEIGHTS),
            "run": [run.recipe.to_document(), run.image.to_document(), run.rates],
            "data": data.sha256(),
            "trained on": trained_on,
            "tools": tool_versions(),
        }
        return cls(Path(folder), _digest(inputs))

    def has_map(self, run: Run) -> bool:
        """Whether the run's map is up to date."""
        known, _ = self._read()
        return known.get(_MAP) == self._map(run)

    def predictions(self, run: Run, held_out: Split) -> Predictions | None:
        """Cached predictions for these images; None if missing or stale."""
        known, stored = self._read()
        return stored if (known.get(_MAP), known.get(_GUARANTEE)) == (self._map(run), held_out.sha256()) else None

    def store(self, run: Run, predictions: Predictions | None = None, held_out: Split | None = None) -> None:
        """Store the key of the map, and predictions if given."""
        described, tensors = {_MAP: self._map(run)}, dict[str, npt.NDArray[Any]]()
        if predictions is not None and held_out is not None:
            described[_GUARANTEE] = held_out.sha256()
            tensors = {name: np.asarray(getattr(predictions, name), kind) for name, kind in _TENSORS.items()}
            described[_SHA256] = _content(tensors)
        with replacing(self.folder / FILE) as path:
            path.write_bytes(save(tensors, described))

    def _map(self, run: Run) -> str:
        """The key of the settings together with the fitted map.

        It changes when the run is calibrated again with other settings.
        """
        laplace = self.folder / LAPLACE
        result = {
            "fit": self.fit,
            "calibration": run.calibration.to_document(),
            "rates": run.tuned_rates,
            "laplace": None if run.laplace is None else [run.laplace.to_document(), _sha256(laplace)],
        }
        return _digest(result)

    def _read(self) -> tuple[dict[str, str], Predictions | None]:
        try:
            tensors, known = tensor_files.read(self.folder / FILE)
        except (OSError, TensorFileError):
            return {}, None
        if _GUARANTEE not in known:
            return known, None
        arrays = {name: value.numpy() for name, value in tensors.items()}
        if set(arrays) != set(_TENSORS) or known.get(_SHA256) != _content(arrays):
            return {}, None
        return known, Predictions(**arrays)


def _content(tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 of arrays, their types and shapes."""
    return _digest({name: [str(tensors[name].dtype), tensors[name].shape, _bytes(tensors[name])] for name in _TENSORS})


def _bytes(tensor: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(tensor).tobytes()).hexdigest()


def _digest(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str | None:
    if not path.is_file():
        return None  # loading it reports the missing file
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
