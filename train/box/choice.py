"""Compare recipes and dropout rates on calibration images."""

from collections.abc import Sequence

import numpy as np

from uce_edge.calibration.maps import averaged_nll, fit_map, probabilities
from uce_edge.contract import Method
from uce_edge.datasets.splits import Split
from uce_edge.images.corruptions import KINDS, corrupt
from uce_edge.metrics import aurc, bootstrap_difference, nll
from uce_edge_train.choices import Dropout
from uce_edge_train.dropout.monte_carlo import mc_blocks, mc_logits
from uce_edge_train.runs import Run, load_model, members_of

_SEVERITIES = (1, 2, 3)
_PASSES = 25


def compare_recipes(folders: Sequence[str]) -> None:
    """Print the NLL of ensembles and of their first members.

    Nothing is calibrated, so all calibration images count. The damage simulates other machines.
    """
    print("| recipe | members | NLL | NLL of damaged images |\n| --- | --- | --- | --- |")
    for folder in folders:
        members = members_of(folder)
        runs = [Run.load(member) for member in members]
        models = [load_model(run, member) for run, member in zip(runs, members, strict=True)]
        data, image = runs[0].dataset().splits["calibration"], runs[0].image
        damaged = [Split(corrupt(data.images, kind, level), data.labels) for kind in KINDS for level in _SEVERITIES]
        logits = [
            np.concatenate([np.concatenate(list(mc_blocks(model, split, image, 1, 0)), axis=1) for model in models])
            for split in (data, *damaged)
        ]
        for count in sorted({1, len(models)}):
            clean, *others = (averaged_nll(of_split[:count], data.labels) for of_split in logits)
            print(f"| {folder} | {count} | {clean:.4f} | {np.mean(others):.4f} |", flush=True)


def compare_rates(folders: Sequence[str]) -> None:
    """Print NLL and AURC of runs with different p.

    Each has its own temperature; differences are to the first.
    """
    print("| run | p | NLL | AURC | NLL, difference | AURC, difference |\n| --- | --- | --- | --- | --- | --- |")
    reference = None
    for folder in folders:
        run = Run.load(folder)
        data = run.dataset().splits["calibration"]
        p = 0 if run.recipe.dropout is Dropout.NONE else run.recipe.p
        logits = mc_logits(load_model(run, folder), data, run.image, _PASSES if p else 1, 0)
        predicted = probabilities(fit_map(Method.TEMPERATURE, logits, data.labels), logits)
        reference = predicted if reference is None else reference
        values = [f"{metric(predicted, data.labels):.4f}" for metric in (nll, aurc)]
        changes = [bootstrap_difference(metric, predicted, reference, data.labels) for metric in (nll, aurc)]
        values += [f"{change.low:+.4f} to {change.high:+.4f}" for change in changes]
        print(f"| {folder} | {p:g} | {' | '.join(values)} |", flush=True)
