"""The bundled `imagenet` beside the published network in PyTorch, on the same photos."""

import numpy as np
import numpy.typing as npt
import torch
from imagenet import published_network
from recipes import BOX, PHOTOS

from uce_edge.datasets import labelled
from uce_edge.datasets.splits import Split
from uce_edge.metadata import Metadata
from uce_edge.metrics import aurc, calibration_test, risk_coverage
from uce_edge.runtime.model import Model
from uce_edge_train.networks.backbones import BACKBONES

_BATCH = 50


def check_network() -> None:
    """Print accuracies, AURC by both scores, and the tests of calibration."""
    boxed = BOX["imagenet"]
    path = boxed.file(boxed.kinds[0])
    model, network = Model(path, "cpu", spin=False), published_network()
    fitting, held_out = _photos("fit", model.metadata).halves()
    for name, photos in (
        ("test", _photos("test", model.metadata)),
        ("fitting", fitting),
        ("held out", held_out),
    ):
        if name == "fitting" and photos.sha256() != model.metadata.hashes.calibration_data:
            raise SystemExit(f"{path} was calibrated on other photos than {PHOTOS}/fit.csv has.")
        _print(name, photos, _in_pytorch(network, photos.images), model.predict(photos.images).probabilities)


def _photos(part: str, metadata: Metadata) -> Split:
    return labelled.load(str(PHOTOS / f"{part}.csv"), metadata.image, metadata.classes)


def _in_pytorch(network: torch.nn.Module, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """The labels of PyTorch, float32, of the pixels that the file gets."""
    scaling = BACKBONES["efficientnet-lite0"].image
    mean, std = (torch.tensor(values)[:, None, None] for values in (scaling.mean, scaling.std))
    found = []
    with torch.inference_mode():
        for start in range(0, len(images), _BATCH):
            pixels = torch.from_numpy(images[start : start + _BATCH]).permute(0, 3, 1, 2).float() / 255
            found.append(network((pixels - mean) / std).argmax(-1))
    return torch.cat(found).numpy()


def _print(name: str, photos: Split, published: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float32]) -> None:
    predicted, truth = probabilities.argmax(-1), photos.labels
    print(
        f"{name}, {len(photos)} photos: PyTorch is right on {np.mean(published == truth):.1%}, the file on "
        f"{np.mean(predicted == truth):.1%}; they agree on {np.mean(published == predicted):.1%}"
    )
    for score in ("confidence", "uncertainty"):
        curve = risk_coverage(probabilities, truth, score=score)
        most = max(curve.coverage[curve.risk <= 0.1], default=0.0)
        test = calibration_test(probabilities, truth, kind=score)
        print(
            f"    by {score}: AURC {aurc(probabilities, truth, score=score):.2%}, in hindsight {most:.1%} could be "
            f"accepted at 10 % errors; {test.verdict} (p = {test.p_value:.3f}), error {test.error:.1%}, expected "
            f"{test.expected:.1%}"
        )
