"""Export an architecture with random weights, for benchmarks."""

from pathlib import Path

import torch

from uce_edge.contract import pass_seeds
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge_export.options import FileKind
from uce_edge_export.pipeline import Exported, default_samples
from uce_edge_train.choices import Architecture
from uce_edge_train.dropout.gaussian_layers import gaussianize
from uce_edge_train.export import export_module
from uce_edge_train.networks import architectures


def export_untrained(
    name: str,
    out: str | Path,
    wanted: FileKind = FileKind(),
    p: float | None = None,
    classes: int = 10,
    image: ImageSpec | None = None,
) -> Exported:
    """Write a network with fixed random weights.

    Args:
        name: As in `architectures.build`.
        out: The `.onnx` file.
        wanted: The kind of file.
        p: The rate of Gaussian dropout in every layer; None for 0.2, or for none where the network keeps its own.
        classes: Number of classes.
        image: What it takes; None for colour images of the size that the network is made for.
    """
    if image is None:
        side = Architecture(name).side if name in list(Architecture) else 32
        image = ImageSpec(side, side, 3)
    samples = default_samples(wanted.inference) if wanted.samples is None else wanted.samples
    pass_seeds(samples, 0)
    torch.manual_seed(0)
    model = architectures.build(name, classes, image.channels)
    if p is not None or not wanted.options.keeps_dropout:
        model = gaussianize(model, 0.2 if p is None else p)
    metadata = Metadata(
        tuple(str(i) for i in range(classes)),
        image,
        inference=wanted.inference,
        noise=wanted.noise,
        precision=wanted.precision,
        architecture=f"{name} (untrained)",
        samples=samples,
    )
    return export_module(model, metadata, out, options=wanted.options)
