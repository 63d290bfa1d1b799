"""The price of noise on networks that devices run, against one plain pass.

    python benchmarks/speed/noise_price.py [--threads 2] [--turns 30] [NETWORK ...]

Every form of a network is exported with random weights. The files answer one image in turns, and the fastest turn of
each counts: the ratio of 25 passes to the plain network, and the same for a pass.
"""

import argparse
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from uce_edge.contract import Inference, Sigma
from uce_edge.runtime.model import Model
from uce_edge_export.options import FileKind, Options
from uce_edge_train.networks.untrained import export_untrained

SAMPLES, RATE = 25, 0.01
PLAIN = "plain"
FORMS = {
    PLAIN: FileKind(Inference.DETERMINISTIC),
    "tail": FileKind(options=Options(("tail",))),
    "tail, moments": FileKind(Inference.MOMENTS, options=Options(("tail",))),
    "all, exact": FileKind(),
    "all, factored": FileKind(options=Options(sigma=Sigma.FACTORED)),
    "no depthwise, factored": FileKind(options=Options(("no-depthwise",), sigma=Sigma.FACTORED)),
    "all, by channel": FileKind(options=Options(sigma=Sigma.CHANNEL)),
    "no depthwise, by channel": FileKind(options=Options(("no-depthwise",), sigma=Sigma.CHANNEL)),
}
NETWORKS = ("efficientnet-lite0", "mobilenetv3-small", "vit-tiny", "resnet20")


def main() -> None:
    """Print a table for every network."""
    parser = argparse.ArgumentParser()
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=30)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in given.networks:
        with tempfile.TemporaryDirectory() as folder:
            best = timed(files(name, Path(folder)), given.threads, given.turns)
        plain = best.pop(PLAIN)
        print(f"\n{name}: {1e3 * plain:.1f} ms\n\n| noise | {SAMPLES} passes | a pass |\n| --- | --- | --- |")
        for form, seconds in best.items():
            each = "" if FORMS[form].inference is Inference.MOMENTS else f"{seconds / plain / SAMPLES:.2f}x"
            print(f"| {form} | {seconds / plain:.2f}x | {each} |", flush=True)


def files(name: str, folder: Path) -> dict[str, Path]:
    """The files of a network, by form; a form that it does not have is left out."""
    found = {}
    for number, (form, kind) in enumerate(FORMS.items()):
        out = folder / f"{number}.onnx"
        try:
            export_untrained(name, out, kind, None if kind.inference is Inference.DETERMINISTIC else RATE)
        except Exception as error:
            print(f"{name}, {form}: {error}")
        else:
            found[form] = out
    return found


def timed(paths: dict[str, Path], threads: int, turns: int) -> dict[str, float]:
    """Seconds of the fastest turn, by form."""
    models = {form: Model(path, "cpu", threads=threads) for form, path in paths.items()}
    spec = models[PLAIN].metadata.image
    image = np.random.default_rng(0).integers(0, 256, (1, spec.height, spec.width, spec.channels), dtype=np.uint8)
    best = dict.fromkeys(models, float("inf"))
    for _ in range(turns):
        for form, model in models.items():
            samples = None if form == PLAIN else SAMPLES
            started = time.perf_counter()
            model.predict(image, samples)
            best[form] = min(best[form], time.perf_counter() - started)
    return best


if __name__ == "__main__":
    main()
