"""Checkpoints of an unfinished training, without pickle."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor, nn

from uce_edge._util.atomic_files import replacing
from uce_edge._util.field_rules import Count, checked
from uce_edge._util.records import parse
from uce_edge.errors import UceEdgeError, UsageError
from uce_edge_train.networks import tensor_files
from uce_edge_train.networks.tensor_files import TensorFileError
from uce_edge_train.recipe import Recipe

CHECKPOINT = "checkpoint.safetensors"
COLUMNS = ("epoch", "learning_rate", "train_nll", "held_out_nll", "held_out_accuracy", "mean_p", "seconds")
"""Columns of the log."""
_SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
_HINTS = {"best_nll": float, "scaler": dict[str, float], "log": list[dict[str, float]]}
_STEP = "step"
_STATE: dict[type[torch.optim.Optimizer], set[str]] = {
    torch.optim.SGD: {"momentum_buffer"},
    torch.optim.AdamW: {_STEP, "exp_avg", "exp_avg_sq"},
}
_DIGITS = 10  # of a parameter's number, fewer
_FREE_TO_CHANGE = ("learning_rate", "clip")  # changed after a training that diverged


@dataclass
class Progress:
    """The progress of a training, besides its tensors."""

    epoch: int = 0
    """Epochs done."""
    best_nll: float = float("inf")
    best_epoch: int = 0
    reductions: int = 0
    """Times the learning rate was reduced on a plateau."""
    last_reduction: int = 0
    scaler: dict[str, Any] = field(default_factory=dict)
    """The loss scaling of float16."""
    log: list[dict[str, Any]] = field(default_factory=list)
    """One row per epoch."""

    @classmethod
    def from_text(cls, text: str) -> "Progress":
        """Parse the JSON of a checkpoint.

        Raises:
            ValueError: It is something else.
        """
        document = parse(text)
        names = [known.name for known in dataclasses.fields(cls) if known.name in document]
        progress = cls(**{name: checked(name, _HINTS.get(name, Count), document[name], "") for name in names})
        counts = (progress.best_epoch, progress.reductions, progress.last_reduction)
        rows = [
            row for number, row in enumerate(progress.log, 1) if set(row) == set(COLUMNS) and row["epoch"] == number
        ]
        if progress.epoch < 1 or max(counts) > progress.epoch or not len(rows) == len(progress.log) == progress.epoch:
            raise ValueError(f"its log is not that of {progress.epoch} epochs")
        if progress.scaler and not set(_SCALER) <= set(progress.scaler):
            raise ValueError("its loss scaling is incomplete")
        return progress


@dataclass
class Training:
    """The mutable state of a training."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    learned_rates: list[Tensor]
    progress: Progress = field(default_factory=Progress)
    best: dict[str, Tensor] = field(default_factory=dict)
    """Weights and rates of the best epoch, kept when training may stop early."""
    held: tuple[str, ...] = ()
    """Names of the batch-norm layers whose statistics stay."""

    def learn(self) -> None:
        """Switch to training mode; frozen batch-norm stays frozen."""
        self.model.train()
        for name in self.held:
            self.model.get_submodule(name).eval()

    def weights(self) -> dict[str, Tensor]:
        """Current parameters, buffers and learned rates, by name."""
        rates = {f"rate.{i}": value.detach() for i, value in enumerate(self.learned_rates)}
        return {f"model.{name}": value for name, value in self.model.state_dict().items()} | rates

    def copy(self) -> dict[str, Tensor]:
        """A copy of what `weights` returns."""
        return {name: value.clone() for name, value in self.weights().items()}

    def take(self, weights: dict[str, Tensor]) -> None:
        """Restore weights that `weights` returned."""
        prefix = "model."
        self.model.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})
        with torch.no_grad():
            for i, value in enumerate(self.learned_rates):
                value.copy_(weights[f"rate.{i}"])

    def save(self, folder: Path, recipe: Recipe, data: str) -> None:
        """Write the checkpoint atomically.

        Args:
            folder: Where.
            recipe: Compared when training resumes.
            data: Fingerprint of the training images, likewise.
        """
        tensors = {f"now.{name}": value for name, value in self.weights().items()}
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{key}": value for key, value in state.items() if value is not None}
        header = {
            "progress": json.dumps(dataclasses.asdict(self.progress)),
            "recipe": recipe.to_json(sort_keys=False),
            "data": data,
        }
        content = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, metadata=header)
        with replacing(folder / CHECKPOINT) as path:
            path.write_bytes(content)

    def load(self, folder: Path, recipe: Recipe, data: str) -> None:
        """Restore a checkpoint; rejects that of another training."""
        path = folder / CHECKPOINT
        tensors, header, stored = _read(path)
        try:
            progress = Progress.from_text(header["progress"])
        except (KeyError, ValueError, UsageError) as error:
            raise _unreadable(path, error) from None
        wrong = [name for name in recipe.differences(stored) if name not in _FREE_TO_CHANGE]
        if wrong:
            was = ", ".join(f"{name} {getattr(stored, name)} there, {getattr(recipe, name)} here" for name in wrong)
            raise UsageError(
                f"{path} belongs to another training ({was}). Repeat its options, or start over with --overwrite.",
                "checkpoint.recipe",
                differences=wrong,
            )
        if header.get("data") != data:
            raise UsageError(
                f"{path} was trained on other images. Restore the data, or start over with --overwrite.",
                "checkpoint.data",
            )
        groups = _groups(tensors)
        now, best = groups.get("now", {}), groups.get("best", {})
        try:
            self._check_weights(now)
            if best:
                self._check_weights(best)
            optimiser = self._optimiser_state(groups.get("optimiser", {}))
        except TensorFileError as error:
            raise UsageError(
                f"{path} does not fit {recipe.arch} any more ({error}). Start over with --overwrite.",
                "checkpoint.mismatch",
            ) from None
        self.take(now)
        self.progress, self.best = progress, best
        document = self.optimiser.state_dict()
        self.optimiser.load_state_dict({"state": optimiser, "param_groups": document["param_groups"]})

    def _check_weights(self, found: dict[str, Tensor]) -> None:
        """Reject weights of other names or shapes."""
        expected = {name: value.shape for name, value in self.weights().items()}
        wrong = [name for name in expected | found if name not in found or found[name].shape != expected.get(name)]
        if wrong:
            raise TensorFileError(f"{wrong[0]} is not what the network has")

    def _optimiser_state(self, found: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
        """The optimiser's state, by the index of the parameter."""
        parameters = [value for group in self.optimiser.param_groups for value in group["params"]]
        state: dict[int, dict[str, Tensor]] = {number: {} for number in range(len(parameters))}
        for name, value in found.items():
            number, _, key = name.partition(".")
            index = int(number) if number.isdecimal() and len(number) < _DIGITS else len(parameters)
            if index >= len(parameters) or value.shape != (() if key == _STEP else parameters[index].shape):
                raise TensorFileError(f"optimiser.{name} is not what the optimiser has")
            # In the layout of the weights: the optimiser is slower with two.
            state[index][key] = value.float() if key == _STEP else torch.empty_like(parameters[index]).copy_(value)
        kept = {index: values for index, values in state.items() if values}
        if any(set(values) != _STATE[type(self.optimiser)] for values in kept.values()):
            raise TensorFileError("the optimiser has other state")
        return kept


class Stored(NamedTuple):
    """The training of a checkpoint."""

    recipe: Recipe
    data: str | None
    """Fingerprint of the training images."""


def stored(folder: Path) -> Stored:
    """The training whose checkpoint is in a folder."""
    _, header, recipe = _read(folder / CHECKPOINT)
    return Stored(recipe, header.get("data"))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str], Recipe]:
    try:
        tensors, header = tensor_files.read(path)
        return tensors, header, Recipe.from_document(parse(header["recipe"]))
    except (OSError, KeyError, ValueError, UsageError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> UceEdgeError:
    return UceEdgeError(f"{path} cannot be read ({error}). Delete it to train from the start.", "checkpoint.unreadable")


def _groups(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Group tensors by the first part of their names."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        group, _, rest = name.partition(".")
        groups.setdefault(group, {})[rest] = value
    return groups
