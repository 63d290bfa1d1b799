"""Calibrate a trained run on held-out images."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from uce_edge._util.progress import progress
from uce_edge.calibration import conformal, early_look
from uce_edge.calibration.label_sets import SetPromise
from uce_edge.calibration.laplace_posterior import DRAWS
from uce_edge.calibration.logits import Logits, logits_of
from uce_edge.calibration.maps import apply_map, fit_map, initial, probabilities
from uce_edge.calibration.novelty import cutoff_for
from uce_edge.calibration.novelty_features import Layer
from uce_edge.contract import Method, PriorFrom
from uce_edge.datasets import overlap
from uce_edge.datasets.splits import ONE_EACH, Dataset, Split
from uce_edge.errors import UsageError, expected
from uce_edge.metadata import Calibration, ImageSpec
from uce_edge.metrics import normalized_entropy
from uce_edge.rejection import fitting, guarantee
from uce_edge.rejection.guarantee import NoGuaranteeError
from uce_edge.rejection.promises import NoveltyPromise, Promise, RejectBy
from uce_edge.rejection.rule import inverse_confidence
from uce_edge_export.options import PostHoc
from uce_edge_train.calibration_cache import Cache, Predictions, Settings
from uce_edge_train.choices import Dropout, Rates
from uce_edge_train.data.features import before_noise, open_features
from uce_edge_train.data.pixel_scaling import normalise
from uce_edge_train.dropout import learned_rates
from uce_edge_train.dropout.gaussian_layers import noise_from
from uce_edge_train.dropout.monte_carlo import classes_of, mc_logits
from uce_edge_train.runs import Run, load_model

_log = logging.getLogger(__name__)
_Predict = Callable[[Split], Predictions | None]
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
    sets: SetPromise | None = None,
) -> Run:
    """Fit a calibration map and store it in the run.

    On request, also tune the dropout rates.

    The run also keeps what was computed. Another promise then needs no new passes, unless something else has changed.

    Args:
        folder: The run.
        data: Labelled images to calibrate on, none of them a training image; None for those that the run set aside.
        method: The calibration map.
        samples: The number of passes that the map is fitted to; None for 25, or for 100 draws of a posterior.
        seed: Seed of the noise.
        tune: Which dropout rates are optimised with the map.
        promise: The error that the exported threshold must keep. The guarantee images must be able to prove it.
        novelty: The out-of-distribution gate, which the export fits on the run's calibration images. None for no
            gate.
        posterior: A posterior that replaces the run's own noise. It is fitted on the training images and kept in the
            run. None keeps the noise.
        prior: What chooses the precision of the posterior's prior: the training images, or those of the map.
        sets: The prediction sets, which the export fits on the guarantee images. None for no sets.

    Returns:
        The run's description with its calibration, as saved.

    Raises:
        NoGuaranteeError: The guarantee images cannot prove the promise. The run is saved with its map and without the
            promise. The error lists what they can prove.
        UsageError: For example, there are too few guarantee images for the promise. Nothing is computed.
    """
    before = Run.load(folder)
    run = replace(before, tuned_rates=None, laplace=None)
    if promise is not None:
        promise.targets(run.class_names)  # rejects unknown classes
    own = None if data is not None and not (promise or posterior or sets) else run.dataset()
    if data is None:
        assert own is not None
        data = own.splits["calibration"]
        if data.sha256() != run.split_hashes["calibration"]:
            raise UsageError(
                f"The calibration images of {own.name} are not those that were set aside when {folder} was "
                "trained. Train again, or restore the data.",
                "split.changed",
            )
    else:
        data = overlap.without_seen(run.trained_on, data, "the calibration set")
    held_out = None
    if promise is not None and own is not None:
        held_out = own.splits["guarantee"].one_per_group()
        guarantee.check_possible(len(held_out), promise, grouped=held_out.groups is not None)
    if sets is not None and own is not None:
        conformal.check_possible(own.splits["guarantee"].one_per_group().labels, sets, run.class_names)
    if novelty is not None:
        check_gate(run, data, novelty)
    samples = _samples(run, folder, samples, tune, posterior)
    settings = Settings(method, samples, seed, tune, posterior, prior)
    cache = Cache.of(folder, run, settings, data, own)
    finish = partial(_stored, cache, promise, novelty, sets, held_out)
    known = None if held_out is None else cache.predictions(before, held_out)
    has_map = cache.has_map(before)
    if has_map and (promise is None or known is not None):
        _log.info("The stored map is kept and no pass is computed: nothing that it depends on has changed.")
        return finish(before, lambda _: known)
    if posterior is PostHoc.LAPLACE:
        assert own is not None
        return _calibrate_laplace(run, folder, own, data, settings, finish)
    if has_map:
        _log.info("The stored map is kept: nothing that it depends on has changed.")
        run = before
    else:
        run = _fitted(run, folder, data, settings)
    model = load_model(run, folder)  # with the rates that were kept

    def predict(images: Split) -> Predictions:
        network, image, inputs = before_noise(model, run.image, images, folder)
        logits = mc_logits(network, inputs, image, samples, seed, keep_dropout=run.masks)
        return _predictions(run, logits, images)

    return finish(run, predict)


def check_gate(run: Run, data: Split, novelty: NoveltyPromise) -> None:
    """Reject features that do not exist, and a level that so few images cannot keep."""
    features = run.features(novelty)
    layers = [Layer(name, 0) for name, value in run.build().named_parameters() if value.ndim > 1]
    features.layers(layers)
    if novelty.level is not None:
        reference = data if features.are_untrained(layers) else data.halves()[1]  # training images then fit the gate
        cutoff_for(len(reference.one_per_group()), novelty)


def _samples(run: Run, folder: str | Path, samples: int | None, tune: Rates, posterior: PostHoc | None) -> int:
    """The number of passes; rejects rates that cannot be tuned."""
    if tune is not Rates.FIXED and not run.recipe.family.learns_rates:
        raise UsageError(
            f"--rates needs Gaussian dropout, which {folder} does not have. Leave --rates out.", "rates.unsupported"
        )
    if tune is Rates.FITTED:
        rule, remedy = "fixed, model or layer", "A rate is fitted by: uce-edge train --rates fitted"
        raise UsageError(expected("`rates`", rule, str(tune), remedy))
    if posterior is PostHoc.LAPLACE:
        if tune is not Rates.FIXED:
            raise UsageError("A Laplace posterior has no dropout rates: leave --rates out.", "rates.unsupported")
        return samples or DRAWS
    if run.recipe.dropout is Dropout.NONE:
        return 1  # all passes are the same
    return 25 if samples is None else samples


def _fitted(run: Run, folder: str | Path, data: Split, settings: Settings) -> Run:
    """The run with a map, and better rates if found."""
    method, samples, seed = settings.method, settings.samples, settings.seed
    model, image, data = before_noise(load_model(run, folder), run.image, data, folder)
    if settings.tune is Rates.FIXED:  # a better rate may mend what too much noise spoils
        remedy = "Train longer, or with less noise: a smaller --p, or --noisy tail for the last layers only."
        early_look.refuse_chance(
            data, samples, lambda some, n: mc_logits(model, some, image, n, seed, keep_dropout=run.masks), remedy
        )
    calibration = fit(model, image, data, method, samples, seed, keep_dropout=run.masks)
    if settings.tune is not Rates.FIXED:
        tune_rates(model, image, data, settings.tune, method, seed)
        tuned = fit(model, image, data, method, samples, seed)
        # Few passes per step guide the search; the passes that ship decide.
        before = calibration.outcome
        kept = tuned.outcome.nll_after < before.nll_after
        chosen = tuned if kept else calibration
        report = replace(
            chosen.outcome, nll_before=before.nll_before, accuracy_before=before.accuracy_before, rates_tuned=kept
        )
        calibration = replace(chosen, report=report)
        run = replace(run, tuned_rates=learned_rates.current(model) if kept else None)
    return replace(run, calibration=calibration)


def _calibrate_laplace(
    run: Run,
    folder: str | Path,
    dataset: Dataset,
    data: Split,
    settings: Settings,
    finish: Callable[[Run, _Predict], Run],
) -> Run:
    """Fit a Laplace posterior, and a map to its draws."""
    from uce_edge_train import run_posterior  # the other calibrations need no ONNX

    model, samples, seed = load_model(run, folder), settings.samples, settings.seed
    trained_on = dataset.splits["train"]
    if trained_on.sha256() != run.split_hashes["train"]:
        raise UsageError(
            f"The training images of {dataset.name} are not those that this run was trained on. Train again, or "
            "restore the data.",
            "split.changed",
        )
    stored = open_features(model, run.image, folder)
    if stored is None and run.recipe.seam is not None:
        stored = open_features(model, run.image, folder, run.recipe.seam)
    network, image, of = (model, run.image, _same) if stored is None else (stored.tail, stored.spec, stored.as_images)
    inputs = run_posterior.Inputs(image, of(trained_on), of(data))
    with run_posterior.fitted(network, run.class_names, inputs, settings.prior, samples) as (drawn, file):
        logits = logits_of(file, inputs.held_out.images, samples, seed)
        calibration = fit_map(settings.method, logits, data.labels, seed)
        run_posterior.store(drawn, model, folder)
        run = replace(run, calibration=calibration, laplace=drawn.fit)
        return finish(run, lambda images: _predictions(run, logits_of(file, of(images).images, samples, seed), images))


def _same(data: Split) -> Split:
    return data


def _predictions(run: Run, logits: Logits, images: Split) -> Predictions:
    """Calibrated predictions."""
    p = probabilities(run.calibration, logits)
    uncertainty, confidence = (values.astype(np.float32) for values in (normalized_entropy(p), p.max(-1)))
    labels = p.argmax(-1)
    return Predictions(uncertainty, confidence, labels != images.labels, labels.astype(np.int32))


def _stored(
    cache: Cache,
    promise: Promise | None,
    novelty: NoveltyPromise | None,
    sets: SetPromise | None,
    held_out: Split | None,
    run: Run,
    predict: _Predict,
) -> Run:
    """Save the run, then try to prove the promise.

    The map is kept even if the promise fails.
    """
    run = replace(run, promise=None, novelty=novelty, sets=sets)
    run.save(cache.folder)
    if not cache.has_map(run):
        cache.store(run)
    if promise is None or held_out is None:
        return run
    predicted = predict(held_out)
    assert predicted is not None
    cache.store(run, predicted, held_out)
    score = predicted.uncertainty
    if promise.score is RejectBy.CONFIDENCE:
        score = inverse_confidence(predicted.confidence[:, None])
    try:
        found = fitting.find_limits(score, predicted.wrong, predicted.class_ids, promise, run.class_names)
        _report_rejected_classes(run.class_names, found)
    except NoGuaranteeError as error:
        counted = "" if held_out.groups is None else f" {ONE_EACH}"
        kept = f"{error}{counted} The fitted map is kept in {cache.folder}, without a promise."
        raise NoGuaranteeError(kept, error.curve, promise.score) from error
    run = replace(run, promise=promise)
    run.save(cache.folder)
    return run


def _report_rejected_classes(classes: Sequence[str], found: fitting.Found) -> None:
    for name, limit, promised in zip(classes, found.limits, found.known.get("classes", ()), strict=False):
        if limit < 0:
            _log.info(
                "The label %s will always be rejected: its %d guarantee images cannot prove an error of at most %g.",
                name, promised.images, promised.target_error,
            )  # fmt: skip


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
    """Fit a map to a network's Monte Carlo logits.

    `keep_dropout` is that of `mc_blocks`.
    """
    logits = mc_logits(model, data, image, samples, seed, keep_dropout=keep_dropout)
    return fit_map(method, logits, data.labels, seed)


def tune_rates(model: nn.Module, image: ImageSpec, data: Split, tune: Rates, method: Method, seed: int) -> None:
    """Minimise the NLL over the dropout rates, in place.

    The parameters of the map move along, so that rates are found that suit the calibrated network. The rates are the
    mean over the second half of the steps.
    """
    learned = learned_rates.learn(model, tune)
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
            learned_rates.keep_in_bounds(learned)
            if step >= _TUNING_STEPS // 2:
                path.append([value.detach().clone() for value in learned])
            advance(1)
    with torch.no_grad():
        for value, history in zip(learned, zip(*path, strict=True), strict=True):
            value.copy_(torch.stack(history).mean())
    learned_rates.settle(model)


def _averaged_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """As `maps.averaged_nll`, with gradients."""
    log_true = torch.log_softmax(logits, -1)[:, torch.arange(len(labels)), labels]
    log_mean: Tensor = torch.logsumexp(log_true, 0) - math.log(len(logits))
    return -log_mean.mean()
