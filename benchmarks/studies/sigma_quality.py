"""What does factored sigma do to the answers? Writes its part of docs/inference.md.

    python benchmarks/studies/sigma_quality.py NAME=RUN ...

Every RUN is a calibrated training run. Its passes and its moments, with exact and with factored sigma, are compared on
the same test images. A run that was trained with factored sigma has that form alone, and is compared with the run
before it.
"""

import re
import sys
import tempfile
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.contract import Inference, Sigma
from uce_edge.datasets import Split
from uce_edge.metrics import bootstrap_difference
from uce_edge.runtime.model import Model
from uce_edge_export.options import Options
from uce_edge_train.export import export_run
from uce_edge_train.runs import Run

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
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
            forms, test = of_run(folder, Path(place))
            rows += compare(name, forms, test, exact)
            write(rows)


def write(rows: list[str]) -> None:
    """Put the rows into the page's part; a network that was not measured keeps its rows."""
    page = DOCS / "inference.md"
    part = re.compile(rf"^{TITLE}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    text = page.read_text()
    before = part.search(text)
    table = [line for line in before[0].splitlines() if line.startswith("|")][2:] if before else []
    new = TEXT.format(rows="\n".join(merged(table, rows)))
    if before:
        text = f"{text[: before.start()]}{new}\n{text[before.end() :]}".rstrip() + "\n"
    else:
        text = f"{text.rstrip()}\n\n{new}"
    page.write_text(text)
    print(f"Wrote {page}")


def merged(table: list[str], rows: list[str]) -> list[str]:
    """The rows of a table, and new ones in the place of those of the same network; another network goes below."""
    old, new = by_network(table), by_network(rows)
    names = list(old)
    for above, name in pairwise([None, *new]):
        if name not in names:
            names.insert(len(names) if above is None else names.index(above) + 1, name)
    return [row for name in names for row in (old | new)[name]]


def by_network(rows: list[str]) -> dict[str, list[str]]:
    """Rows by what stands in their first cell."""
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row.split("|")[1].strip(), []).append(row)
    return found


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

Written by `benchmarks/studies/sigma_quality.py`. The table has {IMAGES:,} test images of CIFAR-10. Brackets hold the 95
% interval of the difference to the same kind of file with exact sigma, over redrawn images. For a network that was
trained with factored sigma ("trained so"), the difference is to the network above it. "distance" is the mean absolute
difference of the uncertainty to that of {MANY} other passes of the network as it was trained, on {DISTANCE_IMAGES}
images. In the first row of a network it is sampling error. A network that was trained with exact sigma has its noise
scaled when it is exported with factored sigma, so that images are as uncertain as before on average.

| network | inference | sigma | accuracy | NLL | AURC | UCE | distance |
| --- | --- | --- | --- | --- | --- | --- | --- |
{{rows}}
"""

if __name__ == "__main__":
    main(sys.argv[1:])
