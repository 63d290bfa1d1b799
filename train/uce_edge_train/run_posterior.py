"""The Laplace posterior of a run."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save
from torch import nn

from uce_edge._util.atomic_files import replacing
from uce_edge._util.progress import working
from uce_edge.calibration.laplace_posterior import Curvature, Laplace
from uce_edge.contract import Inference, NoiseKind, PriorFrom
from uce_edge.datasets.splits import Split
from uce_edge.errors import UceEdgeError
from uce_edge.metadata import ImageSpec, LaplaceFit, Metadata
from uce_edge.runtime.model import Model
from uce_edge_export.graph import assembly, laplace_draws
from uce_edge_export.graph.laplace_draws import Drawn
from uce_edge_export.publish.draft import publish
from uce_edge_train import torch_graph
from uce_edge_train.networks import tensor_files
from uce_edge_train.networks.parameter_groups import head_of
from uce_edge_train.networks.tensor_files import TensorFileError
from uce_edge_train.runs import LAPLACE, weights_sha256


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a network takes, to fit a posterior on."""

    image: ImageSpec
    trained_on: Split
    held_out: Split
    """Labelled, and not trained on."""


_FACTORS = ("directions", "scales", "class_directions", "class_scales")


@contextmanager
def fitted(
    model: nn.Module, classes: Sequence[str], inputs: Inputs, prior: PriorFrom, samples: int
) -> Iterator[tuple[Drawn, Model]]:
    """Fit the posterior of a network, and draw from it.

    Args:
        model: The network, or its tail.
        classes: Their names.
        inputs: The images, or features, that it takes.
        prior: How the precision of the prior is chosen.
        samples: Draws.

    Returns:
        The posterior, and an uncalibrated model that draws from it, which the block's end deletes.
    """
    classifier = torch_graph.export_deterministic(model, inputs.image)
    plain = Metadata(tuple(classes), inputs.image, inference=Inference.DETERMINISTIC, noise=NoiseKind.NONE, samples=1)
    built, plain = assembly.contract_model(classifier, [], plain)
    with working("fitting the Laplace posterior"):
        posterior, fit = laplace_draws.fit(built, inputs.trained_on, inputs.held_out, prior, samples)
    drawn = Drawn(posterior, fit, samples)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.onnx"
        with publish(built, plain, path) as draft:
            laplace_draws.add(draft, drawn, inputs.held_out.images[:3])
        yield drawn, Model(path, "cpu")


def store(drawn: Drawn, model: nn.Module, folder: str | Path) -> None:
    """Store a posterior in the run's folder."""
    curved = drawn.posterior.curvature
    tensors = {name: np.ascontiguousarray(getattr(curved, name)) for name in _FACTORS}
    with replacing(Path(folder) / LAPLACE) as path:
        path.write_bytes(save(tensors, {"weights": weights_sha256(model)}))


def load(fit: LaplaceFit, model: nn.Module, folder: str | Path) -> Laplace:
    """Load the posterior of a run."""
    path, again = Path(folder) / LAPLACE, f"Fit it again: uce-edge calibrate {folder} --posterior laplace"
    try:
        tensors, header = tensor_files.read(path)
        curved = Curvature(*(tensors[name].numpy() for name in _FACTORS))
    except (OSError, TensorFileError, KeyError, TypeError) as error:
        raise UceEdgeError(
            f"{path} cannot be read ({tensor_files.reason(error)}). {again}", "posterior.unreadable"
        ) from None
    known = header.get("weights")
    if known != weights_sha256(model):
        raise UceEdgeError(f"{path} belongs to other weights than the run has now. {again}", "posterior.mismatch")
    classes, features = model.state_dict()[f"{head_of(model)}.weight"].shape[:2]
    sizes = ((features + 1, features + 1), (features + 1,), (classes, classes - 1), (classes - 1,))
    for name, size in zip(_FACTORS, sizes, strict=True):
        factor = getattr(curved, name)
        if factor.shape != size or factor.dtype.kind != "f" or not np.isfinite(factor).all():
            raise UceEdgeError(
                f"{path} does not fit the last layer of the run: {name} is not {size}. {again}", "posterior.mismatch"
            )
    return Laplace(curved, fit.prior_precision)
