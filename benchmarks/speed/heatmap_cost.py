"""What a heatmap costs: the same network with and without it, in turns.

    python benchmarks/speed/heatmap_cost.py --arch efficientnet-lite0 --inference deterministic --turns 100

Each turn runs both files once, on one thread. The first ratio is that of the least processor time, the second
that of the sums of their nodes' fastest times, which other programs disturb less.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from uce_edge import Model, contract
from uce_edge.contract import Inference
from uce_edge.runtime.providers import onnxruntime
from uce_edge_export.options import FileKind, Options
from uce_edge_train.networks.untrained import export_untrained


def main() -> None:
    """Export, measure and print one line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--arch", default="efficientnet-lite0")
    options.add_argument("--inference", type=Inference, default=Inference.DETERMINISTIC)
    options.add_argument("--samples", type=int, default=8)
    options.add_argument("--classes", type=int, default=1000)
    options.add_argument("--turns", type=int, default=100)
    given = options.parse_args()
    samples = 1 if given.inference is Inference.DETERMINISTIC else given.samples
    with tempfile.TemporaryDirectory() as folder:
        models = {}
        for name, heatmap in (("without", False), ("with", True)):
            kind = FileKind(given.inference, samples=samples, options=Options(heatmap=heatmap))
            done = export_untrained(given.arch, Path(folder) / f"{name}.onnx", kind, classes=given.classes)
            models[name] = Model(done.path, "cpu", threads=1)
        spec = models["with"].metadata.image
        image = np.random.default_rng(0).integers(0, 256, (1, spec.height, spec.width, 3)).astype(np.uint8)
        best = dict.fromkeys(models, float("inf"))
        for _ in range(given.turns):
            for name, model in models.items():
                start = time.process_time()
                model.predict(image)
                best[name] = min(best[name], time.process_time() - start)
        nodes = {name: fastest_nodes(Path(model.path), image, samples, given.turns) for name, model in models.items()}
    ratios = [times["with"] / times["without"] for times in (best, nodes)]
    print(f"{given.arch}, {given.inference}, {samples} passes: whole {ratios[0]:.3f}, nodes {ratios[1]:.3f}")


def fastest_nodes(path: Path, image: np.ndarray, samples: int, turns: int) -> float:
    """Seconds of all nodes, each at its fastest."""
    options = onnxruntime().SessionOptions()
    options.enable_profiling, options.intra_op_num_threads = True, 1
    options.profile_file_prefix = str(path.with_suffix(""))
    session = onnxruntime().InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {contract.IMAGE: image, contract.SEEDS: np.arange(samples, dtype=np.int32)}
    feed = {value.name: feed[value.name] for value in session.get_inputs()}
    for _ in range(turns):
        session.run(None, feed)
    times: dict[str, float] = {}
    for event in json.loads(Path(session.end_profiling()).read_text()):
        if event.get("cat") == "Node" and event["name"].endswith("kernel_time"):
            times[event["name"]] = min(times.get(event["name"], float("inf")), event["dur"] / 1e6)
    return sum(times.values())


if __name__ == "__main__":
    main()
