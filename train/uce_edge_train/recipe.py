"""How a network is trained: everything that decides the result, and nothing about where it runs."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from uce_edge.errors import UsageError, expected
from uce_edge_train import architectures
from uce_edge_train.augment import Augmentation
from uce_edge_train.choices import Optimiser, Precision, Rates, Schedule
from uce_edge_train.layers import gaussianize


@dataclass(frozen=True)
class Recipe:
    """A training recipe."""

    arch: str = "resnet8"
    stem: str = "cifar"
    p: float = 0.2
    """Gaussian dropout rate, or where learned rates start."""
    rates: Rates = Rates.FIXED
    epochs: int = 20
    batch_size: int = 64
    """Images per step, over all processes."""
    optimiser: Optimiser = Optimiser.ADAMW
    schedule: Schedule = Schedule.ONE_CYCLE
    learning_rate: float = 0.01
    """Its peak."""
    weight_decay: float = 0.01
    penalty: float = 0.0
    """Beta of the confidence penalty (Eq. 19); 0 for plain NLL."""
    shift: int | None = None
    """Augmentation: pixels an image may move by; None for an eighth of its width."""
    flip: bool = False
    erase: float = 0.0
    clip: float | None = None
    """Largest norm of the gradient."""
    patience: int | None = None
    """Stop when the held-out NLL has not improved for so many epochs, and take the best epoch's weights."""
    precision: Precision = Precision.FLOAT32
    channels_last: bool = True
    """A memory layout that convolutions like; it changes the speed, and rounding."""
    seed: int = 0
    """Of weights, order, augmentation and noise."""

    def __post_init__(self) -> None:
        for name, value in (("epochs", self.epochs), ("batch_size", self.batch_size), ("patience", self.patience)):
            if value is not None and value < 1:
                raise _wrong(name, "at least 1", value, "20")
        for name, number, example in (("learning_rate", self.learning_rate, "0.003"), ("clip", self.clip, "1")):
            if number is not None and not 0 < number < math.inf:
                raise _wrong(name, "positive", number, example)
        for name, share, highest in (("erase", self.erase, 1.0), ("penalty", self.penalty, math.inf)):
            if not 0 <= share <= highest or not math.isfinite(share):
                raise _wrong(name, "at least 0" + (", at most 1" if highest == 1 else ""), share, "0.1")
        if not 0 <= self.weight_decay < math.inf:
            raise _wrong("weight_decay", "at least 0", self.weight_decay, "0.01")
        if self.shift is not None and self.shift < 0:
            raise _wrong("shift", "at least 0 pixels", self.shift, "2")

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "Recipe":
        """From parsed JSON."""
        kinds = {"rates": Rates, "optimiser": Optimiser, "schedule": Schedule, "precision": Precision}
        chosen: dict[str, Any] = {name: kind(document[name]) for name, kind in kinds.items()}
        return cls(**(document | chosen))

    def build(self, classes: int, channels: int) -> nn.Module:
        """The Gaussian-dropout network, with weights from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return gaussianize(architectures.build(self.arch, classes, channels, self.stem), self.p)

    def augmentation(self, height: int, width: int) -> Augmentation:
        """The augmentation for images of a size."""
        shift = width // 8 if self.shift is None else self.shift
        if shift >= min(height, width):
            raise _wrong("shift", f"0 to {min(height, width) - 1} pixels", shift, "2")
        return Augmentation(shift, self.flip, self.erase)

    def optimiser_for(self, model: nn.Module, learned_rates: list[Tensor]) -> torch.optim.Optimizer:
        """The optimiser of a model's weights, and of its dropout rates, which do not decay."""
        groups: list[dict[str, Any]] = [{"params": list(model.parameters())}]
        if learned_rates:
            groups.append({"params": learned_rates, "weight_decay": 0.0})
        if self.optimiser is Optimiser.SGD:
            return torch.optim.SGD(
                groups, lr=self.learning_rate, momentum=0.9, nesterov=True, weight_decay=self.weight_decay
            )
        return torch.optim.AdamW(groups, lr=self.learning_rate, weight_decay=self.weight_decay)

    def learning_rate_at(self, progress: float, reductions: int) -> float:
        """The learning rate after a share of all steps, and after so many reductions on a plateau."""
        if self.schedule is Schedule.PLATEAU:
            return self.learning_rate * 0.1**reductions
        if self.schedule is Schedule.COSINE:
            return self.learning_rate * _cosine(1, 0, progress)
        rising = 0.3
        if progress < rising:
            return self.learning_rate * _cosine(1 / 25, 1, progress / rising)
        return self.learning_rate * _cosine(1, 1e-5, (progress - rising) / (1 - rising))

    def loss(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """What is minimised, and the plain NLL in it, both means over the batch."""
        logits = logits.float()
        nll = nn.functional.cross_entropy(logits, labels)
        if self.penalty == 0:
            return nll, nll
        # Eq. 19: NLL - beta * H(p), the entropy in nats.
        log_p = torch.log_softmax(logits, -1)
        entropy = -(log_p.exp() * log_p).sum(-1).mean()
        return nll - self.penalty * entropy, nll

    def differences(self, other: "Recipe") -> list[str]:
        """The names of the fields that differ."""
        names = [field.name for field in dataclasses.fields(self)]
        return [name for name in names if getattr(self, name) != getattr(other, name)]


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def _wrong(name: str, rule: str, value: object, example: str) -> UsageError:
    return UsageError(expected(f"`{name}`", rule, value, f"As in --{name.replace('_', '-')} {example}"))
