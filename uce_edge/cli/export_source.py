"""What `uce-edge export` does with each kind of source, and what it says about it."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from uce_edge.cli.calibrate_file import Draws, calibrate_file, calibrate_posterior, tell, tell_curve, tell_levels
from uce_edge.cli.messages import describe_auto, quote, say, warn
from uce_edge.cli.preprocessing_fit import fit_preprocessing, tell_price
from uce_edge.cli.shared_options import (
    parse_names,
    parse_novelty,
    parse_numbers,
    parse_promise,
    parse_range,
    parse_size,
)
from uce_edge.contract import Inference, NoiseKind
from uce_edge.errors import UsageError, expected
from uce_edge_export.options import ChannelOrder, Layout, OutputIs, Wanted
from uce_edge_train.choices import Rates

if TYPE_CHECKING:
    from uce_edge.datasets.splits import Split
    from uce_edge.images.gray_range import Range
    from uce_edge.metadata import Metadata
    from uce_edge.rejection.promises import NoveltyPromise, Promise
    from uce_edge_export.pipeline import Exported
    from uce_edge_export.source.third_party import ThirdParty
    from uce_edge_train.runs import Run


@dataclass(frozen=True)
class Reading:
    """How a third-party classifier is to be read, as the options spell it."""

    classes: str | None = None
    scale: float | None = None
    mean: str | None = None
    std: str | None = None
    channels: ChannelOrder | None = None
    layout: Layout = Layout.AUTO
    size: str | None = None
    output_is: OutputIs = OutputIs.AUTO
    data: str | None = None
    target_error: str | None = None
    group: str | None = None
    range: str | None = None
    novelty_level: float | None = None

    @property
    def feeds(self) -> bool:
        """Whether it says how pixels are fed."""
        return any(given is not None for given in (self.scale, self.mean, self.std, self.channels))


def refuse_posterior(wanted: Wanted, sources: list[Path], p: list[str] | None) -> None:
    """Refuse what does not go with a posterior, before anything slow happens."""
    if wanted.posterior is None:
        return
    if not sources:
        raise UsageError(
            "--posterior goes with --from. A run gets its posterior when it is calibrated: uce-edge calibrate RUN "
            "--posterior laplace, then uce-edge export RUN"
        )
    if len(sources) > 1:
        raise UsageError(
            "--posterior needs one network, but got several files. Give one file, or leave --posterior out."
        )
    wanted.options.refuse_noise(wanted.inference, p)


def export_run(run: Path, out: Path | None, wanted: Wanted) -> tuple[Path, str]:
    """Export a training run; returns the file and the next command."""
    from uce_edge_train import export
    from uce_edge_train.runs import Run

    out = out or Path(f"{run.resolve().name}{wanted.suffix}.onnx")
    described = Run.load(run)
    done = export.export_run(
        run, out, described.dataset(), wanted.inference, wanted.noise, wanted.samples, wanted.options, wanted.precision
    )
    say_written(done)
    if wanted.noise is not NoiseKind.INPUT:
        original = "" if done.torch_nll is None else f" (PyTorch: {done.torch_nll:.4f})"
        say(f"NLL on the calibration images: {done.file_nll:.4f}{original}.")
    if done.refused is not None:
        warn(f"the file has no stored threshold. {done.refused}")
        tell_curve(done.refused, lambda target: _promising(run, described, target))
    tell_levels(done.costs)
    auto = describe_auto(done.metadata)
    if auto is not None:
        say(*auto.split("\n"))
    if described.calibration.samples is None:
        warn(
            f"THE FILE IS NOT CALIBRATED, because the run {run} is not: its confidence is that of the raw network. "
            f"Run: uce-edge calibrate {quote(run)}   and export it again"
        )
        return out, f"calibrate {quote(run)}"
    threshold = "0.3" if auto is None else "auto"
    return out, f"predict --model {quote(out)} image.png --reject {threshold}"


def _promising(folder: Path, run: "Run", target_error: float) -> str:
    """The command that asks the same calibration of a run for another error."""
    parts = f"uce-edge calibrate {quote(folder)} --method {run.calibration.method} --samples {run.calibration.samples}"
    if run.laplace is not None:
        parts += f" --posterior laplace --prior {run.laplace.prior_from}"
    if run.tuned_rates is not None:
        parts += f" --rates {Rates.MODEL if len(set(run.tuned_rates.values())) == 1 else Rates.LAYER}"
    if run.promise is not None:
        parts += f" --confidence {run.promise.confidence:g} --score {run.promise.score}"
    return f"{parts} --target-error {target_error:g}   and export it again"


def export_third_party(
    source: Path,
    out: Path | None,
    wanted: Wanted,
    p: list[str] | None,
    reading: Reading,
) -> tuple[Path, str]:
    """Export any ONNX classifier; returns the file and the next command.

    With labelled images the file is calibrated, gets a novelty gate, and promises an error if asked to. Where
    nothing says how pixels are fed, the images do. Without `p`, the weight layers of a network that shall have noise
    get Gaussian dropout of 0.2, or none where it has masks.
    """
    from uce_edge_export import pipeline
    from uce_edge_export.publish.draft import check_name

    promise, novelty = promise_of(reading), novelty_of(reading)
    if wanted.posterior is not None and reading.data is None:
        raise UsageError("--posterior is fitted on labelled images: add --data FOLDER")
    out = check_name(out or Path(f"{source.stem}-uce{wanted.suffix}.onnx"))
    classifier, metadata = read(source, wanted, reading)
    bake = wanted.options.bake and wanted.posterior is not None  # with the draws, when they are there
    options = replace(wanted.options, bake=False) if bake else wanted.options
    pipeline.refuse(metadata, options, labelled=reading.data is not None)
    images, metadata = labelled_images(reading, metadata)
    if promise is not None:
        promise.targets(metadata.classes)
    check_possible(images, promise, wanted)
    rates = rates_of(p, wanted)
    if images is None:
        done = pipeline.export_third_party(classifier, metadata, out, rates, wanted.options)
        say_written(done)
        if rates and wanted.inference is not Inference.DETERMINISTIC:
            say("Note: the network was not trained with noise. Noise costs passes and may make the network worse.")
            say("      Add labelled images (--data FOLDER) to calibrate the file, and to see what the noise does.")
        return out, f"calibrate {quote(out)} --data FOLDER --method temperature"
    fitted_on = _fitted_on(images, promise, wanted)
    classifier, metadata = fit_preprocessing(classifier, metadata, fitted_on, given=reading.feeds)
    tell_default(wanted)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / out.name
        done = pipeline.export_third_party(classifier, metadata, plain, rates, options, fitted_on)
        say_written(done)
        if wanted.posterior is None:
            fitted = calibrate_file(plain, out, images, promise=promise, novelty=novelty)
        else:
            draws = Draws(wanted.samples, wanted.noise, bake)
            fitted = calibrate_posterior(plain, out, images, draws=draws, promise=promise, novelty=novelty)
    tell(fitted)
    if done.metadata.inference is not Inference.DETERMINISTIC:
        tell_price(classifier, done.metadata, fitted_on, fitted.calibration)
    return out, fitted.following


def check_possible(images: "Split | None", promise: "Promise | None", wanted: Wanted) -> None:
    """Refuse a promise that so few images cannot prove, before anything is computed."""
    from uce_edge.rejection import guarantee
    from uce_edge_export.graph import laplace_draws

    if images is not None and promise is not None:
        rest = images if wanted.posterior is None else laplace_draws.parts(images, promise)[2]
        counted = len(rest.one_per_group()) // 2
        guarantee.check_possible(counted, promise, len(images), grouped=images.groups is not None)


def _fitted_on(images: "Split", promise: "Promise | None", wanted: Wanted) -> "Split":
    """The images that something may be chosen on: none of those that a promise is made from."""
    from uce_edge_export.graph import laplace_draws

    if wanted.posterior is not None:
        return laplace_draws.parts(images, promise)[0]
    return images if promise is None else images.halves()[0]


def kind_for_data(inference: Inference | None, noisy: bool, data: str | None) -> tuple[Inference, bool]:
    """The kind of graph, and whether somebody chose it: without noise for somebody else's network with labelled images.

    Args:
        inference: What the user asked for.
        noisy: Whether the user asked for noise in another way.
        data: Labelled images.
    """
    if inference is None and data is not None and not noisy:
        return Inference.DETERMINISTIC, False
    return inference or Inference.MC, True


def tell_default(wanted: Wanted) -> None:
    """Say what a file without noise is, where nobody asked for one."""
    if not wanted.chosen:
        say("The file has no noise: for a network that was not trained with noise, it costs passes and helps little.")
        say("For a posterior over the last layer, add --posterior laplace. For noise, add --p 0.05 or --dropout keep.")


def promise_of(reading: Reading) -> "Promise | None":
    """What shall be promised, which needs images."""
    if reading.target_error is None:
        return None
    if reading.data is None:
        raise UsageError("--target-error is proved on labelled images: add --data FOLDER")
    return parse_promise(reading.target_error)


def novelty_of(reading: Reading) -> "NoveltyPromise":
    """What the novelty gate shall keep, which needs images."""
    if reading.novelty_level is not None and reading.data is None:
        raise UsageError("--novelty-level is proved on labelled images: add --data FOLDER")
    return parse_novelty(reading.novelty_level)


def rates_of(p: list[str] | None, wanted: Wanted) -> list[str]:
    """The Gaussian rates of a third-party file."""
    return p or ([] if wanted.options.dropout else ["0.2"])


def read(source: Path, wanted: Wanted, reading: Reading) -> "tuple[ThirdParty, Metadata]":
    """A third-party classifier, and what its file will say of itself."""
    from uce_edge_export import pipeline
    from uce_edge_export.source import third_party

    mean, std = parse_numbers("mean", reading.mean or "0"), parse_numbers("std", reading.std or "1")
    classifier = third_party.load(
        source,
        layout=reading.layout,
        output_is=reading.output_is,
        size=parse_size(reading.size),
        options=wanted.options,
    )
    # A posterior is put on the file without noise.
    inference = wanted.inference if wanted.posterior is None else Inference.DETERMINISTIC
    metadata = third_party.metadata(
        classifier,
        source,
        classes=parse_names("classes", reading.classes),
        scale=255.0 if reading.scale is None else reading.scale,
        mean=mean,
        std=std,
        samples=pipeline.default_samples(inference) if wanted.samples is None else wanted.samples,
        inference=inference,
        noise=wanted.noise,
    )
    if reading.channels is ChannelOrder.BGR:
        classifier = third_party.take_bgr(classifier)
    image = replace(metadata.image, range=_range(reading))
    return classifier, replace(metadata, precision=wanted.precision, image=image)


def _range(reading: Reading) -> "Range | None":
    """Which gray values of more than 8 bits become black and white: by --range, and by the images of --data."""
    from uce_edge.datasets import range_choice
    from uce_edge.datasets.formats import manifest
    from uce_edge.images.loader import is_image

    source = Path(reading.data or "")
    files: Sequence[str | Path] = []
    if reading.data and manifest.FORMAT.takes(source):
        files = manifest.files(source)
    elif reading.data:
        files = [path for path in sorted(source.rglob("*")) if is_image(path)]
    chosen = range_choice.decided(files, parse_range(reading.range))
    if chosen.words is not None:
        say(chosen.words)
    return chosen.range


def labelled_images(reading: Reading, metadata: "Metadata") -> "tuple[Split | None, Metadata]":
    """The images of --data, if any, and the metadata with the names of their classes where nobody gave others."""
    from uce_edge.datasets import labelled

    data = reading.data
    if data is None:
        if reading.group is not None:
            raise UsageError("--group needs labelled images: add --data FOLDER")
        return None, metadata
    if reading.classes is None:
        images, own = labelled.load_with_names(data, metadata.image, reading.group)
        if len(own) != len(metadata.classes):
            rule = f"{len(metadata.classes)}, as many as the model has outputs"
            raise UsageError(expected(f"the classes of {data}", rule, len(own), "Name those of the model: --classes"))
        metadata = replace(metadata, classes=own)
        say(f"Assumed order of the model's outputs: {', '.join(own[:5])}{', ...' * (len(own) > 5)}.")
        say("If the order is another one, give it: --classes FIRST,SECOND,...")
        return images, metadata
    return labelled.load(data, metadata.image, metadata.classes, group=reading.group), metadata


def export_untrained(name: str, out: Path | None, wanted: Wanted, p: list[str] | None) -> tuple[Path, str]:
    """Export a network with random weights; returns the file and the next command."""
    from uce_edge_train.networks import untrained

    if p and (len(p) > 1 or "=" in p[0]):
        raise UsageError(expected("`p`", "one rate for an untrained network", p, "Use: --p 0.2"))
    out = out or Path(f"{name}{wanted.suffix}.onnx")
    say_written(untrained.export_untrained(name, out, wanted, parse_numbers("p", p[0])[0] if p else None))
    return out, f"bench --model {quote(out)}"


def say_written(done: "Exported") -> None:
    """What was changed on the way, how close the file is to what it was made from, and what a cheaper form costs."""
    for note in done.notes:
        say(f"Note: {note}.")
    if done.metadata.inference is Inference.MOMENTS:
        say(f"Check on two images: mean probabilities within {done.parity.largest_difference:.3f} of 32 exact passes.")
    else:
        z = done.parity.largest_z
        statistic = "" if z is None else f"; mean probabilities within {z:.1f} standard errors of random noise"
        say(f"Parity: logits within {done.parity.largest_difference:.1e} of the original{statistic}.")
    for form, judgement in done.judgements.items():
        say(f"{form}: {judgement}.")
