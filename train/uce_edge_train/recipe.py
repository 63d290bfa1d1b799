"""Training recipe: everything that determines the result."""

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from uce_edge._util.field_rules import (
    ABOVE_ZERO,
    OPTIONAL,
    Count,
    Positive,
    RecordError,
    Rule,
    Share,
    at_least,
    between,
)
from uce_edge._util.records import Record
from uce_edge.contract import Sigma
from uce_edge.errors import UsageError, expected
from uce_edge.images.corruptions import Kind
from uce_edge.metadata import ImageSpec
from uce_edge_export import layer_choice
from uce_edge_train.choices import Arithmetic, Dropout, Mixing, Optimiser, Rates, Schedule, Unfreeze
from uce_edge_train.data import augment_colour, augment_pictures, augment_trivial
from uce_edge_train.data.augment_mix import Mix, PixMix, augmix
from uce_edge_train.data.augment_operations import OPERATIONS
from uce_edge_train.data.augmentation import Augmentation
from uce_edge_train.data.mixup import Blend
from uce_edge_train.dropout.families import FAMILIES, Family
from uce_edge_train.networks import architectures, parameter_groups
from uce_edge_train.networks.initial_weights import Start

_EXAMPLES = {  # where the default is no example
    "penalty": 0.1, "logit_norm": 0.04, "shift": 2, "erase": 0.1, "augment": "pixmix", "noise": 0.3, "blur": 0.3,
    "clip": 1, "patience": 20, "init": "weights.safetensors", "freeze": parameter_groups.ALL_BUT_HEAD,
    "layer_decay": 0.7,
    "seam": "blocks.11", "unfreeze": Unfreeze.TAIL, "mean": 0.5, "std": 0.5,
    "rotate": 15, "colour": 0.4, "mixup": 0.2,
}  # fmt: skip
_MIXED = {
    Mixing.NONE: (),
    Mixing.AUGMIX: OPERATIONS,
    Mixing.PIXMIX: (*OPERATIONS, *augment_pictures.SEEN),
    Mixing.TRIVIAL: augment_trivial.SEEN,
}
"""Operations of `augment`, by name."""
_LAYER_DECAY = 0.7  # where all layers of a pretrained network are trained
_UP_TO_ONE = Rule("above 0 and at most 1", lambda value: 0 < value <= 1)


@dataclass(frozen=True)
class Recipe(Record):
    """A training recipe."""

    arch: str = "resnet8"
    stem: str = "cifar"
    init: Annotated[Start | None, OPTIONAL] = None
    """Trained weights that it starts from; None for random ones."""
    freeze: Annotated[tuple[str, ...], OPTIONAL] = ()
    """Layers that keep the weights and the batch-norm statistics they start with, by name; see
    `parameter_groups.freeze`."""
    layer_decay: Annotated[Annotated[float, _UP_TO_ONE], OPTIONAL] = 1.0
    """Factor on the learning rate for every stage below the head."""
    seam: Annotated[str | None, OPTIONAL] = None
    """The first layer of the tail; what the layers before it compute is stored. None to compute it in every step."""
    unfreeze: Annotated[Unfreeze | None, OPTIONAL] = None
    """The layers of a pretrained network that are trained; its batch-norm statistics stay. None for what `freeze`
    leaves."""
    views: Annotated[Positive, OPTIONAL] = 1
    """Stored views of a training image: itself, and augmented ones."""
    mean: Annotated[tuple[float, ...] | None, OPTIONAL] = None
    """Of the pixels, from 0 to 1; None for that of the training images."""
    std: Annotated[tuple[Annotated[float, ABOVE_ZERO], ...] | None, OPTIONAL] = None
    p: float = 0.2
    """Dropout rate, or where learned rates start."""
    dropout: Annotated[Dropout, OPTIONAL] = Dropout.GAUSSIAN
    """The dropout family."""
    noisy: Annotated[tuple[str, ...], OPTIONAL] = ()
    """The layers with dropout, as in `layer_choice`; nothing for all."""
    sigma: Annotated[Sigma, OPTIONAL] = Sigma.EXACT
    """How the standard deviation of the noise is computed."""
    rates: Rates = Rates.FIXED
    epochs: Positive = 20
    batch_size: Positive = 64
    """Images per step, over all processes."""
    optimiser: Optimiser = Optimiser.ADAMW
    schedule: Schedule = Schedule.ONE_CYCLE
    learning_rate: Annotated[float, ABOVE_ZERO] = 0.01
    """The highest learning rate of the schedule."""
    weight_decay: Annotated[float, at_least(0)] = 0.01
    penalty: Annotated[float, at_least(0)] = 0.0
    """Beta of the confidence penalty (Eq. 19); 0 for plain NLL."""
    logit_norm: Annotated[Annotated[float, ABOVE_ZERO] | None, OPTIONAL] = None
    """Temperature of LogitNorm (Wei et al. 2022), which trains the direction of the logits alone; None for without."""
    shift: Count | None = None
    """Augmentation: pixels an image may move by; None for an eighth of its width."""
    flip: bool = False
    erase: Share = 0.0
    rotate: Annotated[Annotated[float, between(0, 180)], OPTIONAL] = 0.0
    """Degrees that an image may be turned by, to either side."""
    colour: Annotated[Share, OPTIONAL] = 0.0
    """The strength of random changes of brightness, contrast, saturation and hue."""
    augment: Annotated[Mixing, OPTIONAL] = Mixing.NONE
    """Augmentation that mixes or changes training images."""
    mixup: Annotated[Annotated[float, at_least(0)], OPTIONAL] = 0.0
    """Images and labels are blended with others, by shares from Beta(mixup, mixup); 0 for not at all."""
    noise: Annotated[Share, OPTIONAL] = 0.0
    """The probability of Gaussian noise of random strength."""
    blur: Annotated[Share, OPTIONAL] = 0.0
    """The probability of a Gaussian blur of random strength."""
    clip: Annotated[float, ABOVE_ZERO] | None = None
    """Largest norm of the gradient."""
    patience: Positive | None = None
    """Stop when the held-out NLL has not improved for so many epochs, and take the best epoch's weights."""
    precision: Arithmetic = Arithmetic.FLOAT32
    channels_last: bool = True
    """A memory layout that convolutions like; it changes the speed, and rounding."""
    seed: int = 0
    """Of weights, order, augmentation and noise."""

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except RecordError as error:
            name = re.split(r"[.[]", error.key)[0]
            option, example = name.replace("_", "-"), _EXAMPLES.get(name, getattr(type(self), name))
            raise RecordError(error.key, error.rule, error.value, f"As in --{option} {example}") from None
        rates, sigma = ("rates", Rates.FIXED, self.family.learns_rates), ("sigma", Sigma.EXACT, self.family.has_sigma)
        for name, default, supported in (rates, sigma):
            value = getattr(self, name)
            if value is not default and not supported:
                remedy = f"Leave --{name} out, or --dropout {self.dropout}"
                raise RecordError(name, f"{default} with {self.dropout} dropout", str(value), remedy)
        layer_choice.check(self.noisy)
        if self.freeze and self.init is None:
            remedy = "Name the weights to keep, as in --init weights.safetensors"
            raise RecordError("freeze", "left out without `init`", ", ".join(self.freeze), remedy)

    @property
    def family(self) -> Family:
        """The dropout family."""
        return FAMILIES[self.dropout]

    def build(self, classes: int, channels: int) -> nn.Module:
        """Build the network with its dropout."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = architectures.build(self.arch, classes, channels, self.stem)
            self._check_seam(network)
            return self.family.add(network, self.p, self.sigma, self.noisy)

    @property
    def selects(self) -> bool:
        """Whether held-out images choose the epoch, the rate or the layers."""
        return self.patience is not None or self.rates is Rates.FITTED or self.unfreeze is Unfreeze.ALL

    @property
    def repeats(self) -> bool:
        """Whether the tail is trained again on all training images, after a part of them has chosen.

        A plateau schedule follows the losses of its own epochs, so that there is nothing to repeat.
        """
        tail = self.unfreeze in (Unfreeze.NONE, Unfreeze.TAIL)
        return self.selects and tail and self.schedule is not Schedule.PLATEAU

    def _check_seam(self, network: nn.Module) -> None:
        layers = [name for name, _ in network.named_modules() if name]
        if self.seam is not None and self.seam not in layers:
            rule = f"a layer of {self.arch}, such as {layers[-1]}"
            raise UsageError(expected("`seam`", rule, self.seam, "Leave --seam out for that of the backbone"))

    def stages(self) -> "list[Recipe]":
        """The recipes that are trained one after another.

        All layers of a pretrained network are trained after its tail, for a third of the epochs and with a tenth of the
        learning rate.
        """
        if self.unfreeze is not Unfreeze.ALL:
            return [self]
        second = dataclasses.replace(
            self,
            epochs=math.ceil(self.epochs / 3),
            learning_rate=self.learning_rate / 10,
            layer_decay=_LAYER_DECAY if self.layer_decay == 1 else self.layer_decay,
        )
        return [dataclasses.replace(self, unfreeze=Unfreeze.TAIL), second]

    def augmentation(self, image: ImageSpec) -> Augmentation:
        """The augmentation for a kind of images."""
        smallest = min(image.height, image.width)
        shift = image.width // 8 if self.shift is None else self.shift
        if shift >= smallest:
            rule = f"0 to {smallest - 1} pixels"
            raise UsageError(expected("`shift`", rule, shift, f"As in --shift {_EXAMPLES['shift']}"))
        return Augmentation(
            shift, self.flip, self.erase, self._mix(image), self.blur, self.noise, image.mean, image.std, self.rotate,
            self.colour,
        )  # fmt: skip

    @property
    def seen(self) -> tuple[str, ...]:
        """Augmentations by name, corruptions as in `corruptions`."""
        saw = [
            *([str(Kind.NOISE)] if self.noise else []),
            *([str(Kind.BLUR)] if self.blur else []),
            *([str(Kind.BRIGHTNESS), str(Kind.CONTRAST), "saturation", "hue"] if self.colour else []),
            *(["single colours"] if self.colour > augment_colour.FLAT else []),
            *(["rotate"] if self.rotate else []),
            *_MIXED[self.augment],
            *(["mixup"] if self.mixup else []),
            *(self.init.seen if self.init else ()),
        ]
        return tuple(dict.fromkeys(saw))

    def _mix(self, image: ImageSpec) -> Mix | None:
        if self.augment is Mixing.NONE:
            return None
        if self.augment is Mixing.AUGMIX:
            return augmix
        if self.augment is Mixing.TRIVIAL:
            return augment_trivial.trivial
        pictures = augment_pictures.mixing_pictures(image.height, image.width, image.channels, self.seed)
        return PixMix(torch.from_numpy(pictures))

    def optimiser_for(self, model: nn.Module, learned_rates: list[Tensor]) -> torch.optim.Optimizer:
        """The optimiser of weights and learned dropout rates.

        The learning rate of a group is the recipe's, multiplied by the group's `factor`.
        """
        groups: list[dict[str, Any]] = parameter_groups.groups_of(model, self.layer_decay)
        if learned_rates:
            groups.append({"params": learned_rates, "weight_decay": 0.0, "factor": 1.0})
        if self.optimiser is Optimiser.SGD:
            return torch.optim.SGD(
                groups, lr=self.learning_rate, momentum=0.9, nesterov=True, weight_decay=self.weight_decay
            )
        return torch.optim.AdamW(groups, lr=self.learning_rate, weight_decay=self.weight_decay)

    def learning_rate_at(self, progress: float, reductions: int) -> float:
        """The learning rate after a share of all steps."""
        if self.schedule is Schedule.PLATEAU:
            return self.learning_rate * 0.1**reductions
        if self.schedule is Schedule.COSINE:
            return self.learning_rate * _cosine(1, 0, progress)
        rising = 0.3
        if progress < rising:
            return self.learning_rate * _cosine(1 / 25, 1, progress / rising)
        return self.learning_rate * _cosine(1, 1e-5, (progress - rising) / (1 - rising))

    def judged(self, logits: Tensor) -> Tensor:
        """The logits of the likelihood, normalised with LogitNorm."""
        logits = logits.float()
        if self.logit_norm is None:
            return logits
        length = torch.linalg.vector_norm(logits, dim=-1, keepdim=True) + 1e-7
        directed: Tensor = logits / (self.logit_norm * length)
        return directed

    def loss(self, logits: Tensor, labels: Tensor, blend: Blend | None = None) -> tuple[Tensor, Tensor]:
        """Mean loss and mean NLL of the batch."""
        logits = self.judged(logits)
        nll = nn.functional.cross_entropy(logits, labels) if blend is None else blend.nll(logits, labels)
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
