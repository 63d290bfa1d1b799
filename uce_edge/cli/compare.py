"""`uce-edge compare`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge.cli.evaluation_inputs import called, check_report, grouped_note, outside_images, trained_note
from uce_edge.cli.messages import say, show_log, table, warn
from uce_edge.cli.shared_options import (
    DataOption,
    DeviceOption,
    ForeignOption,
    JsonOption,
    MemoryOption,
    RootOption,
    SeedOption,
    TestGroupOption,
    ThreadsOption,
)
from uce_edge.errors import UsageError, expected
from uce_edge.runtime.providers import Device, check_threads

if TYPE_CHECKING:
    from uce_edge.evaluation import Evaluation
    from uce_edge.evaluation.comparison import Price
    from uce_edge.metadata import Metadata

MOST = 12
"""Files in one comparison: a chart cannot tell more lines apart."""


@dataclass(frozen=True)
class _Asked:
    """What all files are asked, and with what."""

    data: str
    group: str | None
    ood: tuple[str, ...]
    root: Path | None
    images: int | None
    seed: int
    device: Device
    threads: int | None
    max_memory: int | None


def compare(
    models: Annotated[list[Path], typer.Argument(help="Two or more model files made by `uce-edge export`.")],
    data: DataOption,
    group: TestGroupOption = None,
    ood: ForeignOption = None,
    report: Annotated[Path | None, typer.Option(help="Write all results to this .html file, with charts.")] = None,
    images: Annotated[
        int | None,
        typer.Option(help="The largest number of test images to use, and of images of each foreign dataset.", min=1),
    ] = None,
    latency: Annotated[
        bool, typer.Option(help="Measure the time per image. The files take turns, so that all see the same load.")
    ] = True,
    seed: SeedOption = 0,
    device: DeviceOption = Device.AUTO,
    threads: ThreadsOption = None,
    max_memory: MemoryOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare model files on the same labelled images: which one wins on your data, and at what price.

    Every file uses its own number of passes. It is compared with the first deterministic file, or with the first file
    if none is deterministic. Each difference has a paired 95 % interval. One that contains 0 is a tie. The winner
    is the cheapest file that no other beats in accuracy, NLL or AURC; it is also said if it is not calibrated.

    Example: uce-edge compare det.onnx mc.onnx moments.onnx --data photos/ --report compare.html

    Example: uce-edge compare det.onnx laplace.onnx ensemble.onnx --data cifar10 --ood cifar100 --ood far --threads 2
    """
    show_log()
    # Wrong usage is told before anything slow happens.
    files = _named(models)
    check_threads(threads)
    if report is not None:
        check_report(report, files.values())
    from uce_edge._util.atomic_files import replacing
    from uce_edge.contract import pass_seeds
    from uce_edge.evaluation import comparison
    from uce_edge.output.report import comparison_tables, verdict
    from uce_edge.runtime.model import Model

    pass_seeds(1, seed)
    described = {name: Model(path, device).metadata for name, path in files.items()}
    comparison.check_alike(described)
    asked = _Asked(data, group, tuple(ood or ()), root, images, seed, device, threads, max_memory)
    evaluations = _evaluate(files, described, asked)
    prices = _prices(files, described, comparison.reference_of(described), asked, latency)
    found = comparison.compare(evaluations, prices, threads=threads)
    answer = verdict.sentence(found)
    if report is not None:
        with replacing(report, "--report") as temporary:
            temporary.write_text(comparison_tables.render(found, _command(files, asked, latency)), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(found.as_dict() | {"verdict": answer}, indent=2, allow_nan=False))
    else:
        for shown in comparison_tables.tables(found):
            table(*shown)
    for note in found.notes:
        warn(note)
    if latency:
        say(comparison_tables.how_timed(found))
    say(answer)
    if report is not None:
        say(f"Wrote {report}")


def _named(models: Sequence[Path]) -> dict[str, Path]:
    """The files by the shortest name that tells them apart."""
    if not 2 <= len(models) <= MOST:
        remedy = "For example: uce-edge compare det.onnx mc.onnx --data photos/"
        raise UsageError(expected("the number of files", f"2 to {MOST}", len(models), remedy))
    places = [path.resolve() for path in models]
    for place, path in zip(places, models, strict=True):
        if places.count(place) > 1:
            raise UsageError(expected("the files", "different", f"{path} twice", "Name it once"))
    depth = next(n for n in range(1, 1000) if len({place.parts[-n:] for place in places}) == len(places))
    return {"/".join(place.parts[-depth:]): path for place, path in zip(places, models, strict=True)}


def _evaluate(files: dict[str, Path], described: "dict[str, Metadata]", asked: _Asked) -> "dict[str, Evaluation]":
    """Every file on the same images."""
    from uce_edge import evaluation
    from uce_edge.datasets import labelled
    from uce_edge.runtime.model import Model

    first = next(iter(described.values()))
    own = next(
        (labelled.Own(one.hashes.splits, one.group) for one in described.values() if one.hashes.splits), labelled.Own()
    )
    split, part = labelled.load_test(asked.data, first.image, first.classes, asked.root, own, asked.group)
    if asked.images is not None and asked.images < len(split):
        split = split.at_most(asked.images)
        part = f"{asked.images:,} of the {part}"
    outside = outside_images(asked.ood, first.image, asked.root, split.images, asked.images)
    found = {}
    for name, path in files.items():
        say(f"Evaluating {name} on {len(split):,} images: {asked.data}, {part}.")
        model = Model(path, asked.device, threads=asked.threads, max_memory=asked.max_memory)
        found[name] = evaluation.evaluate(
            model,
            split.images,
            split.labels,
            data=called(asked.data),
            part=part,
            outside=outside.images,
            kinds=outside.kinds,
            seed=asked.seed,
            notes=[*trained_note(model.metadata, split.images), *grouped_note(split)],
        )
    return found


def _prices(
    files: dict[str, Path], described: "dict[str, Metadata]", reference: str, asked: _Asked, timed: bool
) -> "dict[str, Price]":
    from uce_edge.bench.sweep import side_by_side
    from uce_edge.evaluation.comparison import Price

    measured = side_by_side(files, reference, device=str(asked.device), threads=asked.threads) if timed else {}
    return {
        name: Price(
            passes=described[name].samples,
            file_mb=round(path.stat().st_size / 1e6, 3),
            macs=None if (costs := described[name].costs) is None else costs.macs(described[name].samples),
            measured=measured.get(name),
        )
        for name, path in files.items()
    }


def _command(files: dict[str, Path], asked: _Asked, latency: bool) -> list[str]:
    """What writes the page again, for whoever has the same files."""
    words = ["uce-edge", "compare", *files, "--data", called(asked.data)]
    for name in asked.ood:
        words += ["--ood", called(name)]
    given = {"group": asked.group, "images": asked.images, "seed": asked.seed or None, "threads": asked.threads}
    words += [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    return [*words, *([] if latency else ["--no-latency"]), "--report", "compare.html"]
