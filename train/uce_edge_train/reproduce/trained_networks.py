"""Networks of a reproduction, their logits and predictions.

All are computed once and stored on disk.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge._util.atomic_files import replacing
from uce_edge.calibration.logits import ArrayLogits
from uce_edge.calibration.maps import fit_map, probabilities
from uce_edge.contract import Inference, Method
from uce_edge.datasets.splits import Dataset, Split
from uce_edge.errors import UsageError
from uce_edge.evaluation.model_outputs import ModelOutputs
from uce_edge.metadata import Calibration
from uce_edge.metrics import normalized_entropy
from uce_edge_train.calibration import tune_rates
from uce_edge_train.choices import Experiment, Rates, TrainDevice
from uce_edge_train.dropout import learned_rates
from uce_edge_train.dropout.gaussian_layers import deterministic
from uce_edge_train.dropout.monte_carlo import mc_blocks
from uce_edge_train.loop import training
from uce_edge_train.loop.process_group import pick
from uce_edge_train.reproduce import paper_aux
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
    PAPER_AUX = "aux of the paper"
    """Auxiliary scaling as the paper describes it: no shortcut, weight decay or early stopping."""
    AUX = "aux"
    """Auxiliary scaling of this project: a shortcut from the temperature, weight decay and early stopping."""
    TUNED_MODEL = "temperature, p tuned"
    """Temperature scaling after one dropout rate was fitted on the calibration images (the paper's Outlook)."""
    TUNED_LAYER = "temperature, p tuned by layer"
    """The same with a rate for every layer."""

    @property
    def method(self) -> Method:
        """The calibration map."""
        if self.rates is not Rates.FIXED:
            return Method.TEMPERATURE
        return Method(self.value) if self.value in set(Method) else Method.NONE

    @property
    def rates(self) -> Rates:
        """Which dropout rates are fitted on the calibration images."""
        return {Row.TUNED_MODEL: Rates.MODEL, Row.TUNED_LAYER: Rates.LAYER}.get(self, Rates.FIXED)

    @property
    def trained_as(self) -> str:
        """The folder of its network."""
        return "penalty" if self is Row.PENALTY else "nll"


DRAWN = tuple(row for row in Row if row.rates is Rates.FIXED)
"""The rows of figures, and of a deterministic network, which has no dropout rates."""


def rows_of(inference: Inference) -> tuple[Row, ...]:
    """The rows of a table."""
    return tuple(Row) if inference is Inference.MC else DRAWN


class Subject:
    """Both networks of a setting, with their predictions."""

    def __init__(
        self, setting: Setting, dataset: Dataset, ood: Split | None, folder: Path, device: TrainDevice
    ) -> None:
        self.setting, self.dataset, self.folder = setting, dataset, folder
        self._place = folder / "work" / ("" if setting.seeds == 1 else f"seed-{setting.recipe.seed}")
        self._device = device
        self._data = dict(dataset.splits) | ({} if ood is None else {"ood": ood})
        # Several experiments use the same results.
        self.probabilities = cache(self._probabilities)
        self.calibration = cache(self._calibration)
        self.model_part = cache(self._model_part)
        self.answers = cache(self._answers)
        self._logits = cache(self._compute_logits)
        self._paper_aux = cache(self._fit_paper_aux)

    @property
    def work(self) -> Path:
        """The folder of networks and logits."""
        return self._place

    @property
    def has_ood(self) -> bool:
        """Whether there are images of another distribution."""
        return "ood" in self._data

    def labels(self) -> npt.NDArray[np.int64]:
        """The true classes of the test images."""
        return self.dataset.splits["test"].labels

    def commands(self, experiment: Experiment, row: Row) -> dict[str, str]:
        """Commands that regenerate a row of a CSV file."""
        command = {"command": self.setting.command(experiment, str(self.folder))}
        if self.setting.own_splits:  # which `train` does not make
            return command
        return command | {"trained_by": self.setting.train_command(PENALTY if row is Row.PENALTY else 0.0)}

    def label_flips(self, row: Row, inference: Inference) -> int:
        """How many calibration images get another label by the map."""
        before = Row.PENALTY if row is Row.PENALTY else Row.UNCALIBRATED
        tables = [self.probabilities(one, inference, "calibration") for one in (before, row)]
        return int((tables[0].argmax(-1) != tables[1].argmax(-1)).sum())

    def train_accuracy(self, row: Row) -> float:
        """The accuracy of a row's network without noise and map on its training images."""
        plain = Row.PENALTY if row is Row.PENALTY else Row.UNCALIBRATED
        table = self.probabilities(plain, Inference.DETERMINISTIC, "train")
        return metrics.accuracy(table, self.dataset.splits["train"].labels)

    def rates(self, row: Row) -> dict[str, float]:
        """The dropout rate of every layer with noise."""
        tuned = self._tuned(row.trained_as, row.rates)
        return tuned if tuned is not None else {"all": self.setting.recipe.p}

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

    def _tuned(self, kind: str, rates: Rates) -> dict[str, float] | None:
        """Dropout rates that minimise the NLL of the calibration images."""
        if rates is Rates.FIXED:
            return None
        folder, data = self.train(kind), self._data["calibration"]
        run = replace(Run.load(folder), tuned_rates=None)
        path = self.work / "rates" / f"{kind}-{rates}-{data.sha256()[:12]}.json"
        if not path.exists():
            model = load_model(run, folder)
            tune_rates(model, run.image, data, rates, Method.TEMPERATURE, 0)
            with replacing(path) as temporary:
                temporary.write_text(json.dumps(learned_rates.current(model)))
        tuned: dict[str, float] = json.loads(path.read_text())
        return tuned

    def _compute_logits(self, kind: str, inference: Inference, split: str, rates: Rates = Rates.FIXED) -> ArrayLogits:
        """Logits of a split, cached on disk."""
        folder = self.train(kind)
        run = replace(Run.load(folder), tuned_rates=self._tuned(kind, rates))
        model = load_model(run, folder).to(pick(self._device))
        data = self._data[split]
        kind = kind if rates is Rates.FIXED else f"{kind}-{rates}"
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

    def _calibration(self, row: Row, inference: Inference) -> Calibration:
        logits = self._logits(row.trained_as, inference, "calibration", row.rates)
        return fit_map(row.method, logits, self.dataset.splits["calibration"].labels)

    def _fit_paper_aux(self, inference: Inference) -> paper_aux.Parameters:
        logits = self._logits(Row.PAPER_AUX.trained_as, inference, "calibration")
        return paper_aux.fit(logits, self.dataset.splits["calibration"].labels)

    def _probabilities(self, row: Row, inference: Inference, split: str = "test") -> npt.NDArray[np.float64]:
        """Calibrated predictions [images, classes]."""
        return self._mapped(row, inference, self._logits(row.trained_as, inference, split, row.rates))

    def _mapped(self, row: Row, inference: Inference, logits: ArrayLogits) -> npt.NDArray[np.float64]:
        if row is Row.PAPER_AUX:
            return paper_aux.probabilities(self._paper_aux(inference), logits)
        return probabilities(self.calibration(row, inference), logits)

    def _answers(self, row: Row, inference: Inference, split: str = "test") -> ModelOutputs:
        """Predictions with uncertainty and model uncertainty."""
        table = self.probabilities(row, inference, split)
        part = self.model_part(row, split) if inference is Inference.MC else np.zeros(len(table))
        return ModelOutputs(table, normalized_entropy(table), part)

    def _model_part(self, row: Row, split: str) -> npt.NDArray[np.float64]:
        """Model uncertainty: H of the mean minus mean H."""
        logits = self._logits(row.trained_as, Inference.MC, split, row.rates)
        parts = []
        for block in logits:
            passes = np.stack([self._mapped(row, Inference.MC, ArrayLogits(z[None])) for z in block])
            parts.append(normalized_entropy(passes.mean(0)) - normalized_entropy(passes).mean(0))
        return np.concatenate(parts)


@dataclass(frozen=True)
class Study:
    """A setting with the networks of every seed."""

    setting: Setting
    subjects: Sequence[Subject]
    folder: Path
    """Of the results."""

    @property
    def first(self) -> Subject:
        """The networks of the first seed, which figures show."""
        return self.subjects[0]
