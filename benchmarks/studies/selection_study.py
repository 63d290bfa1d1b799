"""Which images may choose epoch and rate? Chest X-rays, patients as groups; prints the table of docs/transfer.md.

    python benchmarks/studies/selection_study.py --data ../shared/data/chest_xray --work build/selection

EfficientNet-Lite0 with ImageNet weights at 112x112; the last block and the head are trained on stored outputs of the
blocks before, as by `uce-edge train --backbone`. Every split divides the patients anew: a tenth is the calibration
images, a tenth another held-out part, a third the test images. Epoch and rate are chosen on the calibration images,
which fit the temperature, or on another part of the training images, which may then train the tail with the others.
Answers that are there are kept.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from uce_edge.calibration.maps import fit_map, probabilities
from uce_edge.contract import Method
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Split
from uce_edge_train.choices import Rates, Unfreeze
from uce_edge_train.data.features import Changes, Features, Views, open_features
from uce_edge_train.dropout.gaussian_layers import deterministic, noise_from
from uce_edge_train.dropout.monte_carlo import mc_logits
from uce_edge_train.loop import rate_fit
from uce_edge_train.loop.feeds import Stored
from uce_edge_train.loop.training import evaluate
from uce_edge_train.networks import backbones, parameter_groups, pretrained
from uce_edge_train.networks import seam as seams
from uce_edge_train.recipe import Recipe

SIZE, SEAM, VIEWS, PASSES = 112, "blocks.15", 4, 25
SCHEMES = {
    "same": "the calibration images",
    "other": "a sixth of the training images",
    "again": "the same sixth; then all training images train the tail again",
}


def recipe() -> Recipe:
    """That of the backbone, with a shorter tail."""
    chosen = backbones.named("efficientnet-lite0").recipe()
    return Recipe(**chosen | {"seam": SEAM, "unfreeze": Unfreeze.TAIL, "rates": Rates.FITTED, "views": VIEWS})


def opened(data: Path, work: Path) -> tuple[torch.nn.Module, Features, Split, list[np.ndarray]]:
    """The network, and stored features of all X-rays."""
    backbone, how = backbones.named("efficientnet-lite0"), recipe()
    dataset = splits.load(str(data / "labels.csv"), size=(SIZE, SIZE), group="group", resize=backbone.image.resize)
    parts = list(dataset.splits.values())
    join = lambda values: np.concatenate(list(values))  # noqa: E731
    # Groups are numbered over the whole manifest.
    whole = Split(join(p.images for p in parts), join(p.labels for p in parts), join(p.groups for p in parts))
    channels = dataset.image_shape[2]
    mean, std = (sum(how.mean) / len(how.mean),), (sum(how.std) / len(how.std),)
    image = replace(backbone.image, height=SIZE, width=SIZE, channels=channels, mean=mean, std=std)
    torch.manual_seed(0)
    model = how.build(2, channels)
    pretrained.begin(model, how.init, how.arch)
    features = open_features(model, image, work, SEAM)
    changes = Changes(how.augmentation(image), 0)
    with deterministic(model):
        views = [features.view(whole, number, changes) for number in range(VIEWS)]
    return model, features, whole, views


def divided(whole: Split, seed: int) -> dict[str, np.ndarray]:
    """Indices of the parts; no patient is in two."""
    known, unit = np.unique(whole.groups, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(known))
    ends = np.round(np.cumsum([0.1, 0.1, 0.3, 0.5]) * len(known)).astype(int)[:-1]
    named = zip(("calibration", "selection", "test", "train"), np.split(order, ends), strict=True)
    return {name: np.flatnonzero(np.isin(unit, chosen)) for name, chosen in named}


def trained(model, features, whole, views, fitted, watched, seed, again=False) -> tuple[Stored, rate_fit.Fitted]:
    """Train a tail; epoch and rate are those that the watched images choose.

    With `again`, it is trained once more, on the watched images, too.
    """
    begin = {name: value.clone() for name, value in model.state_dict().items()}
    how = replace(recipe(), seed=seed)
    parameter_groups.thaw(model, seams.weights_behind(model, SEAM), Unfreeze.TAIL)
    held_out = replace(whole.take(watched), images=np.asarray(views[0][watched]))
    feed = fed(features, whole, views, fitted, held_out)

    def epochs(feed: Stored, count: int, rate: float, p: float | None, until: int | None = None) -> tuple[dict, int]:
        labels = feed.labels
        short, source = replace(how, learning_rate=rate), torch.Generator().manual_seed(seed)
        optimiser = short.optimiser_for(model, [])
        best, lowest, last, steps = {}, np.inf, 0, len(labels) // how.batch_size
        for epoch in range(count if until is None else until):
            order = torch.randperm(len(labels), generator=source)
            with deterministic(model) if p is None else noise_from(model, source):
                for step in range(steps):
                    share = (epoch + step / steps) / count
                    for group in optimiser.param_groups:
                        group["lr"] = short.learning_rate_at(share, 0) * group["factor"]
                    batch = order[step * how.batch_size : (step + 1) * how.batch_size]
                    loss, _ = how.loss(feed.network(feed.take(batch, source, torch.device("cpu"))), labels[batch])
                    optimiser.zero_grad(set_to_none=True)
                    loss.backward()
                    optimiser.step()
            if p is None and until is None:
                nll, _ = evaluate(feed.network, feed.image, held_out, tempered=True)
                if nll < lowest:
                    best, lowest = {k: v.clone() for k, v in feed.network.state_dict().items()}, nll
                    last = epoch + 1
                if epoch + 1 - last >= how.patience:
                    break
        return best, last

    best, last = epochs(feed, how.epochs, how.learning_rate, None)
    feed.network.load_state_dict(best)
    found = rate_fit.fit(feed, seed, lambda p: epochs(feed, 1, how.learning_rate / 10, p) and None)
    if again:
        model.load_state_dict(begin)
        feed = fed(features, whole, views, np.sort(np.concatenate([fitted, watched])), held_out)
        epochs(feed, how.epochs, how.learning_rate, None, until=last)
        rate_fit.set_rate(feed.network, found.p)
        if found.trained:
            epochs(feed, 1, how.learning_rate / 10, found.p)
    return feed, found


def fed(features, whole, views, fitted, held_out) -> Stored:
    """The views of some training images."""
    labels = torch.from_numpy(whole.labels[fitted])
    return Stored(features.tail, features.spec, held_out, labels, Views([view[fitted] for view in views]))


def judged(feed: Stored, whole: Split, views, fitted_on, test) -> dict[str, float]:
    """Fit a temperature, and compare its own expected error with the test images."""
    take = lambda index: replace(whole.take(index), images=np.asarray(views[0][index]))  # noqa: E731
    calibration, judge = take(fitted_on), take(test)
    logits = mc_logits(feed.network, calibration, feed.image, PASSES, 0)
    fitted = fit_map(Method.TEMPERATURE, logits, calibration.labels, 0)
    p = probabilities(fitted, mc_logits(feed.network, judge, feed.image, PASSES, 0))
    wrong = p.argmax(-1) != judge.labels
    return {
        "error": float(wrong.mean()),
        "expected": float(1 - p.max(-1).mean()),
        "nll": float(-np.log(np.clip(p[np.arange(len(wrong)), judge.labels], 1e-12, 1)).mean()),
        "calibration_error": 1 - fitted.outcome.accuracy_after,
    }


def main() -> None:
    """Make what is missing, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=8)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    model, features, whole, views = opened(arguments.data, arguments.work)
    begin = {name: value.clone() for name, value in model.state_dict().items()}
    kept = arguments.work / "answers.json"
    answers = json.loads(kept.read_text()) if kept.exists() else {}
    for seed in range(arguments.splits):
        parts = divided(whole, seed)
        for scheme in SCHEMES:
            name = f"{scheme}-{seed}"
            if name in answers:
                continue
            model.load_state_dict(begin)
            watched = parts["calibration"] if scheme == "same" else parts["selection"]
            fitted = np.concatenate([parts["train"], parts["selection"]]) if scheme == "same" else parts["train"]
            again = scheme == "again"
            feed, found = trained(model, features, whole, views, np.sort(fitted), watched, seed, again)
            answers[name] = judged(feed, whole, views, parts["calibration"], parts["test"]) | {"p": found.p}
            kept.write_text(json.dumps(answers, indent=1))
            print(name, answers[name], flush=True)
    print("| chosen by | splits | error | expected by itself | NLL |\n| --- | --- | --- | --- | --- |")
    for scheme, words in SCHEMES.items():
        rows = [answer for name, answer in answers.items() if name.startswith(scheme)]
        error, expected, nll = (np.mean([row[key] for row in rows]) for key in ("error", "expected", "nll"))
        print(f"| {words} | {len(rows)} | {error:.1%} | {expected:.1%} | {nll:.3f} |")


if __name__ == "__main__":
    main()
