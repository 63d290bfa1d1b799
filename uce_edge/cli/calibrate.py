"""`uce-edge calibrate`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge.calibration.promises import RejectBy
from uce_edge.cli.calibrating import Done, Draws, calibrate_file, calibrate_posterior, tell, tell_posterior
from uce_edge.cli.options import TARGETS, GroupOption, JsonOption, parse_promise
from uce_edge.cli.parts import need_onnx, need_torch, need_torch_export
from uce_edge.cli.words import quote, say, show_log
from uce_edge.contract import Method, PriorFrom
from uce_edge.errors import UsageError, expected
from uce_edge.fields import RecordError
from uce_edge_export.options import PostHoc
from uce_edge_train.choices import Rates

if TYPE_CHECKING:
    from uce_edge.calibration.promises import NoveltyPromise, Promise

_ONE = "a threshold for that error; `export` finds the one"


def calibrate(
    target: Annotated[
        Path, typer.Argument(metavar="RUN|MODEL", help="A training run, or a model file.", show_default=False)
    ],
    method: Annotated[Method, typer.Option(help="The calibration map.")] = Method.TEMPERATURE,
    samples: Annotated[
        int | None,
        typer.Option(help="Passes the map is fitted for; default: 25, 100 with --posterior, or the file's own."),
    ] = None,
    posterior: Annotated[
        PostHoc | None,
        typer.Option(
            help="Draw the weights of the last layer, of a run or a deterministic file: the network runs once."
        ),
    ] = None,
    prior: Annotated[
        PriorFrom | None,
        typer.Option(help="What chooses the prior of --posterior; default: the training images of a run."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the passes.", min=0, max=2**32 - 1)] = 0,
    rates: Annotated[Rates, typer.Option(help="Also re-optimise p of a run: for the model, or per layer.")] = (
        Rates.FIXED
    ),
    data: Annotated[
        str | None,
        typer.Option(
            help="Other labelled images: a folder with one sub-folder per class, a manifest, or an .npz file."
        ),
    ] = None,
    group: GroupOption = None,
    target_error: Annotated[
        str | None,
        typer.Option(
            metavar=TARGETS,
            help="Find the loosest threshold that keeps the error below this, for --reject auto; or one for every "
            "label: glioma=0.02,other=0.1",
        ),
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="How sure promises shall be, of --target-error and --foreign; default: 0.95.")
    ] = None,
    score: Annotated[
        RejectBy | None,
        typer.Option(help="What the threshold of --target-error is about; auto: what ranks errors better."),
    ] = None,
    novelty: Annotated[
        bool, typer.Option(help="Also learn which images are foreign, so that --reject auto rejects them.")
    ] = True,
    foreign: Annotated[
        float | None,
        typer.Option(help="The share of familiar images that may be rejected as foreign; default: 0.01 if possible."),
    ] = None,
    monitor: Annotated[
        bool,
        typer.Option(
            "--monitor",
            help="For a model file: keep half of --data from the fit, and store which answers are usual. "
            "--target-error does so anyway.",
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="For a model file: the new file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a calibration map on held-out images.

    A run is calibrated on the images it set aside, or on --data. A model file is calibrated on --data, without its
    training run, and a new file is written. Images that the network was trained on are refused.

    With --target-error, images that nothing is fitted on (a run's guarantee images, half of --data for a model file)
    decide at which uncertainty to reject: the promise is that no larger share of the accepted images is wrong. With
    --score confidence they decide at which confidence. When they cannot promise it, the map is kept, a table says what
    they can promise, and the command exits with 1. Of a run, another --target-error then needs no new passes.

    Errors of classes are about what the model labels as such: with glioma=0.02,other=0.1 at most 2 % of the accepted
    images that are labelled glioma are wrong, and at most 10 % of those with any other label, all at once. Nothing is
    accepted with a label whose images cannot prove its error.

    Half of the calibration images also show what familiar images look like inside the network, and the other half how
    far from that a familiar image may be: what is farther is foreign, and --reject auto rejects it.

    Example: uce-edge calibrate runs/digits --method temperature

    Example: uce-edge calibrate runs/digits --target-error 0.02 --confidence 0.95

    Example: uce-edge calibrate runs/tumours --target-error glioma=0.02,other=0.1

    Example: uce-edge calibrate model.onnx --data labelled/ --out calibrated.onnx

    Example: uce-edge calibrate runs/digits --posterior laplace
    """
    show_log()
    promise = _promise(target_error, confidence if foreign is None or target_error is not None else None, score)
    wanted = _novelty(novelty, foreign, confidence)
    if prior is not None and posterior is None:
        raise UsageError("--prior is that of a posterior: add --posterior laplace")
    if target.suffix == ".ort":
        raise UsageError(f"{target} cannot be changed. Calibrate the .onnx file it was made from: see docs/export.md.")
    if target.suffix == ".onnx":
        if rates is not Rates.FIXED:
            raise UsageError("--rates goes with a training run: the rates of a model file are part of its graph.")
        if prior is PriorFrom.MARGINAL_LIKELIHOOD:
            raise UsageError(
                "--prior marginal-likelihood goes with a training run: the weights of a file were not fitted to your "
                "images. Leave it out."
            )
        done = _calibrate_file(target, method, samples, seed, data, group, out, promise, wanted, posterior, monitor)
    elif out is not None:
        raise UsageError("--out goes with a model file; the calibration of a run is stored in the run.")
    elif monitor:
        raise UsageError("--monitor goes with a model file; the export of a run stores which answers are usual anyway.")
    else:
        done = _calibrate_run(target, method, samples, seed, rates, data, group, promise, wanted, posterior, prior)
    fitted = done.calibration
    if as_json:
        told: dict[str, object] = {"method": fitted.method, "parameters": fitted.parameters, "samples": fitted.samples}
        told |= fitted.outcome.to_document()
        if done.refused is not None:
            told["refused"] = str(done.refused)
            told["can_promise"] = [row.to_document() for row in done.refused.curve]
        typer.echo(json.dumps(told))
    tell(done)
    say(f"Next: uce-edge {done.following}")
    if done.refused is not None:
        raise typer.Exit(1)


def _promise(target_error: str | None, confidence: float | None, score: RejectBy | None) -> "Promise | None":
    """What shall be promised, checked before anything slow happens."""
    if target_error is None:
        if confidence is not None:
            raise UsageError("--confidence is that of a promised error: add --target-error 0.05")
        if score is not None:
            raise UsageError("--score is that of a promised error: add --target-error 0.05")
        return None
    return parse_promise(target_error, 0.95 if confidence is None else confidence, score)


def _novelty(novelty: bool, foreign: float | None, confidence: float | None) -> "NoveltyPromise | None":
    """What the gate against foreign images shall keep, checked before anything slow happens."""
    if not novelty:
        if foreign is not None:
            raise UsageError("--foreign is what --novelty keeps: leave --no-novelty out.")
        return None
    from uce_edge.calibration.promises import NoveltyPromise

    try:
        return NoveltyPromise(foreign) if confidence is None else NoveltyPromise(foreign, confidence)
    except RecordError as error:
        if error.key != "level":
            raise
        raise UsageError(
            expected("`foreign`", "strictly between 0 and 1", error.value, "For example: --foreign 0.01")
        ) from None


def _calibrate_run(
    folder: Path,
    method: Method,
    samples: int | None,
    seed: int,
    rates: Rates,
    data: str | None,
    group: str | None,
    promise: "Promise | None",
    novelty: "NoveltyPromise | None",
    posterior: PostHoc | None,
    prior: PriorFrom | None,
) -> Done:
    if posterior is None:
        need_torch("Calibrating a run")
    else:
        need_torch_export("Giving a run a posterior")
    from uce_edge.calibration.guarantee import NoGuaranteeError
    from uce_edge.datasets import labelled
    from uce_edge_train import calibrating as calibration
    from uce_edge_train.runs import Run

    likeliest = PriorFrom.MARGINAL_LIKELIHOOD
    run = Run.load(folder)
    if data is not None and novelty is not None:
        # The export has only the images that the run set aside.
        if novelty.level is not None:
            raise UsageError(
                "--foreign goes with the images that the run set aside, or with a model file: export the run, then "
                f"uce-edge calibrate MODEL.onnx --data {data} --foreign {novelty.level:g}"
            )
        novelty = None
    if data is None and group is not None:
        raise UsageError("--group goes with --data: the images that a run set aside are grouped as it was trained.")
    own = labelled.Own(run.split_hashes, run.group)
    images = None if data is None else labelled.load(data, run.image, run.class_names, own, group)
    refused = None
    show_log("uce_edge_train")
    try:
        run = calibration.calibrate(
            folder, images, method, samples, seed, rates, promise, novelty, posterior, prior or likeliest
        )
    except NoGuaranteeError as error:
        run, refused = Run.load(folder), error  # the map is kept
    if run.laplace is not None:
        tell_posterior(run.laplace)
    if rates is not Rates.FIXED:
        tuned = run.tuned_rates or {}
        before = sum(run.rates.values()) / len(run.rates)
        mean = f"{sum(tuned.values()) / len(tuned):.4f} (from {before:.4f})" if tuned else "kept: none was better"
        say(f"Dropout rate p, mean over the layers: {mean}.")
    if run.promise is not None:
        what = "thresholds for those errors; `export` finds those" if run.promise.per_class else _ONE
        say(f"The guarantee images allow {what} of the file as it ships.")
    if run.novelty is not None:
        say("`export` also learns from the calibration images what is foreign.")
    following = f"export {quote(folder)} --out {quote(folder.resolve().name)}.onnx"
    return Done(run.calibration, following, refused)


def _calibrate_file(
    model: Path,
    method: Method,
    samples: int | None,
    seed: int,
    data: str | None,
    group: str | None,
    out: Path | None,
    promise: "Promise | None",
    novelty: "NoveltyPromise | None",
    posterior: PostHoc | None,
    monitor: bool,
) -> Done:
    if data is None:
        raise UsageError("A model file is calibrated on labelled images: add --data FOLDER or --data FILE.npz")
    need_onnx("Calibrating a model file")
    from uce_edge.datasets import labelled
    from uce_edge.model import Model

    metadata = Model(model, "cpu").metadata
    out = out or model.with_name(f"{model.stem}-calibrated.onnx")
    own = labelled.Own(metadata.hashes.splits, metadata.group)
    images = labelled.load(data, metadata.image, metadata.classes, own, group)
    if posterior is not None:
        return calibrate_posterior(model, out, images, method, Draws(samples), seed, promise, novelty, monitor)
    return calibrate_file(model, out, images, method, samples, seed, promise, novelty, monitor)
