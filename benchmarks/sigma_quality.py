"""What does factored sigma do to the answers? Writes its part of docs/inference.md.

    python benchmarks/sigma_quality.py NAME=RUN ... [NAME=bundled]

Every RUN is a calibrated training run. Its passes and its moments, with exact and with factored sigma, are compared on
the same test images. A run that was trained with factored sigma has that form alone, and is compared with the run
before it. "bundled" is the model in the box: its weights are read from its files.
"""

import re
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from torch import nn

from uce_edge import metrics
from uce_edge.contract import Inference, Sigma
from uce_edge.datasets import Split, load
from uce_edge.metrics import bootstrap_difference
from uce_edge.model import Model
from uce_edge.models import bundled
from uce_edge_export.options import Options
from uce_edge_train import architectures, export_module, gaussianize
from uce_edge_train.export import export_run
from uce_edge_train.runs import Run

DOCS = Path(__file__).resolve().parent.parent / "docs"
IMAGES, DISTANCE_IMAGES = 5_000, 400
PASSES, MANY = 25, 100
INFERENCES = (Inference.MC, Inference.MOMENTS)
TITLE = "## Factored sigma"

Forms = dict[tuple[Inference, Sigma], Model]
Answers = dict[Inference, npt.NDArray[np.float32]]


def main(arguments: list[str]) -> None:
    """Measure every network and write the page's part."""
    warnings.simplefilter("ignore")
    rows: list[str] = []
    exact: Answers = {}
    for argument in arguments:
        name, _, folder = argument.rpartition("=")
        with tempfile.TemporaryDirectory() as place:
            forms, test = of_bundled(Path(place)) if folder == "bundled" else of_run(folder, Path(place))
            rows += compare(name, forms, test, exact)
            write(rows)


def write(rows: list[str]) -> None:
    """Put the rows into the page, above those of networks that were measured in another call."""
    page = DOCS / "inference.md"
    before = re.search(rf"^{TITLE}\n.*?(?=^## |\Z)", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    measured = {row.split("|")[1] for row in rows} | {" network ", " --- "}
    table = [line for line in before[0].splitlines() if line.startswith("|")] if before else []
    rows = rows + [line for line in table if line.split("|")[1] not in measured]
    kept = re.sub(rf"^{TITLE}\n.*?(?=^## |\Z)", "", page.read_text(), flags=re.MULTILINE | re.DOTALL).rstrip()
    page.write_text(f"{kept}\n\n{TEXT.format(rows=chr(10).join(rows))}")
    print(f"Wrote {page}")


def of_run(folder: str, place: Path) -> tuple[Forms, Split]:
    """The forms of a training run, and its test images."""
    run = Run.load(folder)
    dataset = run.dataset()
    forms = {}
    for inference in INFERENCES:
        for sigma in Sigma if run.recipe.sigma is Sigma.EXACT else [Sigma.FACTORED]:
            path = place / f"{inference}-{sigma}.onnx"
            export_run(folder, path, dataset, inference, options=Options(sigma=sigma))
            forms[inference, sigma] = Model(path, "cpu")
    return forms, dataset.splits["test"].at_most(IMAGES)


def of_bundled(place: Path) -> tuple[Forms, Split]:
    """The forms of the model in the box, and test images that it has not seen."""
    data = load("cifar10")
    test = data.splits["test"].at_most(IMAGES)
    forms = {}
    for inference in INFERENCES:
        original = Model(bundled(inference), "cpu")
        network = bundled_network(bundled(inference), original)
        for sigma in Sigma:
            path = place / f"{inference}-{sigma}.onnx"
            metadata = replace(original.metadata, outputs=(), rule=None, tools={})
            export_module(network, metadata, path, data.splits["calibration"].images, Options(sigma=sigma))
            forms[inference, sigma] = Model(path, "cpu")
    # Before anything is said of the box: it is the same network.
    few = test.images[:50]
    ours, theirs = (model.predict(few) for model in (forms[Inference.MC, Sigma.EXACT], Model(bundled(Inference.MC))))
    np.testing.assert_allclose(ours.probabilities, theirs.probabilities, atol=1e-4)
    return forms, test


def bundled_network(path: Path, model: Model) -> nn.Module:
    """PyTorch's form of a bundled file, whose weights have batch-norm folded into them."""
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    network = architectures.build(model.metadata.architecture, len(model.classes), model.metadata.image.channels)
    modules = dict(network.named_modules())
    with torch.no_grad():
        for name, layer in modules.items():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.weight.copy_(torch.from_numpy(held[f"{name}.weight"].copy()))
        modules["classifier"].bias.copy_(torch.from_numpy(held["classifier.bias"].copy()))
        for name, norm in modules.items():
            if isinstance(norm, nn.BatchNorm2d):
                place, _, number = name.rpartition(".")
                norm.bias.copy_(torch.from_numpy(held[f"{place}.{int(number) - 1}.weight_bias"].copy()))
                norm.weight.fill_((1 + norm.eps) ** 0.5)  # running mean 0 and variance 1 are the defaults
    return gaussianize(network, model.metadata.layers[0].p).eval()


def compare(name: str, forms: Forms, test: Split, exact: Answers) -> list[str]:
    """Rows of the table; `exact` holds the answers that the next rows are compared with."""
    few = test.images[:DISTANCE_IMAGES]
    own = forms.get((Inference.MC, Sigma.EXACT), forms[Inference.MC, Sigma.FACTORED])
    reference = own.predict(few, MANY, seed=1).uncertainty
    rows = []
    for (inference, sigma), model in forms.items():
        said = model.predict(test.images).probabilities
        values = [f"{metrics.accuracy(said, test.labels):.1%}"]
        for metric in (metrics.nll, metrics.aurc, metrics.uce):
            value = f"{metric(said, test.labels):.4f}"
            if sigma is Sigma.FACTORED:
                difference = bootstrap_difference(metric, said, exact[inference], test.labels, resamples=400)
                value += f" ({difference.low:+.4f} to {difference.high:+.4f})"
            values.append(value)
        distance = np.abs(model.predict(few).uncertainty - reference).mean()
        form = f"N = {PASSES}" if inference is Inference.MC else "moments"
        rows.append(f"| {name} | {form} | {sigma} | {' | '.join(values)} | {distance:.4f} |")
        print(rows[-1], flush=True)
        if sigma is Sigma.EXACT:
            exact[inference] = said
    return rows


TEXT = f"""{TITLE}

Written by `benchmarks/sigma_quality.py`. {IMAGES:,} test images of CIFAR-10. In brackets, the 95 % interval of the
difference to the same kind of file with exact sigma, over redrawn images; for a network that was trained with factored
sigma, to the network above it. "distance" is the mean absolute difference of the uncertainty to that of {MANY} other
passes of the network as it was trained, on {DISTANCE_IMAGES} images: in a network's first row it is sampling error.
A network that was trained with exact sigma has its noise scaled when it is exported with factored sigma, so that images
are as uncertain as before on average.

| network | inference | sigma | accuracy | NLL | AURC | UCE | distance |
| --- | --- | --- | --- | --- | --- | --- | --- |
{{rows}}
"""

if __name__ == "__main__":
    main(sys.argv[1:])
