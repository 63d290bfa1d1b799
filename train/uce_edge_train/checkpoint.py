"""The state of an unfinished training on disk, so that a killed one goes on as if nothing had happened. No pickle."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from uce_edge.errors import UceEdgeError, UsageError
from uce_edge.fields import RecordError
from uce_edge.files import replacing
from uce_edge.records import parse
from uce_edge_train.recipe import Recipe

CHECKPOINT = "checkpoint.safetensors"
_FREE_TO_CHANGE = ("learning_rate", "clip")  # what one changes after a training that diverged


@dataclass
class Progress:
    """Where a training stands, besides its tensors."""

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


@dataclass
class Training:
    """Everything that moves during training."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    learned_rates: list[Tensor]
    progress: Progress = field(default_factory=Progress)
    best: dict[str, Tensor] = field(default_factory=dict)
    """Weights and rates of the best epoch, kept when training may stop early."""
    held: tuple[str, ...] = ()
    """Names of the batch-norm layers whose statistics stay."""

    def learn(self) -> None:
        """Put the model into training mode, but for what is frozen."""
        self.model.train()
        for name in self.held:
            self.model.get_submodule(name).eval()

    def weights(self) -> dict[str, Tensor]:
        """Parameters, buffers and learned rates, by name, as they are now."""
        rates = {f"rate.{i}": value.detach() for i, value in enumerate(self.learned_rates)}
        return {f"model.{name}": value for name, value in self.model.state_dict().items()} | rates

    def take(self, weights: dict[str, Tensor]) -> None:
        """Put weights back that `weights` gave."""
        prefix = "model."
        self.model.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})
        with torch.no_grad():
            for i, value in enumerate(self.learned_rates):
                value.copy_(weights[f"rate.{i}"])

    def save(self, folder: Path, recipe: Recipe, data: str) -> None:
        """Write the checkpoint; the old one stays if that fails.

        Args:
            folder: Where.
            recipe: To be compared when training goes on.
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
        """Go on from a checkpoint, or say why it is another training's."""
        path = folder / CHECKPOINT
        try:
            with safe_open(path, "pt") as file:
                header = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            stored = Recipe.from_document(parse(header["recipe"]))
            progress = Progress(**json.loads(header["progress"]))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecordError) as error:
            raise UceEdgeError(f"{path} cannot be read ({error}). Delete it to train from the start.") from None
        wrong = [name for name in recipe.differences(stored) if name not in _FREE_TO_CHANGE]
        if wrong:
            was = ", ".join(f"{name} {getattr(stored, name)} there, {getattr(recipe, name)} here" for name in wrong)
            raise UsageError(
                f"{path} belongs to another training ({was}). Repeat its options, or start anew with --overwrite."
            )
        if header["data"] != data:
            raise UsageError(f"{path} was trained on other images. Restore the data, or start anew with --overwrite.")
        self.progress = progress
        groups = _groups(tensors)
        try:
            self.take(groups["now"])
        except (RuntimeError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(
                f"{path} does not fit {recipe.arch} any more ({reason}). Start anew with --overwrite."
            ) from None
        self.best = groups.get("best", {})
        parameters = [value for group in self.optimiser.param_groups for value in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in groups.get("optimiser", {}).items():
            index, _, key = name.partition(".")
            like = parameters[int(index)]
            # In the layout of the weights: the optimiser is slower with two.
            state.setdefault(int(index), {})[key] = (
                torch.empty_like(like).copy_(value) if value.shape == like.shape else value
            )
        document = self.optimiser.state_dict()
        self.optimiser.load_state_dict({"state": state, "param_groups": document["param_groups"]})


def _groups(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """By the first part of the name."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        group, _, rest = name.partition(".")
        groups.setdefault(group, {})[rest] = value
    return groups
