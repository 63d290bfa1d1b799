"""Calibrating a trained run: its map, and on request its dropout rates, on images it was not trained on."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from uce_edge import contract
from uce_edge.calibration import guarantee
from uce_edge.calibration.guarantee import NoGuaranteeError
from uce_edge.calibration.laplace import DRAWS
from uce_edge.calibration.logits import Logits, logits_of
from uce_edge.calibration.maps import apply_map, fit_map, initial, probabilities
from uce_edge.calibration.novelty import cutoff_for
from uce_edge.calibration.promises import NoveltyPromise, Promise, RejectBy
from uce_edge.contract import Method, PriorFrom
from uce_edge.datasets import overlap
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError
from uce_edge.metadata import Calibration, ImageSpec
from uce_edge.metrics import normalized_entropy
from uce_edge.progress import progress
from uce_edge_export.options import PostHoc
from uce_edge_train import rates
from uce_edge_train.choices import Dropout, Rates
from uce_edge_train.layers import noise_from
from uce_edge_train.passes import classes_of, mc_logits
from uce_edge_train.pixels import normalise
from uce_edge_train.runs import Run, load_model

_TUNING_STEPS, _TUNING_IMAGES, _TUNING_PASSES = 120, 64, 8


def calibrate(
    folder: str | Path,
    data: Split | None = None,
    method: Method = Method.TEMPERATURE,
    samples: int | None = None,
    seed: int = 0,
    tune: Rates = Rates.FIXED,
    promise: Promise | None = None,
    novelty: NoveltyPromise | None = None,
    posterior: PostHoc | None = None,
    prior: PriorFrom = PriorFrom.MARGINAL_LIKELIHOOD,
) -> Run:
    """Fit a map, and on request the dropout rates, and store them in the run.

    Args:
        folder: The run.
        data: Other images than those the run set aside; they must not be among its training images.
        method: The map.
        samples: The number of passes it is fitted for; None for 25, or for 100 draws of a posterior.
        seed: Of the noise.
        tune: Which dropout rates are optimised with it.
        promise: What the threshold shall keep that the export stores. Whether the guarantee images allow it is tried
            here.
        novelty: What the gate against foreign images shall keep that the export fits, on the images that the run set
            aside for calibration; None for none.
        posterior: What the network is given to draw from, without dropout that it may have been trained with. It is
            fitted on the training images and kept in the run. None for the run's own noise.
        prior: What chooses the precision of the posterior's prior: the training images, or those of the map.

    Returns:
        The run's description with its calibration, as saved.

    Raises:
        NoGuaranteeError: The guarantee images do not allow the promise. The run is saved with its map, without it.
    """
    run = replace(Run.load(folder), tuned_rates=None, laplace=None)
    if data is None:
        dataset = run.dataset()
        data = dataset.splits["calibration"]
        if data.sha256() != run.split_hashes["calibration"]:
            raise UsageError(
                f"The calibration images of {dataset.name} are not those that were set aside when {folder} was "
                "trained. Train again, or restore the data."
            )
    else:
        overlap.refuse_overlap(run.trained_on, data.images, "the calibration set")
    if novelty is not None and novelty.level is not None:
        cutoff_for(len(data) // 2, novelty)  # refuses a level that so few images cannot keep
    if tune is not Rates.FIXED and run.recipe.dropout is not Dropout.GAUSSIAN:
        raise UsageError(f"{folder} has no Gaussian dropout, whose rates could be tuned: leave --rates out.")
    model = load_model(run, folder)
    if posterior is PostHoc.LAPLACE:
        if tune is not Rates.FIXED:
            raise UsageError("A Laplace posterior has no dropout rates: leave --rates out.")
        return _calibrate_laplace(run, folder, model, data, method, samples or DRAWS, seed, promise, novelty, prior)
    samples = 25 if samples is None else samples
    if run.recipe.dropout is Dropout.NONE:
        samples = 1  # all passes are the same
    calibration = fit(model, run.image, data, method, samples, seed, keep_dropout=run.masks)
    if tune is not Rates.FIXED:
        tune_rates(model, run.image, data, tune, method, seed)
        tuned = fit(model, run.image, data, method, samples, seed)
        # Few passes per step guide the search; the passes that ship decide.
        before = calibration.outcome
        kept = tuned.outcome.nll_after < before.nll_after
        chosen = tuned if kept else calibration
        report = replace(
            chosen.outcome, nll_before=before.nll_before, accuracy_before=before.accuracy_before, rates_tuned=kept
        )
        calibration = replace(chosen, report=report)
        run = replace(run, tuned_rates=rates.current(model) if kept else None)
    run = replace(run, calibration=calibration)
    return _stored(
        run, folder, promise, novelty, lambda x: mc_logits(model, x, run.image, samples, seed, keep_dropout=run.masks)
    )


def _calibrate_laplace(
    run: Run,
    folder: str | Path,
    model: nn.Module,
    data: Split,
    method: Method,
    samples: int,
    seed: int,
    promise: Promise | None,
    novelty: NoveltyPromise | None,
    prior: PriorFrom,
) -> Run:
    """Fit the posterior on the training images, and the map to the draws of the file that will ship."""
    from uce_edge_train import laplace_fit  # the other calibrations need no ONNX

    with laplace_fit.fitted(model, run, run.dataset(), data, prior, samples) as (drawn, file):
        calibration = fit_map(method, logits_of(file, data.images, samples, seed), data.labels, seed)
        laplace_fit.store(drawn, model, folder)
        run = replace(run, calibration=calibration, laplace=drawn.fit)
        return _stored(run, folder, promise, novelty, lambda x: logits_of(file, x.images, samples, seed))


def _stored(
    run: Run,
    folder: str | Path,
    promise: Promise | None,
    novelty: NoveltyPromise | None,
    draw: Callable[[Split], Logits],
) -> Run:
    """Try whether a promise can be kept, and save the run."""
    run = replace(run, promise=None, novelty=novelty)
    if promise is not None:
        held_out = run.dataset().splits["guarantee"]
        p = probabilities(run.calibration, draw(held_out))
        try:
            wrong = p.argmax(-1) != held_out.labels
            by_confidence = promise.score is RejectBy.CONFIDENCE
            score = contract.doubt(p.max(-1)) if by_confidence else normalized_entropy(p)
            guarantee.find(score, wrong, promise.target_error, promise.confidence)
        except NoGuaranteeError as error:
            run.save(folder)
            raise NoGuaranteeError(f"{error} The fitted map is kept in {folder}, without a promise.") from error
        run = replace(run, promise=promise)
    run.save(folder)
    return run


def fit(
    model: nn.Module,
    image: ImageSpec,
    data: Split,
    method: Method,
    samples: int,
    seed: int = 0,
    *,
    keep_dropout: bool = False,
) -> Calibration:
    """A map for a network, from its own Monte Carlo logits on some images; `keep_dropout` as in `passes.mc_blocks`."""
    logits = mc_logits(model, data, image, samples, seed, keep_dropout=keep_dropout)
    return fit_map(method, logits, data.labels, seed)


def tune_rates(model: nn.Module, image: ImageSpec, data: Split, tune: Rates, method: Method, seed: int) -> None:
    """Optimise the dropout rates with respect to the NLL of the averaged prediction, weights frozen, in place.

    The parameters of the map move along, so that rates are found that suit the calibrated network. The rates are the
    mean over the second half of the steps.
    """
    learned = rates.learn(model, tune)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    start = initial(method, classes_of(model, image))
    parameters = {name: torch.from_numpy(value).float().requires_grad_() for name, value in start.items()}
    optimiser = torch.optim.Adam([{"params": learned, "lr": 0.05}, {"params": list(parameters.values()), "lr": 0.02}])
    path: list[list[Tensor]] = []
    with noise_from(model, generator), progress("tuning p", _TUNING_STEPS) as advance:
        for step in range(_TUNING_STEPS):
            batch = torch.randint(len(data), (min(_TUNING_IMAGES, len(data)),), generator=generator)
            images = normalise(torch.from_numpy(data.images[batch.numpy()]), image)
            logits = torch.stack([model(images) for _ in range(_TUNING_PASSES)])
            loss = _averaged_nll(apply_map(method, parameters, logits), torch.from_numpy(data.labels[batch.numpy()]))
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            rates.keep_in_bounds(learned)
            if step >= _TUNING_STEPS // 2:
                path.append([value.detach().clone() for value in learned])
            advance(1)
    with torch.no_grad():
        for value, history in zip(learned, zip(*path, strict=True), strict=True):
            value.copy_(torch.stack(history).mean())
    rates.settle(model)


def _averaged_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """As `maps.averaged_nll`, with gradients."""
    log_true = torch.log_softmax(logits, -1)[:, torch.arange(len(labels)), labels]
    log_mean: Tensor = torch.logsumexp(log_true, 0) - math.log(len(logits))
    return -log_mean.mean()
