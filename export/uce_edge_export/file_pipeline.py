"""Export ONNX files: read, build, combine, calibrate, publish."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from uce_edge.calibration import conformal
from uce_edge.calibration.label_sets import SetPromise
from uce_edge.calibration.laplace_posterior import DRAWS
from uce_edge.contract import KEY, Inference, Method, NoiseKind, Precision
from uce_edge.datasets import labelled, range_choice
from uce_edge.datasets.formats import manifest
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError, expected
from uce_edge.images.gray_range import Choice
from uce_edge.images.gray_survey import Decided
from uce_edge.images.loader import is_image
from uce_edge.images.resize import STRETCH
from uce_edge.metadata import CalibrationReport, ImageSpec, Metadata
from uce_edge.rejection import guarantee
from uce_edge.rejection.promises import NoveltyPromise, Promise
from uce_edge.runtime.model import Model
from uce_edge_export import layer_choice, pipeline
from uce_edge_export.export_result import AssumedClasses, ExportedFile, MemberStarted, NoiseCost, NoNoise, Step
from uce_edge_export.graph import ensemble, heatmap, laplace_draws
from uce_edge_export.graph.weight_layers import multiplications
from uce_edge_export.options import ChannelOrder, FileKind, Options, PostHoc, SourceSpec
from uce_edge_export.pipeline import Built
from uce_edge_export.publish.draft import check_name, destination
from uce_edge_export.recalibration import recalibrate
from uce_edge_export.source import image_settings, third_party
from uce_edge_export.source.preprocessing import fit_pixels, plain_report
from uce_edge_export.source.third_party import ThirdParty

DEFAULT_RATE = "0.02"
"""Of Gaussian dropout in a network that gets noise and has no dropout of its own.

Most such networks were trained without noise. In the last convolution and the classifier of EfficientNet-Lite0, 0.05
was the largest harmless rate (docs/inference.md); 0.02 leaves a margin for other networks."""


def export_file(
    source: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    data: str | Path | None = None,
    group: str | None = None,
    promise: Promise | None = None,
    novelty: NoveltyPromise = NoveltyPromise(),
    sets: SetPromise | None = None,
    inference: Inference | None = None,
    posterior: PostHoc | None = None,
    samples: int | None = None,
    precision: Precision = Precision.FP32,
    noise: NoiseKind = NoiseKind.TABLE,
    p: Sequence[str] = (),
    options: Options = Options(),
    spec: SourceSpec = SourceSpec(),
    report: Callable[[Step], None] | None = None,
) -> ExportedFile:
    """Export any ONNX image classifier, or several as one ensemble.

    With labelled images the file is calibrated and gets a novelty gate. Pixels are scaled as it fits the images, unless
    `spec` states how. The file has no noise unless an argument asks for it. Without images the file is not calibrated.

    Args:
        source: An ONNX file. Several become one ensemble; a model file among them keeps all but its calibration.
        out: The `.onnx` file to write; None for a name made from the source.
        data: Labelled images: a folder with one sub-folder per class, a manifest, or an .npz file.
        group: The column or pattern that groups the images of one patient, scene or device.
        promise: The error that the stored threshold must keep. Half of the images prove it, and fit nothing.
        novelty: The share of familiar images that the novelty gate may reject.
        sets: The prediction sets. Half of the images fit their limits, and nothing else but `promise`.
        inference: The kind of graph; None for no noise with labelled images, or else exact passes.
        posterior: Fit a posterior over the last layer on the images.
        samples: The default number of passes; None for that of the kind of graph.
        precision: Of the network.
        noise: The source of the noise.
        p: Rates of Gaussian dropout: "0.2" for all layers after the first, or "PATTERN=0.1" by weight name.
        options: How the noise gets into the graph.
        spec: How to read the network.
        report: Called with every step as soon as it is done.

    Returns:
        The file, and all decisions and results. A promise that the images cannot prove is not an error:
        `calibrated.refused` has the reason and the errors that they can prove.

    Raises:
        UceEdgeError: The network, the images or the arguments do not allow the export. Nothing was written.

    Example:
        >>> done = export_file("resnet.onnx", "sure.onnx", data="labelled/", promise=Promise(0.05))
        >>> done.scalings[0].chosen.way.name, done.metadata.calibration.temperature
        ('ImageNet', 1.31)
        >>> export_file(["a.onnx", "b.onnx", "c.onnx"], "ensemble.onnx", data="labelled/").metadata.members
        3
    """
    sources = [Path(source)] if isinstance(source, str | Path) else [Path(one) for one in source]
    spec = image_settings.completed(spec)
    asks_noise = bool(p or posterior) or samples is not None or noise is not NoiseKind.TABLE
    asks_noise = asks_noise or options.bake or options.of_noise != Options()
    default = inference is None and data is not None and not asks_noise
    inference = Inference.DETERMINISTIC if default else inference or Inference.MC
    samples = None if inference is Inference.DETERMINISTIC else samples
    kind = FileKind(inference, noise, samples, precision, options, posterior)
    text = None if data is None else str(data)
    request = _Request(tuple(sources), kind, default, tuple(p), spec, text, group, promise, novelty, sets)
    _check(request)
    out = check_name(out or (f"{sources[0].stem}-uce{kind.suffix}.onnx" if request.alone else "ensemble.onnx"))
    steps: list[Step] = []

    def add(step: Step) -> None:
        steps.append(step)
        if report is not None:
            report(step)

    prepared = _prepare(request, add)
    built, prepared = _build(prepared, add)
    metadata = _publish(prepared, built, out, add)
    adds_noise = bool(prepared.networks) and built.metadata.inference is not Inference.DETERMINISTIC
    return ExportedFile(out, metadata, prepared.request.kind, request.rates if adds_noise else (), tuple(steps))


@dataclass(frozen=True)
class _Request:
    """The arguments of `export_file`, with the kind of file chosen."""

    sources: tuple[Path, ...]
    kind: FileKind
    default: bool
    """Whether the kind is the default for labelled images."""
    p: tuple[str, ...]
    spec: SourceSpec
    data: str | None
    group: str | None
    promise: Promise | None
    novelty: NoveltyPromise
    sets: SetPromise | None

    @property
    def promised(self) -> bool:
        """Whether some images must fit nothing."""
        return self.promise is not None or self.sets is not None

    @property
    def alone(self) -> bool:
        """Whether the file is no ensemble."""
        return len(self.sources) == 1

    @property
    def rates(self) -> tuple[str, ...]:
        """Of Gaussian dropout."""
        return self.p or (() if self.kind.options.dropout else (DEFAULT_RATE,))

    @property
    def network_options(self) -> Options:
        """Options of one network; ensembles and posteriors are baked later.

        Noise in all layers ruins most networks that were trained without it, so it is in the tail unless it is chosen.
        """
        options, kind = self.kind.options, self.kind
        noisy = kind.inference is not Inference.DETERMINISTIC and kind.posterior is None
        if noisy and not (self.p or options.noisy or options.dropout):
            options = replace(options, noisy=(layer_choice.TAIL,))
        return options if self.alone and self.kind.posterior is None else replace(options, bake=False)


@dataclass(frozen=True)
class _Prepared:
    """The sources and the images of an export."""

    request: _Request
    finished: dict[Path, Model]
    """Model files."""
    networks: dict[Path, tuple[ThirdParty, Metadata]]
    """All other files."""
    images: Split | None
    chosen_on: Split | None
    """The images that choices may look at: none of those that prove a promise."""


def _check(request: _Request) -> None:
    """Reject arguments that do not go together."""
    kind = request.kind
    if not request.sources:
        raise UsageError(expected("`source`", "one ONNX file or several", [], "Name a file"))
    if kind.noise is NoiseKind.NONE:
        raise UsageError(
            "--noise none is refused. For a model without noise, use: --inference deterministic", "export.noise-none"
        )
    if kind.options.heatmap and not request.alone:
        raise heatmap.several_networks()
    if kind.posterior is not None:
        if not request.alone:
            raise UsageError(
                "--posterior needs one network, but got several files. Give one file, or leave --posterior out.",
                "export.several-networks",
            )
        kind.options.refuse_noise(kind.inference, request.p)
    needs = {
        "--target-error is proved on": request.promise,
        "--novelty-level is proved on": request.novelty.level,
        "--sets is fitted on": request.sets,
        "--posterior is fitted on": kind.posterior,
        "--group needs": request.group,
    }
    for need, value in needs.items():
        if value is not None and request.data is None:
            raise UsageError(f"{need} labelled images: add --data FOLDER", "export.needs-data")


def _prepare(request: _Request, add: Callable[[Step], None]) -> _Prepared:
    """Read the sources and the images."""
    finished = {} if request.alone else _finished(request.sources)
    if finished:
        _check_finished(request, len(finished))
        if request.default:  # the members of one file are of one kind
            inference = next(iter(finished.values())).metadata.inference
            request = replace(request, kind=replace(request.kind, inference=inference), default=False)
    networks = {one: _read(one, request.kind, request.spec) for one in request.sources if one not in finished}
    for _, metadata in networks.values():
        pipeline.refuse(metadata, request.network_options, labelled=request.data is not None)
    gray = _gray_range(request.spec.range, request.data) if networks else Decided()
    if gray.words is not None:
        add(gray)
    networks = {one: (network, _with_range(metadata, gray)) for one, (network, metadata) in networks.items()}
    first = next(iter(finished.values())).metadata if finished else networks[request.sources[0]][1]
    images, classes = _labelled_images(request, first, bool(finished))
    if images is not None and not finished and request.spec.classes is None:
        add(AssumedClasses(classes))
    first = replace(first, classes=classes)
    networks = {
        one: (network, _matched(one, metadata, first, sized=images is not None))
        for one, (network, metadata) in networks.items()
    }
    if request.promise is not None and images is not None:
        request.promise.targets(classes)  # rejects unknown classes
        _check_possible(images, request.promise, request.kind.posterior)
    if request.sets is not None and images is not None:
        counted = _left(images, request.kind.posterior).halves()[1].one_per_group()
        conformal.check_possible(counted.labels, request.sets, classes, halved=True)
    chosen_on = None if images is None else _chosen_on(images, request)
    return _Prepared(request, finished, networks, images, chosen_on)


def _build(prepared: _Prepared, add: Callable[[Step], None]) -> tuple[Built, _Prepared]:
    """Build every network, choose its pixels, and combine several."""
    request = prepared.request
    resize = request.spec.resize
    if resize is None and prepared.finished:
        resize = next(iter(prepared.finished.values())).metadata.image.resize
    if prepared.networks and request.default:
        add(NoNoise())
    members = dict(prepared.finished)
    for source in prepared.networks:
        if not request.alone:
            add(MemberStarted(source))
        network, metadata = prepared.networks[source]
        if resize is not None:  # of the user, or of another member: all take the same image
            metadata = replace(metadata, image=replace(metadata.image, resize=resize))
        if prepared.chosen_on is not None:
            fitted = fit_pixels(
                network,
                metadata,
                prepared.chosen_on,
                scaling_given=request.spec.gives_scaling or network.takes_bytes,
                resize_given=resize is not None,
            )
            network, metadata = prepared.networks[source] = fitted.source, fitted.metadata
            add(fitted.scaling)
            if fitted.resizing is not None:
                add(fitted.resizing)
                prepared = _resized(prepared, metadata.image)
        resize = metadata.image.resize
        built = pipeline.build_third_party(
            network, metadata, request.rates, request.network_options, prepared.chosen_on
        )
        add(built)
        if request.alone:
            return built, prepared
        members[source] = built.draft.model
    kind, images = request.kind, prepared.images
    built = ensemble.join(
        [members[source] for source in request.sources],
        [str(source) for source in request.sources],
        None if images is None else images.images,
        kind.samples,
        kind.options.bake,
    )
    add(built)
    return built, prepared


def _resized(prepared: _Prepared, image: ImageSpec) -> _Prepared:
    """All images, resized as was chosen."""
    if prepared.images is None or image.resize == STRETCH:
        return prepared
    images = labelled.resized(prepared.images, image)
    chosen_on = _chosen_on(images, prepared.request)
    return replace(prepared, images=images, chosen_on=chosen_on)


def _publish(prepared: _Prepared, built: Built, out: Path, add: Callable[[Step], None]) -> Metadata:
    """Calibrate the file if there are images, and write it."""
    request, images, draft = prepared.request, prepared.images, built.draft
    if images is None or prepared.chosen_on is None:
        with destination(out) as save:
            save(draft)
        return draft.metadata
    promise, kind, sets = request.promise, request.kind, request.sets
    if kind.posterior is not None:
        samples, bake = kind.samples or DRAWS, kind.options.bake
        draft, images, fit = laplace_draws.give(draft.model, images, promise, samples, kind.noise, bake=bake, sets=sets)
        add(fit)
    novelty, third_party = request.novelty, bool(prepared.networks)
    done = recalibrate(
        draft.model,
        out,
        images,
        Method.TEMPERATURE,
        promise=promise,
        novelty=novelty,
        choose_features=third_party,
        sets=sets,
    )
    add(done)
    if request.alone and built.metadata.inference is not Inference.DETERMINISTIC:
        network, _ = prepared.networks[request.sources[0]]
        add(_noise_cost(network, built.metadata, prepared.chosen_on, done.metadata.calibration.outcome))
    return done.metadata


def _finished(sources: Sequence[Path]) -> dict[Path, Model]:
    """The model files among ONNX files."""
    return {one: Model(one, "cpu") for one in sources if _is_finished(one)}


def _is_finished(path: Path) -> bool:
    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception:  # reading it as a network raises the proper error
        return False
    return any(entry.key == KEY for entry in proto.metadata_props)


def _check_finished(request: _Request, finished: int) -> None:
    """Reject options that do not apply to model files."""
    if request.spec.classes is not None:
        raise UsageError(
            "A model file already names its classes, and all members must have the same ones: leave --classes out.",
            "export.classes-given",
        )
    noise_given = request.p or request.kind.options.of_noise != Options()
    if finished == len(request.sources) and noise_given:
        raise UsageError(
            "The files already have their noise: leave out --p and the other options of noise.", "export.noise-given"
        )


def _read(source: Path, kind: FileKind, spec: SourceSpec) -> tuple[ThirdParty, Metadata]:
    """A third-party classifier, and the metadata of its file."""
    network = third_party.load(
        source,
        layout=spec.layout,
        output_is=spec.output_is,
        size=spec.size,
        output=spec.output,
        options=kind.options,
    )
    # A posterior is added to the file without noise.
    inference = kind.inference if kind.posterior is None else Inference.DETERMINISTIC
    metadata = third_party.metadata(
        network,
        source,
        classes=spec.classes,
        scale=spec.scale,
        mean=spec.mean or (0.0,),
        std=spec.std or (1.0,),
        samples=pipeline.default_samples(inference) if kind.samples is None else kind.samples,
        inference=inference,
        noise=kind.noise,
    )
    if spec.channels is ChannelOrder.BGR:
        network = third_party.take_bgr(network)
    image = replace(metadata.image, resize=spec.resize or STRETCH)
    return network, replace(metadata, precision=kind.precision, image=image)


def _gray_range(choice: Choice, data: str | None) -> Decided:
    """Choose the gray values of black and white."""
    files: Sequence[str | Path] = []
    if data is not None and manifest.FORMAT.takes(Path(data)):
        files = manifest.files(Path(data))
    elif data is not None:
        files = [path for path in sorted(Path(data).rglob("*")) if is_image(path)]
    return range_choice.decided(files, choice)


def _with_range(metadata: Metadata, gray: Decided) -> Metadata:
    return replace(metadata, image=replace(metadata.image, range=gray.range))


def _labelled_images(request: _Request, first: Metadata, finished: bool) -> tuple[Split | None, tuple[str, ...]]:
    """Load the labelled images, if any, and the class names."""
    data, group = request.data, request.group
    if data is None:
        return None, first.classes
    if finished:
        own = labelled.Own(first.hashes.splits, first.group)
        return labelled.load(data, first.image, first.classes, own, group), first.classes
    if request.spec.classes is not None:
        return labelled.load(data, first.image, first.classes, group=group), first.classes
    return labelled.load_with_names(data, first.image, len(first.classes), group)


def _check_possible(images: Split, promise: Promise, posterior: PostHoc | None) -> None:
    """Reject a promise that so few images cannot prove."""
    counted = len(_left(images, posterior).one_per_group()) // 2
    guarantee.check_possible(counted, promise, len(images), grouped=images.groups is not None)


def _left(images: Split, posterior: PostHoc | None) -> Split:
    """The images that `recalibrate` gets."""
    return images if posterior is None else laplace_draws.parts(images, promised=True)[2]


def _chosen_on(images: Split, request: _Request) -> Split:
    if request.kind.posterior is not None:
        return laplace_draws.parts(images, promised=request.promised)[0]
    return images.halves()[0] if request.promised else images


def _matched(source: Path, metadata: Metadata, first: Metadata, *, sized: bool) -> Metadata:
    """Give a network the first one's classes; reject other sizes."""
    if len(metadata.classes) != len(first.classes):
        rule = f"{len(first.classes)}, as many as the other members have"
        raise UsageError(
            expected(f"the classes of {source}", rule, len(metadata.classes), "Leave it out"),
            "ensemble.different-members",
        )
    if sized and _size(metadata.image) != _size(first.image):
        rule = f"{_size(first.image)}, as those of the other members are"
        raise UsageError(
            expected(f"the images of {source}", rule, _size(metadata.image), "Leave it out"),
            "ensemble.different-members",
        )
    return replace(metadata, classes=first.classes)


def _size(image: ImageSpec) -> str:
    return f"{image.height} x {image.width} x {image.channels}"


def _noise_cost(source: ThirdParty, metadata: Metadata, data: Split, noisy: CalibrationReport) -> NoiseCost:
    plain, costs = sum(map(multiplications, source.classifier.graph)), metadata.costs
    times = (costs.macs_once + metadata.samples * costs.macs_per_pass) / plain if costs is not None and plain else None
    return NoiseCost(times, plain_report(source, metadata.image, data), noisy)
