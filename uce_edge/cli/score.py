"""`uce-edge score`."""

import sys
from contextlib import closing, redirect_stdout
from typing import Annotated

import typer

from uce_edge.cli.extras import need_ray
from uce_edge.cli.messages import fail, say
from uce_edge.cli.shared_options import (
    InferenceOption,
    JsonOption,
    ModelOption,
    RejectOption,
    SamplesOption,
    SeedOption,
    check_request,
    parse_threshold,
)
from uce_edge.runtime.device_choice import Device

_MACHINES = "Machines"


def score(
    images: Annotated[
        str,
        typer.Argument(
            help="A folder, a quoted pattern, a bucket address, a Parquet file with image bytes, or a list (.csv, "
            ".txt)."
        ),
    ],
    out: Annotated[str, typer.Option(help="The folder or bucket address for the Parquet files.")],
    model: ModelOption = None,
    inference: InferenceOption = None,
    reject: RejectOption = None,
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    block: Annotated[int, typer.Option(help="Images per Parquet file, which is also one unit of work.")] = 256,
    as_json: JsonOption = False,
    address: Annotated[
        str | None,
        typer.Option(
            help="The Ray cluster to run on: its address, or auto. Default: this machine.", rich_help_panel=_MACHINES
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Number of workers, each with its own model. Default: as many as fit.", rich_help_panel=_MACHINES
        ),
    ] = None,
    cpus_per_worker: Annotated[
        int, typer.Option(help="CPU cores per worker, and threads of its ONNX Runtime.", rich_help_panel=_MACHINES)
    ] = 1,
    cuda: Annotated[bool, typer.Option("--cuda", help="Give every worker a GPU.", rich_help_panel=_MACHINES)] = False,
) -> None:
    """Classify a large number of images, on one machine or many, and write the answers to Parquet files.

    Every image gets one row: its answer, or its error. To continue an interrupted job, run the same command again: no
    row is lost or stored twice. The rows do not depend on the number of machines.

    Example: uce-edge score photos/ --model photos.onnx --reject auto --out answers/

    Example: uce-edge score "s3://archive/2026/**/*.png" --reject auto --out s3://archive/answers --address auto
    """
    threshold = parse_threshold(reject)
    model = check_request(model, samples, seed, inference)
    need_ray()
    from uce_edge._util.progress import progress
    from uce_edge.runtime.answers import Request
    from uce_edge.scale.parquet_parts import Counts
    from uce_edge.scale.ray_job import Machines, opened

    machines = Machines(address, workers, cpus_per_worker, Device.CUDA if cuda else Device.CPU)
    # Ray reports dead nodes on stdout, which is for results.
    with redirect_stdout(sys.stderr), opened(images, model, out, Request(samples, seed, threshold), block) as job:
        counts = sum(job.there.values(), Counts())
        with progress("scoring", len(job.blocks)) as advance:
            advance(len(job.there))
            with closing(job.run(machines)) as done:  # also after a signal
                for stored in done:
                    counts += stored
                    advance(1)
    if as_json:
        import json

        typer.echo(json.dumps(counts.as_dict() | {"images": counts.images, "files": len(job.blocks)}))
    resumed = f" {len(job.there)} of {len(job.blocks)} files existed already." if job.there else ""
    decided = f"{counts.accepted} accepted, {counts.rejected} rejected" if threshold is not None else "no threshold"
    say(f"{counts.images} images in {out}: {decided}.{resumed}")
    for kind, number in sorted(counts.errors.items()):
        fail(f"Images without an answer: {number} ({kind}).")
    if counts.errors:
        raise typer.Exit(1)
