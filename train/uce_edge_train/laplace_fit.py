"""The Laplace posterior of a run: fitted on its training images, kept beside its weights, drawn from by a file."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save
from torch import nn

from uce_edge.calibration.laplace import Curvature, Laplace
from uce_edge.contract import Inference, NoiseKind, PriorFrom
from uce_edge.datasets.splits import Dataset, Split
from uce_edge.errors import UceEdgeError, UsageError
from uce_edge.files import replacing
from uce_edge.metadata import LaplaceFit, Metadata
from uce_edge.model import Model
from uce_edge_export import graph, laplace
from uce_edge_export.laplace import Drawn
from uce_edge_export.publish import publish
from uce_edge_train import graphs
from uce_edge_train.runs import LAPLACE, Run, weights_sha256

_FACTORS = ("directions", "scales", "class_directions", "class_scales")


@contextmanager
def fitted(
    model: nn.Module, run: Run, dataset: Dataset, held_out: Split, prior: PriorFrom, samples: int
) -> Iterator[tuple[Drawn, Model]]:
    """Fit the posterior of a run, and draw from it.

    Args:
        model: The network.
        run: Its description.
        dataset: The run's own.
        held_out: Labelled images that it was not trained on.
        prior: How the precision of the prior is chosen.
        samples: Draws.

    Returns:
        The posterior, and a file that draws from it, without a map, which goes away with the block.
    """
    trained_on = dataset.splits["train"]
    if trained_on.sha256() != run.split_hashes["train"]:
        raise UsageError(
            f"The training images of {dataset.name} are not those that this run was trained on. Train again, or "
            "restore the data."
        )
    classifier = graphs.export_deterministic(model, run.image)
    plain = Metadata(run.class_names, run.image, inference=Inference.DETERMINISTIC, noise=NoiseKind.NONE, samples=1)
    built, plain = graph.contract_model(classifier, [], plain)
    posterior, fit = laplace.fit(built, trained_on, held_out, prior, samples)
    drawn = Drawn(posterior, fit, samples)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.onnx"
        with publish(built, plain, path) as draft:
            laplace.add(draft, drawn, dataset.splits["calibration"].images[:3])
        yield drawn, Model(path, "cpu")


def store(drawn: Drawn, model: nn.Module, folder: str | Path) -> None:
    """Keep a posterior with the run of its network."""
    curved = drawn.posterior.curvature
    tensors = {name: np.ascontiguousarray(getattr(curved, name)) for name in _FACTORS}
    with replacing(Path(folder) / LAPLACE) as path:
        path.write_bytes(save(tensors, {"weights": weights_sha256(model)}))


def load(fit: LaplaceFit, model: nn.Module, folder: str | Path) -> Laplace:
    """The posterior of a run, or why there is none."""
    path, again = Path(folder) / LAPLACE, f"Fit it again: uce-edge calibrate {folder} --posterior laplace"
    try:
        with safe_open(path, "numpy") as file:
            known = (file.metadata() or {}).get("weights")
            curved = Curvature(*(file.get_tensor(name) for name in _FACTORS))
    except Exception as error:  # a missing file, or one of safetensors' own
        raise UceEdgeError(f"{path} cannot be read ({str(error).splitlines()[0]}). {again}") from None
    if known != weights_sha256(model):
        raise UceEdgeError(f"{path} belongs to other weights than the run has now. {again}")
    return Laplace(curved, fit.prior_precision)
