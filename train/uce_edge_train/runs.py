"""Training runs on disk: `run.json` and `weights.safetensors`."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
from safetensors.torch import save
from torch import nn

from uce_edge._util.atomic_files import replacing
from uce_edge._util.field_rules import NONE_AS_EMPTY, OPTIONAL, Positive, RecordError, Share
from uce_edge._util.records import DocumentError, Record, parse
from uce_edge.calibration.label_sets import SetPromise
from uce_edge.calibration.novelty_features import FeatureChoice
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Dataset
from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.metadata import Calibration, ClassNames, ImageSpec, LaplaceFit, Rate, Sketch
from uce_edge.rejection.promises import AUTO_FEATURES, NoveltyPromise, Promise
from uce_edge_train.choices import Dropout, Unfreeze
from uce_edge_train.dropout.gaussian_layers import gaussian_layers
from uce_edge_train.networks import parameter_groups, tensor_files
from uce_edge_train.networks import seam as seams
from uce_edge_train.networks.tensor_files import TensorFileError
from uce_edge_train.recipe import Recipe

DESCRIPTION = "run.json"
WEIGHTS = "weights.safetensors"
LAPLACE = "laplace.safetensors"
MEMBER = "member-"
"""The prefix of the folders of an ensemble's members."""


@dataclass(frozen=True)
class TrainingScores(Record):
    """Scores of the training that chose epoch, rate and layers."""

    epochs: Positive
    """The epoch with the best weights."""
    train_nll: float
    """Of the training images in that epoch, with noise."""
    held_out_nll: float
    """Of the selection images after it, or of the calibration images where nothing was chosen; without noise. For a
    pretrained network, with the best temperature."""
    held_out_accuracy: Share


@dataclass(frozen=True)
class LayerChoice(Record):
    """Whether all layers stayed trained after the tail, and why."""

    kept: Unfreeze
    """tail: the trunk has its pretrained weights."""
    tail_nll: float
    """Of the selection images, before all layers were trained."""
    all_nll: float
    """The lowest after it."""


@dataclass(frozen=True)
class Run(Record):
    """Description of a run: network, data and calibration."""

    data: str
    root: str | None
    recipe: Recipe
    class_names: ClassNames
    image: ImageSpec
    split_hashes: dict[str, str]
    trained_on: Annotated[Sketch | None, NONE_AS_EMPTY]
    """A sketch of the training images, see `overlap`."""
    rates: dict[str, Rate]
    """The Gaussian dropout rate of every layer at the end of training."""
    metrics: Annotated[TrainingScores | None, NONE_AS_EMPTY] = None
    calibration: Calibration = field(default_factory=Calibration)
    tuned_rates: dict[str, Rate] | None = None
    """The rates that calibration tuned."""
    promise: Promise | None = None
    """What the threshold of an export must keep."""
    novelty: Annotated[NoveltyPromise | None, OPTIONAL] = None
    """What the out-of-distribution gate of an export must keep."""
    sets: Annotated[SetPromise | None, OPTIONAL] = None
    """What the prediction sets of an export must keep."""
    laplace: Annotated[LaplaceFit | None, OPTIONAL] = None
    """How the posterior of the last layer was fitted, if it has one; `laplace.safetensors` holds it."""
    group: Annotated[str | None, OPTIONAL] = None
    """The column or pattern that groups its images; no group is in two splits."""
    layer_choice: Annotated[LayerChoice | None, OPTIONAL] = None
    """Of a training of all layers; None for others, and for runs of older versions."""
    tools: dict[str, str] = field(default_factory=dict)

    @property
    def unfrozen(self) -> Unfreeze | None:
        """The layers of a pretrained network that have other weights now; None for what `recipe.freeze` leaves."""
        return self.recipe.unfreeze if self.layer_choice is None else self.layer_choice.kept

    @property
    def masks(self) -> bool:
        """Whether its passes keep the masks of torch's dropout."""
        return self.recipe.family.masks

    @property
    def silent(self) -> bool:
        """Whether all its passes would be the same."""
        return self.recipe.dropout is Dropout.NONE and self.laplace is None and not self.masks

    def features(self, novelty: NoveltyPromise | None) -> FeatureChoice:
        """What a novelty gate looks at."""
        model = self.build()
        if self.unfrozen is not None:
            tail = seams.weights_behind(model, self.recipe.seam)
            parameter_groups.thaw(model, tail, self.unfrozen)
        parameter_groups.freeze(model, self.recipe.freeze)
        wanted = AUTO_FEATURES if novelty is None else novelty.features
        frozen: frozenset[str] = frozenset() if self.recipe.init is None else parameter_groups.frozen_weights(model)
        return FeatureChoice(wanted, frozen)

    def build(self) -> nn.Module:
        """Build the network with its rates and random weights."""
        model = self.recipe.build(len(self.class_names), self.image.channels)
        rates = self.tuned_rates or self.rates
        layers = gaussian_layers(model)
        if set(rates) != set(layers):
            raise UceEdgeError(
                f"{self.recipe.arch} has other layers than it had when it was trained. Train it again.",
                "architecture.changed",
            )
        for name, layer in layers.items():
            layer.p = rates[name]
        return model

    def dataset(self) -> Dataset:
        """Load the data that this run was trained on."""
        size = (self.image.height, self.image.width)
        image = self.image
        return splits.load(self.data, self.root, size, group=self.group, range_=image.range, resize=image.resize)

    def save(self, folder: str | Path) -> None:
        """Write the description."""
        with replacing(Path(folder) / DESCRIPTION) as path:
            path.write_text(self.to_json(indent=2, sort_keys=False) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> "Run":
        """Read the description of a run."""
        path = Path(folder) / DESCRIPTION
        if not path.is_file():
            if numbered(folder):
                raise UsageError(
                    f"{folder} holds the members of an ensemble, which are calibrated as a whole when they are "
                    f"exported: uce-edge export {folder}",
                    "run.ensemble",
                )
            raise UsageError(
                f"{folder} is not a training run (it has no {DESCRIPTION}). "
                f"Train one with: uce-edge train --out {folder}",
                "run.missing",
            )
        again = f"Train again: uce-edge train --out {folder}"
        try:
            return cls.from_document(parse(path.read_bytes()))
        except (OSError, DocumentError) as error:
            raise UceEdgeError(f"{path} cannot be read ({error}). {again}", "run.unreadable") from None
        except RecordError as error:
            message = expected(f"`{error.key}`", error.rule, error.value, again)
            raise UceEdgeError(f"{path} cannot be read. {message}", "run.unreadable", **message.fields) from None


def save_weights(model: nn.Module, folder: str | Path) -> None:
    """Write the parameters of a model."""
    with replacing(Path(folder) / WEIGHTS) as path:
        path.write_bytes(save({name: tensor.contiguous() for name, tensor in model.state_dict().items()}))


def load_model(run: Run, folder: str | Path) -> nn.Module:
    """Load the trained network of a run.

    Batch-norm is frozen and noise is on, ready for Monte Carlo passes.
    """
    path, again = Path(folder) / WEIGHTS, f"Train again: uce-edge train --out {folder}"
    model = run.build()
    try:
        model.load_state_dict(tensor_files.read(path).tensors)
    except FileNotFoundError:
        raise UceEdgeError(f"{path} is missing. {again}", "weights.missing") from None
    except (TensorFileError, RuntimeError) as error:
        raise UceEdgeError(
            f"{path} does not fit {run.recipe.arch} ({tensor_files.reason(error)}). {again}", "weights.mismatch"
        ) from None
    broken = [name for name, value in model.state_dict().items() if not bool(torch.isfinite(value).all())]
    if broken:
        raise UceEdgeError(
            f"{path} holds numbers that are not finite, in {broken[0]}. {again}", "weights.not-finite", tensors=broken
        )
    return model.eval()


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 of all parameters and buffers, in name order."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def numbered(folder: str | Path) -> dict[int, Path]:
    """Members of an ensemble by number, finished or not."""
    found = {path.name.removeprefix(MEMBER): path for path in Path(folder).glob(f"{MEMBER}*") if path.is_dir()}
    return {int(number): found[number] for number in sorted(found, key=len) if number.isdecimal()}


def members_of(folder: str | Path) -> list[Path]:
    """The run in a folder, or its ensemble members.

    Rejects unfinished members.
    """
    members = [] if (Path(folder) / DESCRIPTION).is_file() else [path for _, path in sorted(numbered(folder).items())]
    for path in members:
        if not (path / DESCRIPTION).is_file():
            raise UsageError(
                f"{path} is not finished. Continue with the command that started it and --resume: "
                f"uce-edge train --members {len(members)} --out {folder} --resume",
                "run.unfinished",
                path=path,
            )
    return members or [Path(folder)]


def newest(root: str | Path = "runs") -> Path:
    """The newest run or ensemble under `root`."""
    patterns = (f"*/{DESCRIPTION}", f"*/{MEMBER}*/{DESCRIPTION}")
    descriptions = sorted(
        (path for pattern in patterns for path in Path(root).glob(pattern)), key=lambda path: path.stat().st_mtime
    )
    if descriptions and descriptions[-1].parent.parent != Path(root):
        return descriptions[-1].parent.parent
    if not descriptions:
        raise UsageError(
            f"There is no training run under {root}/. Train one with: uce-edge train --data digits --out runs/digits",
            "run.missing",
        )
    return descriptions[-1].parent


def tool_versions() -> dict[str, str]:
    """Versions of the tools."""
    from uce_edge import __version__

    return {"uce_edge": __version__, "torch": torch.__version__}
