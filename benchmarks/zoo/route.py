"""One network through one route: what the file costs, or why there is none.

    python benchmarks/zoo/route.py resnet18 mc build/zoo

runs in a process of its own, so that its peak of memory is that of one export, and prints one line of JSON.
"""

import contextlib
import io
import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np

ROUTES = ("mc", "moments", "from")
PLAIN = "plain"
"""The step before the routes."""
PASSES = 4
"""Of one call, when a pass is timed."""
THREADS = 1
_TURNS = 5
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Cell:
    """What came of a network and a route."""

    works: bool
    error: str = ""
    """The message of the refusal, or of the failure."""
    code: str = ""
    """Of the refusal; empty for a failure that is not one."""
    parity: float | None = None
    """As the gate measured it: of logits under the same noise; for moments, of mean probabilities."""
    price: float | None = None
    """One pass as a multiple of the plain network; for moments, the whole answer."""
    seconds: float | None = None
    """Of the export."""
    peak_mb: float | None = None
    """Memory of the process during the export."""
    file_mb: float | None = None
    noisy: int | None = None
    """Layers with noise."""
    layers: int | None = None
    """All weight layers."""
    plain_ms: float | None = None
    """The plain network on one image."""
    plain_mb: float | None = None
    load: float | None = None
    """Programs that wanted a core while it ran, over the last minute."""
    notes: tuple[str, ...] = ()
    """What the export printed about the network."""


def run(name: str, route: str, folder: Path, *, small: bool = False) -> Cell:
    """Export one network by one route, and measure the file.

    Args:
        name: Of the network.
        route: One of `ROUTES`.
        folder: Where the plain network is, and the file is written.
        small: Whether to take the small network of the tests, and leave out the price.
    """
    from networks import NETWORKS, SIZE

    from uce_edge.errors import UceEdgeError

    size = NETWORKS[name].test_size if small else SIZE
    out, plain = folder / f"{name}-{route}.onnx", folder / f"{name}.onnx"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = None if route == "from" else NETWORKS[name].build(small=small)
        start = time.perf_counter()
        try:
            layers, parity, notes = _from_file(plain, out) if model is None else _from_module(model, out, route, size)
        except UceEdgeError as error:
            return Cell(False, str(error), error.code)
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    said = [str(one.message) for one in caught if one.category.__module__.startswith("uce_edge")]
    price, plain_ms = (None, None) if small else _price(plain, out, route, size)
    return Cell(
        True,
        parity=parity,
        price=price,
        seconds=seconds,
        peak_mb=peak,
        file_mb=out.stat().st_size / 1e6,
        noisy=layers,
        layers=weight_layers(plain),
        plain_ms=plain_ms,
        plain_mb=plain.stat().st_size / 1e6,
        load=os.getloadavg()[0],
        notes=tuple(dict.fromkeys([*notes, *said])),
    )


def write_plain(name: str, folder: Path, *, small: bool = False) -> None:
    """Write the network as an ordinary ONNX file of one image."""
    import torch
    from networks import NETWORKS, SIZE

    from uce_edge_export import quiet_logs

    size = NETWORKS[name].test_size if small else SIZE
    folder.mkdir(parents=True, exist_ok=True)
    silent = contextlib.redirect_stdout(io.StringIO())
    with torch.no_grad(), quiet_logs.errors_only(), warnings.catch_warnings(), silent:
        warnings.simplefilter("ignore")
        torch.onnx.export(
            NETWORKS[name].build(small=small),
            (torch.zeros(1, 3, size, size),),
            str(folder / f"{name}.onnx"),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


Layers = tuple[int, float, tuple[str, ...]]
"""The number of noisy layers, the parity and the notes."""


def _from_module(model: Any, out: Path, route: str, size: int) -> Layers:
    from networks import CLASSES, RATE

    from uce_edge import ImageSpec, Metadata
    from uce_edge.contract import Inference
    from uce_edge_train import export_module, gaussianize

    gaussianize(model, p=RATE)
    image = ImageSpec(size, size, 3, mean=_MEAN, std=_STD)
    metadata = Metadata(tuple(f"class {i}" for i in range(CLASSES)), image, inference=Inference(route))
    done = export_module(model, metadata, out)
    return len(done.metadata.layers), done.parity.largest_difference, done.notes


def _from_file(plain: Path, out: Path) -> Layers:
    from networks import RATE

    from uce_edge_export.file_pipeline import export_file
    from uce_edge_export.options import SourceSpec
    from uce_edge_export.pipeline import Built

    done = export_file(plain, out, p=[str(RATE)], spec=SourceSpec(mean=_MEAN, std=_STD))
    parity = next(step.parity for step in done.steps if isinstance(step, Built))
    return len(done.metadata.layers), parity.largest_difference, done.notes


def weight_layers(path: Path) -> int:
    """Count the nodes of an ONNX file that multiply by constant weights."""
    import onnx

    graph = onnx.load(path).graph
    constant, count = {one.name for one in graph.initializer}, 0
    for node in graph.node:
        if all(name in constant for name in node.input if name):
            constant.update(node.output)
        elif node.op_type in ("Conv", "ConvTranspose", "Gemm"):
            count += node.input[1] in constant
        elif node.op_type == "MatMul":
            count += any(name in constant for name in node.input)
    return count


def _price(plain: Path, out: Path, route: str, size: int) -> tuple[float, float]:
    """One pass by the plain network, and the time of that, in turns."""
    from uce_edge.runtime.device_choice import Device
    from uce_edge.runtime.providers import open_session

    file = open_session(str(out), Device.CPU, threads=THREADS, spin=False)
    network = open_session(str(plain), Device.CPU, threads=THREADS, spin=False)
    name = network.get_inputs()[0].name
    pixels = np.random.default_rng(0).integers(0, 256, (1, size, size, 3), np.uint8)
    passes = 100 if route == "moments" else PASSES
    fed = {"image": pixels, "seeds": np.arange(passes, dtype=np.int32)}
    values = np.random.default_rng(0).normal(size=(1, 3, size, size)).astype(np.float32)
    times: tuple[list[float], list[float]] = [], []
    for _ in range(_TURNS + 1):  # the first turn warms up
        times[0].append(_timed(lambda: file.run(["class_id", "uncertainty"], fed)))
        times[1].append(_timed(lambda: network.run(None, {name: values})))
    whole, alone = (min(each[1:]) for each in times)
    return whole / (1 if route == "moments" else passes) / alone, alone * 1000


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(name: str, route: str, folder: str) -> None:
    """Run one route, or write the plain network that the routes compare with."""
    threads = str(THREADS)
    os.environ.update(OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads)
    if route == PLAIN:
        write_plain(name, Path(folder))
    else:
        print(json.dumps(asdict(run(name, route, Path(folder)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
