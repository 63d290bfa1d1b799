"""Export a PyTorch network or a trained run."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from uce_edge._util.field_rules import checked
from uce_edge.calibration.laplace_posterior import DRAWS
from uce_edge.contract import Inference, Method, NoiseKind, Precision, Sigma, pass_seeds
from uce_edge.datasets.splits import Dataset
from uce_edge.errors import UceEdgeWarning, UsageError
from uce_edge.metadata import Calibration, Hashes, ImageSpec, Metadata
from uce_edge_export.check import sigma_error
from uce_edge_export.graph import assembly
from uce_edge_export.graph.laplace_draws import Drawn
from uce_edge_export.noise import moments_calibration
from uce_edge_export.noise.sites import Site, select
from uce_edge_export.options import KEEP, Options
from uce_edge_export.pipeline import Exported, Labelled, default_samples, refuse, write
from uce_edge_export.publish.draft import check_name
from uce_edge_train import torch_graph
from uce_edge_train.calibration import fit
from uce_edge_train.choices import Dropout
from uce_edge_train.data.features import before_noise
from uce_edge_train.dropout import sigma_scale
from uce_edge_train.dropout.gaussian_layers import computing_sigma, deterministic, noise_only_in, silent_layers
from uce_edge_train.networks.class_logits import returning_logits
from uce_edge_train.networks.description import describe
from uce_edge_train.runs import Run, load_model, weights_sha256

COUNTED = 1000  # held-out images whose acceptance by threshold is stored when no error is promised


@dataclass(frozen=True)
class ExportedRun(Exported):
    """An export of a run, judged on its calibration images."""

    torch_nll: float | None = None
    """NLL of the PyTorch model with exact passes and its own calibration map, at the fit; None if it has none."""


def export_module(
    model: nn.Module,
    metadata: Metadata | None,
    out: str | Path,
    images: npt.NDArray[np.uint8] | None = None,
    options: Options = Options(),
    *,
    dropout: str | None = None,
) -> Exported:
    """Write a model with dropout as a contract file.

    Nothing is written unless the file passes the parity gate.

    Args:
        model: A classifier after `gaussianize`, or with dropout of its own, from normalised pixels [batch, channels,
            height, width] to logits, to an object with `.logits`, or to a tuple that begins with them.
        metadata: Classes, image, inference, noise, calibration; layers and costs are filled in. None for what the
            network carries, as `describe` reads it.
        out: The `.onnx` file; `NAME.json` is written beside it for runtimes that cannot read ONNX metadata.
        images: Images for the gate, as the file takes them; None for random pixels.
        options: How the noise gets into the graph.
        dropout: "keep" lets `nn.Dropout`, similar layers and `F.dropout` stay random, as in training mode. None
            removes them.
    """
    check_name(out)
    metadata = describe(model) if metadata is None else metadata
    options = options if dropout is None else replace(options, dropout=(dropout,))
    refuse(metadata, options)
    _refuse_masks(options)
    image = metadata.image
    with returning_logits(model, torch.zeros(2, image.channels, image.height, image.width)):
        done, lost = _exported(model, metadata, out, images, options)
    for note in lost:
        warnings.warn(note, UceEdgeWarning, stacklevel=2)
    return done


def _exported(
    model: nn.Module,
    metadata: Metadata,
    out: str | Path,
    images: npt.NDArray[np.uint8] | None,
    options: Options,
) -> tuple[Exported, tuple[str, ...]]:
    """The file of a module, and notes about dropout that it lost."""
    classifier, trained = _noisy_graph(model, metadata.image, metadata.inference, options)
    scale = _noise_scale(model, metadata.image, trained, options, images)
    with computing_sigma(model, options.sigma, scale):
        sites = _sites(classifier, model, options) if options.sigma else trained
        reference = torch_graph.torch_reference(model, metadata.image, sites)
        done = write(classifier, sites, metadata, out, images, reference, options, trained=trained)
    lost = _notes(model, options)
    return replace(done, notes=(*lost, *_scale_notes(scale), *done.notes)), lost


def _noisy_graph(
    model: nn.Module, image: ImageSpec, inference: Inference, options: Options
) -> tuple[assembly.Classifier, list[Site]]:
    classifier = torch_graph.export_deterministic(model, image, keep_dropout=options.keeps_dropout)
    return classifier, [] if inference is Inference.DETERMINISTIC else _sites(classifier, model, options)


def _refuse_masks(options: Options) -> None:
    if options.masks:
        raise UsageError(
            "Masks on named values go with an ONNX file: uce-edge export --from model.onnx --dropout 'PATTERN=RATE'. "
            "In a network of PyTorch, put an nn.Dropout there and keep it: --dropout keep",
            "dropout.named-masks",
        )


def _notes(model: nn.Module, options: Options) -> tuple[str, ...]:
    return () if options.keeps_dropout else torch_graph.dropout_notes(model)


def _sites(classifier: assembly.Classifier, model: nn.Module, options: Options) -> list[Site]:
    return select(torch_graph.noisy_sites(classifier, model), classifier.graph, options.noisy)


def export_run(
    folder: str | Path,
    out: str | Path,
    dataset: Dataset,
    inference: Inference = Inference.MC,
    noise: NoiseKind = NoiseKind.TABLE,
    samples: int | None = None,
    options: Options = Options(),
    numbers: Precision = Precision.FP32,
    *,
    member: bool = False,
) -> ExportedRun:
    """Export a trained run with its calibration.

    Args:
        folder: The run.
        out: The `.onnx` file.
        dataset: The run's dataset; its calibration images feed the gate.
        inference: The kind of graph.
        noise: Where the noise comes from.
        samples: The default number of passes for a run that is not calibrated; None for 25, or for 100 draws of a
            moments graph.
        options: How the noise gets into the graph.
        numbers: The precision of the network.
        member: Whether the file is a member of an ensemble. A member is not calibrated or measured; the ensemble is.
    """
    check_name(out)
    # A plain string is accepted, but `is` below needs the enum member.
    inference = checked("inference", Inference, inference, "Leave it out for mc")
    noise = checked("noise", NoiseKind, noise, "Leave it out for table")
    numbers = checked("numbers", Precision, numbers, "Leave it out for fp32")
    _refuse_masks(options)
    run = Run.load(folder)
    if run.masks and run.laplace is None and inference is not Inference.DETERMINISTIC:
        options = replace(options, dropout=(KEEP,))
    if run.silent and not options.keeps_dropout and inference is not Inference.DETERMINISTIC:
        raise UsageError(
            f"{folder} was trained without dropout, so its passes would all be the same. Export it with --inference "
            "deterministic, keep dropout that is in the network (--dropout keep), or give it a posterior first: "
            f"uce-edge calibrate {folder} --posterior laplace",
            "dropout.missing",
        )
    model = load_model(run, folder)
    if run.laplace is not None and inference is not Inference.DETERMINISTIC:
        if member:
            raise UsageError(
                f"{folder} has a Laplace posterior, which a member of an ensemble cannot have. Calibrate it without "
                "--posterior, or export with --inference deterministic",
                "ensemble.posterior",
            )
        _check_baked(folder, run.calibration, samples or run.calibration.samples, options)
        return _export_laplace(folder, out, run, model, dataset, inference, noise, options, numbers)
    data = dataset.splits["calibration"]
    calibration = Calibration() if member else run.calibration
    metadata = replace(metadata_of(run, model, inference, noise, calibration), precision=numbers)
    refuse(metadata, options, labelled=noise is not NoiseKind.INPUT)
    samples = default_samples(inference) if samples is None else samples
    pass_seeds(samples, 0)
    classifier, trained = _noisy_graph(model, run.image, inference, options)
    scale = _noise_scale(model, run.image, trained, options, data.images)
    with computing_sigma(model, options.sigma, scale), noise_only_in(model, {site.name for site in trained}):
        sites = _sites(classifier, model, options) if options.sigma else trained
        reference = torch_graph.torch_reference(model, run.image, sites)
        if member and inference is not Inference.MOMENTS:
            calibration = Calibration(samples=samples)
        elif inference is Inference.DETERMINISTIC:
            # Without noise the logits have another scale: the same map needs parameters of its own.
            with deterministic(model):
                calibration = fit(model, run.image, data, calibration.method, 1)
        elif inference is Inference.MOMENTS:
            described = replace(metadata, samples=samples)
            calibration = moments_calibration.fit(
                classifier, sites, described, data, calibration.method, options.sample_from
            )
        elif (options.keeps_dropout and not run.masks) or (options.noisy and silent_layers(model)):
            # Calibration ran without these masks, or with noise in more layers.
            passes = samples if run.recipe.dropout is Dropout.NONE else calibration.samples or samples
            calibration = fit(model, run.image, data, calibration.method, passes, keep_dropout=options.keeps_dropout)
        elif calibration.samples is None:
            network, image, inputs = before_noise(model, run.image, data, folder)
            calibration = fit(network, image, inputs, Method.NONE, samples, keep_dropout=run.masks)
        _check_baked(folder, calibration, samples, options)
        metadata = replace(metadata, calibration=calibration, samples=calibration.samples or 1)
        labelled = None if noise is NoiseKind.INPUT else _labelled(run, dataset, member=member)
        done = write(
            classifier,
            sites,
            metadata,
            out,
            data.images,
            reference,
            options,
            labelled,
            trained,
            features=run.features(run.novelty),
        )
    exact = run.calibration if inference is Inference.MOMENTS else calibration
    torch_nll = None if exact.report is None else exact.report.nll_after
    done = replace(done, notes=(*_notes(model, options), *_scale_notes(scale), *done.notes))
    return ExportedRun(**vars(done), torch_nll=torch_nll)


def _export_laplace(
    folder: str | Path,
    out: str | Path,
    run: Run,
    model: nn.Module,
    dataset: Dataset,
    inference: Inference,
    noise: NoiseKind,
    options: Options,
    numbers: Precision,
) -> ExportedRun:
    """Export a run with its Laplace posterior."""
    from uce_edge_train import run_posterior

    options.refuse_noise(inference)
    assert run.laplace is not None
    calibration, data = run.calibration, dataset.splits["calibration"]
    drawn = Drawn(run_posterior.load(run.laplace, model, folder), run.laplace, calibration.samples or DRAWS, noise)
    plain = metadata_of(run, model, Inference.DETERMINISTIC, NoiseKind.NONE, calibration)
    classifier = torch_graph.export_deterministic(model, run.image)
    done = write(
        classifier,
        [],
        replace(plain, precision=numbers, samples=1),
        out,
        data.images,
        torch_graph.torch_reference(model, run.image, []),
        options,
        None if noise is NoiseKind.INPUT else _labelled(run, dataset),
        drawn=drawn,
        features=run.features(run.novelty),
    )
    notes = done.notes
    if run.recipe.dropout is not Dropout.NONE:
        notes = (
            f"the file draws its last layer only: the {run.recipe.dropout} dropout of its training is not in it",
            *notes,
        )
    torch_nll = None if calibration.report is None else calibration.report.nll_after
    return ExportedRun(**vars(replace(done, notes=notes)), torch_nll=torch_nll)


def _check_baked(folder: str | Path, calibration: Calibration, samples: int | None, options: Options) -> None:
    if options.bake and calibration.samples != samples:
        raise UsageError(
            f"{folder} is calibrated at {calibration.samples} passes, but --bake-samples is {samples}. First calibrate "
            f"it at {samples}: uce-edge calibrate {folder} --samples {samples}",
            "samples.not-calibrated",
            calibrated=calibration.samples,
            samples=samples,
        )


def _labelled(run: Run, dataset: Dataset, *, member: bool = False) -> Labelled:
    """The labelled images that a file is evaluated on."""
    held_out = dataset.splits["guarantee"].one_per_group()
    counted = held_out if run.promise or run.sets else held_out.at_most(COUNTED)
    splits = dataset.splits
    return Labelled(
        splits["calibration"], None if member else counted, run.promise, run.novelty, splits["train"], run.sets
    )


def _noise_scale(
    model: nn.Module, image: ImageSpec, sites: list[Site], options: Options, images: npt.NDArray[np.uint8] | None
) -> float:
    """The noise scale of factored sigma after exact training, or else 1.

    It is also 1 with too few images. Noise by channel draws other normals than the trained noise, so that the two
    cannot be compared pass by pass.
    """
    changed = options.sigma is Sigma.FACTORED and sigma_error.of_sites(sites) is not options.sigma
    if not (sites and changed and images is not None and len(images) >= sigma_scale.IMAGES):
        return 1.0
    assert options.sigma is not None
    return sigma_scale.noise_scale(model, image, sites, options.sigma, images)


def _scale_notes(scale: float) -> tuple[str, ...]:
    if scale == 1:
        return ()
    return (
        f"the variance of every layer was multiplied by {scale:.2f}, which keeps the mean uncertainty of the images",
    )


def metadata_of(
    run: Run, model: nn.Module, inference: Inference, noise: NoiseKind, calibration: Calibration
) -> Metadata:
    """The metadata of a run's file."""
    return Metadata(
        classes=run.class_names,
        image=run.image,
        inference=inference,
        noise=noise,
        architecture=run.recipe.arch,
        samples=calibration.samples or 1,
        calibration=calibration,
        trained_on=run.trained_on,
        seen=run.recipe.seen,
        group=run.group,
        pretrained=run.recipe.init.published if run.recipe.init else None,
        hashes=Hashes(weights=weights_sha256(model), splits=run.split_hashes),
        tools=run.tools,
    )
