"""Networks of a reproduction, their logits and predictions.

All are computed once and stored on disk.
"""

from dataclasses import replace
from enum import StrEnum
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uce_edge._util.atomic_files import replacing
from uce_edge.calibration.logits import ArrayLogits
from uce_edge.calibration.maps import fit_map, probabilities
from uce_edge.contract import Inference, Method
from uce_edge.datasets.splits import Dataset, Split
from uce_edge.errors import UsageError
from uce_edge.evaluation.model_outputs import ModelOutputs
from uce_edge.metadata import Calibration
from uce_edge.metrics import normalized_entropy
from uce_edge_train.choices import Experiment, TrainDevice
from uce_edge_train.dropout.gaussian_layers import deterministic
from uce_edge_train.dropout.monte_carlo import mc_blocks
from uce_edge_train.loop import training
from uce_edge_train.loop.process_group import pick
from uce_edge_train.reproduce.settings import PENALTY, Setting
from uce_edge_train.runs import Run, load_model, weights_sha256

INFERENCES = (Inference.DETERMINISTIC, Inference.MC)


class Row(StrEnum):
    """A calibration method, as in Table 1."""

    UNCALIBRATED = "uncalibrated"
    """The network as trained."""
    PENALTY = "confidence penalty"
    """Another network, trained with the confidence penalty; no calibration follows."""
    TEMPERATURE = "temperature"
    """Temperature scaling."""
    VECTOR = "vector"
    """Vector scaling."""
    AUX = "aux"
    """Auxiliary scaling, with weight decay and early stopping."""

    @property
    def method(self) -> Method:
        """The calibration map."""
        return Method(self.value) if self.value in set(Method) else Method.NONE

    @property
    def trained_as(self) -> str:
        """The folder of its network."""
        return "penalty" if self is Row.PENALTY else "nll"


class Subject:
    """Both networks of a setting, with their predictions."""

    def __init__(
        self, setting: Setting, dataset: Dataset, ood: Split | None, folder: Path, device: TrainDevice
    ) -> None:
        self.setting, self.dataset, self.folder = setting, dataset, folder
        self._device = device
        self._data = dict(dataset.splits) | ({} if ood is None else {"ood": ood})
        # Several experiments use the same results.
        self.probabilities = cache(self._probabilities)
        self.calibration = cache(self._calibration)
        self.model_part = cache(self._model_part)
        self.answers = cache(self._answers)
        self._logits = cache(self._compute_logits)

    @property
    def work(self) -> Path:
        """The folder of networks and logits."""
        return self.folder / "work"

    @property
    def has_ood(self) -> bool:
        """Whether there are images of another distribution."""
        return "ood" in self._data

    def labels(self) -> npt.NDArray[np.int64]:
        """The true classes of the test images."""
        return self.dataset.splits["test"].labels

    def commands(self, experiment: Experiment, row: Row) -> dict[str, str]:
        """Commands that regenerate a row of a CSV file."""
        return {
            "command": self.setting.command(experiment, str(self.folder)),
            "trained_by": self.setting.train_command(PENALTY if row is Row.PENALTY else 0.0),
        }

    def train(self, kind: str) -> Path:
        """The folder of a network, trained if necessary."""
        folder = self.work / "runs" / kind
        recipe = replace(self.setting.recipe, penalty=PENALTY if kind == "penalty" else 0.0)
        if (folder / "run.json").exists():
            run = Run.load(folder)
            different = run.recipe.differences(recipe)
            if different or run.split_hashes["train"] != self.dataset.splits["train"].sha256():
                what = ", ".join(different) or "its images"
                raise UsageError(
                    f"{folder} holds a network of another recipe ({what}). Choose another --out, or delete it.",
                    "run.different",
                    differences=different,
                )
        else:
            training.train(self.dataset, folder, recipe, device=self._device, resume=True)
        return folder

    def _compute_logits(self, kind: str, inference: Inference, split: str) -> ArrayLogits:
        """Logits of a split, cached on disk."""
        folder = self.train(kind)
        run = Run.load(folder)
        model = load_model(replace(run, tuned_rates=None), folder).to(pick(self._device))
        data = self._data[split]
        key = f"{kind}-{inference}-{split}-{weights_sha256(model)[:12]}-{data.sha256()[:12]}-{self.setting.samples}"
        path = self.work / "logits" / f"{key}.npy"
        if not path.exists():
            if inference is Inference.DETERMINISTIC:
                with deterministic(model):
                    logits = np.concatenate(list(mc_blocks(model, data, run.image, 1, 0)), 1)
            else:
                # As the tools do: maps are fitted with the passes of seed 0, and predict with them.
                logits = np.concatenate(
                    list(mc_blocks(model, data, run.image, self.setting.samples, 0, keep_dropout=run.masks)), 1
                )
            with replacing(path) as temporary:
                np.save(temporary, logits)
        return ArrayLogits(np.load(path))

    def _calibration(self, row: Row, inference: Inference, regularise: bool = True) -> Calibration:
        logits = self._logits(row.trained_as, inference, "calibration")
        labels = self.dataset.splits["calibration"].labels
        return fit_map(row.method, logits, labels, regularise=regularise)

    def _probabilities(
        self, row: Row, inference: Inference, split: str = "test", *, regularise: bool = True
    ) -> npt.NDArray[np.float64]:
        """Calibrated predictions [images, classes]."""
        logits = self._logits(row.trained_as, inference, split)
        return probabilities(self.calibration(row, inference, regularise), logits)

    def _answers(self, row: Row, inference: Inference, split: str = "test") -> ModelOutputs:
        """Predictions with uncertainty and model uncertainty."""
        table = self.probabilities(row, inference, split)
        part = self.model_part(row, split) if inference is Inference.MC else np.zeros(len(table))
        return ModelOutputs(table, normalized_entropy(table), part)

    def _model_part(self, row: Row, split: str) -> npt.NDArray[np.float64]:
        """Model uncertainty: H of the mean minus mean H."""
        fitted = self.calibration(row, Inference.MC)
        logits = self._logits(row.trained_as, Inference.MC, split)
        parts = []
        for block in logits:
            passes = np.stack([probabilities(fitted, ArrayLogits(z[None])) for z in block])
            parts.append(normalized_entropy(passes.mean(0)) - normalized_entropy(passes).mean(0))
        return np.concatenate(parts)
