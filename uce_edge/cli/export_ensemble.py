"""What `uce-edge export` does with several runs or several ONNX files: one ensemble."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from uce_edge.cli import export_source
from uce_edge.cli.calibrate_file import Done, calibrate_file, tell, tell_rule
from uce_edge.cli.export_source import Reading, say_written
from uce_edge.cli.messages import quote, say
from uce_edge.cli.preprocessing_fit import fit_preprocessing
from uce_edge.cli.shared_options import parse_promise
from uce_edge.contract import Inference
from uce_edge.errors import UsageError, expected
from uce_edge_export.options import Options, Wanted

if TYPE_CHECKING:
    from uce_edge.datasets.splits import Split
    from uce_edge.metadata import Metadata
    from uce_edge_export.pipeline import Exported
    from uce_edge_export.source.third_party import ThirdParty

_NAME = "ensemble.onnx"


def export_runs(given: list[Path], out: Path | None, wanted: Wanted, target_error: str | None) -> tuple[Path, str]:
    """Export a run, or several as one ensemble; returns the file and the next command.

    Args:
        given: Folders, each of a run or of the members of an ensemble; none for the newest under runs/.
        out: The file.
        wanted: Its kind.
        target_error: What an ensemble shall promise, if it is not what its runs were calibrated with.
    """
    from uce_edge_train.runs import members_of, newest

    if not given:
        given = [newest()]
        say(f"Exporting the newest run: {given[0]}")
    folders = [member for folder in given for member in members_of(folder)]
    if len(folders) == 1:
        if target_error is not None:
            raise UsageError(
                "--target-error needs --from or several runs. A single run gets its promised error when it is "
                f"calibrated: uce-edge calibrate {quote(folders[0])} --target-error {target_error}"
            )
        return export_source.export_run(folders[0], out, wanted)
    from uce_edge_train.ensemble_export import export_ensemble

    out = out or Path(f"{given[0].resolve().name}{wanted.suffix}.onnx" if len(given) == 1 else _NAME)
    done = export_ensemble(folders, out, wanted, None if target_error is None else parse_promise(target_error))
    for folder, member in zip(folders, done.members, strict=True):
        say(f"{folder}:")
        say_written(member)
    _say_combined(done.combined)
    fitted = done.calibrated
    auto = tell_rule(fitted)
    following = f"predict --model {quote(out)} image.png --reject {'0.3' if auto is None else 'auto'}"
    tell(Done(fitted.metadata.calibration, following, fitted.refused))
    return out, following


def export_files(
    sources: list[Path], out: Path | None, wanted: Wanted, p: list[str] | None, reading: Reading
) -> tuple[Path, str]:
    """Export an ONNX file, or several as one ensemble; returns the file and the next command.

    Every file of several is a third-party classifier, which is read as the options say, or a model file, which stays as
    it is but for its calibration.
    """
    if len(sources) == 1:
        return export_source.export_third_party(sources[0], out, wanted, p, reading)
    from uce_edge.datasets import labelled
    from uce_edge_export import pipeline
    from uce_edge_export.graph import ensemble
    from uce_edge_export.publish.draft import check_name

    promise, novelty = export_source.promise_of(reading), export_source.novelty_of(reading)
    out = check_name(out or Path(_NAME))
    described = {source: _own_metadata(source) for source in sources}
    ready = [metadata for metadata in described.values() if metadata is not None]
    if ready and reading.classes is not None:
        raise UsageError(
            "A model file already names its classes, and all members must have the same ones: leave --classes out."
        )
    if len(ready) == len(sources) and (p or replace(wanted.options, bake=False) != Options()):
        raise UsageError("The files already have their noise: leave out --p and the other options of noise.")
    if ready and not wanted.chosen:
        wanted = replace(wanted, inference=ready[0].inference, chosen=True)  # the members of one file are of one kind
    unbaked = replace(wanted, options=replace(wanted.options, bake=False))
    prepared = {
        source: export_source.read(source, unbaked, reading) for source, own in described.items() if own is None
    }
    if ready:
        first, images = ready[0], None
        if reading.data is not None:
            own = labelled.Own(first.hashes.splits, first.group)
            images = labelled.load(reading.data, first.image, first.classes, own, reading.group)
    else:
        images, first = export_source.labelled_images(reading, prepared[sources[0]][1])
    if promise is not None:
        promise.targets(first.classes)
    export_source.check_possible(images, promise, wanted)
    fitted_on = images.halves()[0] if images is not None and promise is not None else images
    if prepared:
        export_source.tell_default(wanted)
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, source in enumerate(sources):
            if source not in prepared:
                files.append(source)
                continue
            file = Path(folder) / f"{number}-{source.name}"
            say(f"{source}:")
            classifier, metadata = _fitted(source, prepared[source], first, fitted_on, reading)
            rates = export_source.rates_of(p, wanted)
            say_written(pipeline.export_third_party(classifier, metadata, file, rates, unbaked.options, fitted_on))
            files.append(file)
        whole = out if images is None else Path(folder) / "whole.onnx"
        done = ensemble.combine(
            files, whole, None if images is None else images.images, samples=wanted.samples, baked=wanted.options.bake
        )
        _say_combined(done)
        if images is None:
            say("Note: the ensemble is not calibrated, even if its members are.")
            return out, f"calibrate {quote(out)} --data FOLDER --method temperature"
        fitted = calibrate_file(whole, out, images, promise=promise, novelty=novelty)
    tell(fitted)
    return out, fitted.following


def _fitted(
    source: Path,
    read: "tuple[ThirdParty, Metadata]",
    first: "Metadata",
    images: "Split | None",
    reading: Reading,
) -> "tuple[ThirdParty, Metadata]":
    """A member that was read, with the classes of the first one, and fed as it fits the images, if there are any."""
    classifier, metadata = read
    if len(metadata.classes) != len(first.classes):
        rule = f"{len(first.classes)}, as many as the other members have"
        raise UsageError(expected(f"the classes of {source}", rule, len(metadata.classes), "Leave it out"))
    metadata = replace(metadata, classes=first.classes)
    if images is None:
        return classifier, metadata
    if _size(metadata) != _size(first):
        rule = f"{_size(first)}, as those of the other members are"
        raise UsageError(expected(f"the images of {source}", rule, _size(metadata), "Leave it out"))
    return fit_preprocessing(classifier, metadata, images, given=reading.feeds)


def _size(metadata: "Metadata") -> str:
    return f"{metadata.image.height} x {metadata.image.width} x {metadata.image.channels}"


def _own_metadata(path: Path) -> "Metadata | None":
    """What a model file says of itself; None for any other ONNX file."""
    import onnx

    from uce_edge.contract import KEY
    from uce_edge.runtime.model import Model

    if not path.is_file():
        return None  # reading it says so
    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception:  # reading it says what is wrong
        return None
    return Model(path, "cpu").metadata if any(entry.key == KEY for entry in proto.metadata_props) else None


def _say_combined(done: "Exported") -> None:
    metadata = done.metadata
    every = "one pass" if metadata.inference is Inference.DETERMINISTIC else "every seed"
    say(f"The file is an ensemble of {metadata.members} networks, which all run {every}.")
    say(f"Parity: logits within {done.parity.largest_difference:.1e} of those of each member on its own.")
