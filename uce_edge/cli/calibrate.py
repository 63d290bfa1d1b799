"""`uce-edge calibrate`."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from uce_edge.cli.calibration_messages import next_command, tell_calibration, tell_mix, tell_posterior, tell_rule
from uce_edge.cli.extras import need_onnx, need_torch, need_torch_export
from uce_edge.cli.messages import quote, say, show_log
from uce_edge.cli.shared_options import (
    TARGETS,
    ClassPriorOption,
    GroupOption,
    JsonOption,
    NoveltyFeaturesOption,
    NoveltyLevelOption,
    SetsByOption,
    SetsOption,
    SetsScoreOption,
    parse_novelty,
    parse_promise,
    parse_sets,
)
from uce_edge.contract import Method, PriorFrom
from uce_edge.errors import UsageError
from uce_edge.rejection.promises import RejectBy
from uce_edge_export.options import PostHoc
from uce_edge_train.choices import Rates

if TYPE_CHECKING:
    from uce_edge.calibration.label_sets import SetPromise
    from uce_edge.metadata import Calibration
    from uce_edge.rejection.guarantee import NoGuaranteeError
    from uce_edge.rejection.promises import NoveltyPromise, Promise
    from uce_edge_export.check.novelty_levels import Costs


class Done(NamedTuple):
    """A stored calibration map."""

    calibration: "Calibration"
    following: str
    """The command to try next."""
    refused: "NoGuaranteeError | None"
    """Why the requested error is not promised."""
    costs: "Costs | None" = None
    """The costs of other levels of the novelty gate; None for a file without one."""


def calibrate(
    target: Annotated[
        Path,
        typer.Argument(metavar="RUN|MODEL", help="The folder of a training run, or a model file.", show_default=False),
    ],
    method: Annotated[
        Method, typer.Option(help="The calibration map. temperature is the usual choice.")
    ] = Method.TEMPERATURE,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Monte Carlo passes that the map is fitted for. Default: 25 for a run, 100 with --posterior, or the "
            "number stored in the model file."
        ),
    ] = None,
    posterior: Annotated[
        PostHoc | None,
        typer.Option(
            help="Add a Laplace posterior over the weights of the last layer, to a run or a deterministic file. The "
            "network below that layer runs once per image."
        ),
    ] = None,
    prior: Annotated[
        PriorFrom | None,
        typer.Option(
            help="How the prior of --posterior is chosen. Default: marginal-likelihood for a run, held-out-nll for a "
            "model file."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the passes.", min=0, max=2**32 - 1)] = 0,
    rates: Annotated[
        Rates,
        typer.Option(
            help="For a run: also optimise the dropout rate, one for the network (model) or one per layer (layer)."
        ),
    ] = (Rates.FIXED),
    data: Annotated[
        str | None,
        typer.Option(
            help="Labelled images to calibrate on: a folder with one sub-folder per class, a manifest, or an .npz "
            "file. Default for a run: the images that it set aside."
        ),
    ] = None,
    group: GroupOption = None,
    target_error: Annotated[
        str | None,
        typer.Option(
            metavar=TARGETS,
            help="The largest share of wrong labels among accepted images (0 to 1). Stores the loosest threshold that "
            "keeps it, for --reject auto. Can differ by predicted label: glioma=0.02,other=0.1",
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            help="The confidence of the promises of --target-error and --novelty-level (0.5 to 1). Default: 0.95."
        ),
    ] = None,
    score: Annotated[
        RejectBy | None,
        typer.Option(
            help="What the threshold of --target-error is compared with. auto: the score that ranks errors better. "
            "Default: uncertainty."
        ),
    ] = None,
    novelty: Annotated[
        bool,
        typer.Option(help="Also fit a gate against out-of-distribution images, which --reject auto then applies."),
    ] = True,
    novelty_level: NoveltyLevelOption = None,
    novelty_features: NoveltyFeaturesOption = None,
    sets: SetsOption = None,
    sets_score: SetsScoreOption = None,
    sets_by: SetsByOption = None,
    class_prior: ClassPriorOption = None,
    monitor: Annotated[
        bool,
        typer.Option(
            "--monitor",
            help="For a model file: fit on half of --data, and store the usual answers to the other half for `uce-edge "
            "monitor`. --target-error always does this.",
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="For a model file: the file to write. Default: NAME-calibrated.onnx.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Calibrate a run or a model file on held-out images, so that its confidence matches its accuracy.

    A run is calibrated on the images that it set aside, or on --data. A model file is calibrated on --data, which needs
    no training run, and a new file is written. Images that the network was trained on are refused.

    --target-error also finds a threshold for --reject auto. It promises that at most this share of the accepted images
    is wrong. The threshold is chosen on images that nothing is fitted on: the guarantee images of a run, or half of
    --data for a model file. It is a threshold on the uncertainty, or on the confidence with --score confidence. If the
    images cannot prove the error, the map is still stored, a table shows which errors they can prove, and the command
    exits with 1. For a run, you can then try another --target-error without new passes.

    An error per class is about the predicted label. With glioma=0.02,other=0.1, at most 2 % of the accepted images that
    the model labels glioma are wrong, and at most 10 % of those with any other label. All these promises hold together.
    If the images of a label cannot prove its error, that label is always rejected.

    The calibration images also define what is out of distribution. One half shows what familiar images look like inside
    the network. The other half shows how far from these a familiar image may be. --reject auto rejects images farther
    away. A table shows what the levels 1, 2, 3 and 5 % cost in own images and reject of images made by rule.

    --sets gives every image a set of labels that contains the true label with probability 1 - sets, for images like
    those of the calibration. Its limits are fitted on the images that nothing else is fitted on.

    --class-prior is for a place where some classes are more or less frequent than in --data, and each class looks the
    same. It corrects the probabilities, and fits thresholds, sets and the monitor to a subset of the labelled images
    with these shares. Given unlabelled images of that place, it estimates the shares. See docs/monitor.md.

    Example: uce-edge calibrate runs/digits --method temperature

    Example: uce-edge calibrate runs/digits --target-error 0.02 --confidence 0.95

    Example: uce-edge calibrate runs/tumours --target-error glioma=0.02,other=0.1

    Example: uce-edge calibrate model.onnx --data labelled/ --out calibrated.onnx

    Example: uce-edge calibrate model.onnx --data labelled/ --sets 0.05

    Example: uce-edge calibrate model.onnx --data labelled/ --target-error 0.05 --class-prior cat=0.2,dog=0.8

    Example: uce-edge calibrate runs/digits --posterior laplace

    Example: uce-edge calibrate model.onnx --data labelled/ --novelty-features 'blocks.10.*'
    """
    show_log()
    promise = _promise(target_error, confidence if novelty_level is None or target_error is not None else None, score)
    gate = _novelty(novelty, novelty_level, confidence, novelty_features)
    wanted = parse_sets(sets, sets_score, sets_by)
    if prior is not None and posterior is None:
        raise UsageError("--prior needs a posterior: add --posterior laplace", "calibrate.needs-posterior")
    if target.suffix == ".ort":
        raise UsageError(
            f"{target} cannot be changed. Calibrate the .onnx file it was made from: see docs/export.md.",
            "calibrate.ort-file",
        )
    if target.suffix == ".onnx":
        if rates is not Rates.FIXED:
            raise UsageError(
                "--rates needs a training run: the dropout rates of a model file cannot be changed. Leave --rates out.",
                "calibrate.needs-run",
            )
        if prior is PriorFrom.MARGINAL_LIKELIHOOD:
            raise UsageError(
                "--prior marginal-likelihood needs a training run: the weights of a model file were not fitted to the "
                "images of --data. Leave --prior out.",
                "calibrate.needs-run",
            )
        done = _calibrate_file(
            target, method, samples, seed, data, group, out, promise, gate, wanted, posterior, monitor, class_prior
        )
    else:
        _refuse_file_options(out, monitor, class_prior)
        done = _calibrate_run(
            target, method, samples, seed, rates, data, group, promise, gate, wanted, posterior, prior
        )
    fitted = done.calibration
    if as_json:
        document: dict[str, object] = {
            "method": fitted.method,
            "parameters": fitted.parameters,
            "samples": fitted.samples,
        }
        document |= fitted.outcome.to_document()
        if fitted.class_shares:
            document["class_shares"] = fitted.class_shares
        if done.refused is not None:
            document["refused"] = str(done.refused)
            document["can_promise"] = [row.to_document() for row in done.refused.curve]
        if done.costs is not None:
            document["novelty_levels"] = [asdict(row) for row in done.costs.rows]
        typer.echo(json.dumps(document))
    tell_calibration(fitted, done.refused)
    say(f"Next: uce-edge {done.following}")
    if done.refused is not None:
        raise typer.Exit(1)


def _refuse_file_options(out: Path | None, monitor: bool, class_prior: str | None) -> None:
    """Refuse the options that a run does not take."""
    stored = {
        "--out": (out is not None, "the calibration of a run is stored in the run"),
        "--monitor": (monitor, "the export of a run always stores its usual answers"),
        "--class-prior": (class_prior is not None, "export the run, and calibrate the file for another mix"),
    }
    for option, (given, why) in stored.items():
        if given:
            raise UsageError(f"{option} needs a model file: {why}. Leave {option} out.", "calibrate.needs-file")


def _promise(target_error: str | None, confidence: float | None, score: RejectBy | None) -> "Promise | None":
    """The requested promise, checked."""
    if target_error is None:
        if confidence is not None:
            raise UsageError(
                "--confidence needs a promise: add --target-error 0.05 or --novelty-level 0.03",
                "calibrate.needs-promise",
            )
        if score is not None:
            raise UsageError("--score needs a promised error: add --target-error 0.05", "calibrate.needs-promise")
        return None
    return parse_promise(target_error, 0.95 if confidence is None else confidence, score)


def _novelty(
    novelty: bool, level: float | None, confidence: float | None, features: str | None
) -> "NoveltyPromise | None":
    """The promise of the novelty gate."""
    if not novelty:
        for option, value in (("--novelty-level", level), ("--novelty-features", features)):
            if value is not None:
                raise UsageError(
                    f"{option} and --no-novelty exclude each other: leave one of them out.",
                    "calibrate.novelty-contradiction",
                )
        return None
    return parse_novelty(level, confidence, features)


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
    sets: "SetPromise | None",
    posterior: PostHoc | None,
    prior: PriorFrom | None,
) -> Done:
    if posterior is None:
        need_torch("Calibrating a run")
    else:
        need_torch_export("Giving a run a posterior")
    from uce_edge.datasets import labelled
    from uce_edge.rejection.guarantee import NoGuaranteeError
    from uce_edge_train import calibration
    from uce_edge_train.runs import Run

    likeliest = PriorFrom.MARGINAL_LIKELIHOOD
    run = Run.load(folder)
    if data is not None and novelty is not None:
        # The export has only the images that the run set aside.
        asked = {
            "--novelty-level": None if novelty.level is None else f"{novelty.level:g}",
            "--novelty-features": None if novelty.features == "auto" else novelty.features,
        }
        for option, value in asked.items():
            if value is not None:
                raise UsageError(
                    f"{option} with --data needs a model file: the gate of a run is fitted on the images that it set "
                    "aside. Leave --data out, or export the run and calibrate the file: "
                    f"uce-edge calibrate MODEL.onnx --data {data} {option} {value}",
                    "calibrate.needs-file",
                )
        novelty = None
    if data is None and group is not None:
        raise UsageError(
            "--group needs --data: the images that a run set aside keep their groups from training. Leave --group out.",
            "calibrate.needs-data",
        )
    own = labelled.Own(run.split_hashes, run.group)
    images = None if data is None else labelled.load(data, run.image, run.class_names, own, group)
    refused = None
    show_log("uce_edge_train")
    try:
        run = calibration.calibrate(
            folder, images, method, samples, seed, rates, promise, novelty, posterior, prior or likeliest, sets
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
        what = "thresholds for these errors" if run.promise.by_class else "a threshold for this error"
        say(f"The guarantee images can prove {what}. `export` will find and store what fits the exported file.")
    if run.novelty is not None:
        say("`export` will also fit the novelty gate on the calibration images, and show what its levels cost.")
    if run.sets is not None:
        say("`export` will also fit the prediction sets on the guarantee images.")
    following = f"export {quote(folder)} --out {quote(folder.resolve().name)}.onnx"
    following += " --inference deterministic" if run.silent else ""
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
    sets: "SetPromise | None",
    posterior: PostHoc | None,
    monitor: bool,
    class_prior: str | None,
) -> Done:
    if data is None:
        raise UsageError(
            "A model file is calibrated on labelled images: add --data FOLDER or --data FILE.npz",
            "calibrate.needs-data",
        )
    need_onnx("Calibrating a model file")
    from uce_edge.calibration.class_prior import ClassPrior
    from uce_edge.calibration.laplace_posterior import DRAWS
    from uce_edge.datasets import labelled
    from uce_edge.runtime.model import Model
    from uce_edge_export.graph import laplace_draws
    from uce_edge_export.recalibration import recalibrate

    source = Model(model, "cpu", spin=False)
    metadata = source.metadata
    out = out or model.with_name(f"{model.stem}-calibrated.onnx")
    own = labelled.Own(metadata.hashes.splits, metadata.group)
    images = labelled.load(data, metadata.image, metadata.classes, own, group)
    mix = None
    if class_prior is not None:
        named = "=" in class_prior and not os.path.exists(class_prior)  # noqa: PTH110 (a long text is no error)
        images_of = None if named else labelled.load_ood(class_prior, metadata.image, argument="class_prior").images
        mix = ClassPrior.parse(class_prior) if named else ClassPrior(images=images_of)
    show_log("uce_edge_export")
    if posterior is not None:
        drawn, images, fit = laplace_draws.give(source, images, promise, samples or DRAWS, sets=sets)
        tell_posterior(fit)
        source, samples = drawn.model, None
    done = recalibrate(
        source, out, images, method, samples, seed, promise, novelty, monitor=monitor, sets=sets, class_prior=mix
    )
    tell_mix(done)
    tell_rule(done)
    say(f"Wrote {out} and {out.with_suffix('.json')}{'.' if done.refused is None else ', without a threshold.'}")
    return Done(done.metadata.calibration, next_command(out, done.metadata), done.refused, done.costs)
