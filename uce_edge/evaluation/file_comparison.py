"""Comparison of model files on the same labelled images, with their latency."""

from collections.abc import Callable, Sequence
from pathlib import Path

from uce_edge.bench.sweep import side_by_side
from uce_edge.contract import pass_seeds
from uce_edge.datasets import labelled
from uce_edge.errors import UsageError, expected
from uce_edge.evaluation import comparison
from uce_edge.evaluation.comparison import Comparison, Price
from uce_edge.evaluation.evaluation_data import EvaluationData
from uce_edge.metadata import Metadata
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.model import Model
from uce_edge.runtime.providers import check_threads

MOST = 12
"""The largest number of files: a chart cannot distinguish more lines."""


def named_files(models: Sequence[Path]) -> dict[str, Path]:
    """Map the shortest names that distinguish the files to their paths."""
    if not 2 <= len(models) <= MOST:
        remedy = "For example: uce-edge compare det.onnx mc.onnx --data photos/"
        raise UsageError(expected("`models`", f"2 to {MOST} files", len(models), remedy))
    places = [path.resolve() for path in models]
    for place, path in zip(places, models, strict=True):
        if places.count(place) > 1:
            raise UsageError(expected("`models`", "different files", f"{path} twice", "Omit one"), "model.duplicate")
    depth = next(n for n in range(1, 1000) if len({place.parts[-n:] for place in places}) == len(places))
    return {"/".join(place.parts[-depth:]): path for place, path in zip(places, models, strict=True)}


def compare_files(
    models: Sequence[Path],
    data: str,
    *,
    ood: Sequence[str] = (),
    group: str | None = None,
    root: Path | None = None,
    images: int | None = None,
    seed: int = 0,
    device: str = Device.AUTO,
    threads: int | None = None,
    max_memory: int | None = None,
    latency: bool = True,
    report: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Evaluate model files on the same images and compare them.

    Args:
        models: Two or more model files.
        data: The labelled images, as in `EvaluationData.load`.
        ood: Sets of out-of-distribution images.
        group: The column or pattern that groups images.
        root: The folder of the public datasets.
        images: The largest number of test images, and of images of each other dataset.
        seed: The seed of the passes.
        device: Where the models run.
        threads: Threads of ONNX Runtime; None for all cores.
        max_memory: Approximate memory in megabytes of one call.
        latency: Whether to measure the time per image.
        report: Called with a line of progress per file.
    """
    files = named_files(models)
    check_threads(threads)
    pass_seeds(1, seed)
    described = {name: Model(path, device).metadata for name, path in files.items()}
    comparison.check_alike(described)
    first = next(iter(described.values()))
    trained = next((one for one in described.values() if one.hashes.splits), None)
    own = labelled.Own() if trained is None else labelled.Own(trained.hashes.splits, trained.group)
    test = EvaluationData.load(data, first, own=own, ood=ood, root=root, group=group, most=images)
    evaluations = {}
    for name, path in files.items():
        report(f"Evaluating {name} on {len(test.split):,} images: {data}, {test.part}.")
        model = Model(path, device, threads=threads, max_memory=max_memory)
        evaluations[name] = test.evaluate(model, seed=seed)
    prices = _prices(files, described, device, threads, latency)
    return comparison.compare(evaluations, prices, threads=threads)


def _prices(
    files: dict[str, Path], described: dict[str, Metadata], device: str, threads: int | None, latency: bool
) -> dict[str, Price]:
    reference = comparison.reference_of(described)
    measured = side_by_side(files, reference, device=str(device), threads=threads) if latency else {}
    return {
        name: Price(
            passes=described[name].samples,
            file_mb=round(path.stat().st_size / 1e6, 3),
            macs=None if (costs := described[name].costs) is None else costs.macs(described[name].samples),
            measured=measured.get(name),
        )
        for name, path in files.items()
    }
