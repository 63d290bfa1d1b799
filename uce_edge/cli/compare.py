"""`uce-edge compare`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli.messages import say, show_log, table, warn
from uce_edge.cli.shared_options import (
    DataOption,
    DeviceOption,
    JsonOption,
    MemoryOption,
    OodOption,
    RootOption,
    SeedOption,
    TestGroupOption,
    ThreadsOption,
)
from uce_edge.runtime.device_choice import Device


def compare(
    models: Annotated[list[Path], typer.Argument(help="Two or more model files made by `uce-edge export`.")],
    data: DataOption,
    group: TestGroupOption = None,
    ood: OodOption = None,
    report: Annotated[Path | None, typer.Option(help="Write all results to this .html file, with charts.")] = None,
    images: Annotated[
        int | None,
        typer.Option(help="The largest number of test images to use, and of images of each dataset of --ood.", min=1),
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
    is the cheapest file that no other beats in accuracy, NLL or AURC. A file cannot win if its calibration error is
    larger than that of the reference beyond chance and its labels are no better.

    Example: uce-edge compare det.onnx mc.onnx moments.onnx --data photos/ --report compare.html

    Example: uce-edge compare det.onnx laplace.onnx ensemble.onnx --data cifar10 --ood cifar100 --ood far --threads 2
    """
    show_log()
    from uce_edge._util.atomic_files import replacing
    from uce_edge.evaluation.file_comparison import compare_files, named_files
    from uce_edge.output.destinations import check_report
    from uce_edge.output.report import comparison_tables, verdict

    files = named_files(models)
    if report is not None:
        check_report(report, models)
    comparison = compare_files(
        models, data, ood=ood or (), group=group, root=root, images=images, seed=seed, device=device, threads=threads,
        max_memory=max_memory, latency=latency, report=say,
    )  # fmt: skip
    answer = verdict.sentence(comparison)
    if report is not None:
        given = {"group": group, "images": images, "seed": seed or None, "threads": threads}
        command = _command(list(files), data, ood or (), given, latency)
        with replacing(report, "--report") as temporary:
            temporary.write_text(comparison_tables.render(comparison, command), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(comparison.as_dict() | {"verdict": answer}, indent=2, allow_nan=False))
    else:
        for shown in comparison_tables.tables(comparison):
            table(*shown)
    for note in comparison.notes:
        warn(note)
    if latency:
        say(comparison_tables.how_timed(comparison))
    say(answer)
    if report is not None:
        say(f"Wrote {report}")


def _command(
    files: Sequence[str], data: str, ood: Sequence[str], given: Mapping[str, object], latency: bool
) -> list[str]:
    """The command that writes the page again from the same files."""
    from uce_edge.evaluation.evaluation_data import base_name

    words = ["uce-edge", "compare", *files, "--data", base_name(data)]
    for name in ood:
        words += ["--ood", base_name(name)]
    words += [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    return [*words, *([] if latency else ["--no-latency"]), "--report", "compare.html"]
