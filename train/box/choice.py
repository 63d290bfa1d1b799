"""Compares recipes on calibration images alone, as they are and damaged."""

from collections.abc import Sequence

import numpy as np

from uce_edge.calibration.maps import averaged_nll
from uce_edge.corruptions import KINDS, corrupt
from uce_edge.datasets.splits import Split
from uce_edge_train.passes import mc_blocks
from uce_edge_train.runs import Run, load_model, members_of

_SEVERITIES = (1, 2, 3)


def compare_recipes(folders: Sequence[str]) -> None:
    """Print the NLL of every ensemble and of its first member alone.

    Nothing is calibrated, so that all calibration images count. The damage stands for machines that differ.
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
