"""The training loop: maximum likelihood under Gaussian dropout, one noise draw per image and step."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.files import writable_folder
from uce_edge.metadata import ImageSpec
from uce_edge.progress import progress
from uce_edge_train.data import Dataset, Split
from uce_edge_train.layers import deterministic
from uce_edge_train.runs import Run, save_weights, tool_versions


def normalise(images: Tensor, spec: ImageSpec) -> Tensor:
    """Pixels [n, h, w, c] -> normalised float32 [n, c, h, w], as the exported graph does it."""
    mean, std = torch.tensor(spec.mean), torch.tensor(spec.std)
    return ((images.float() / spec.scale - mean) / std).permute(0, 3, 1, 2).contiguous()


def augment(images: Tensor, pixels: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Move every image of a batch by its own offset of up to `pixels`, reflecting at the border; mirror half."""
    if flip:
        mirrored = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
        images = torch.where(mirrored, images.flip(3), images)
    if pixels == 0:
        return images
    batch, _, height, width = images.shape
    padded = nn.functional.pad(images, [pixels] * 4, mode="reflect")
    top, left = torch.randint(0, 2 * pixels + 1, (2, batch), generator=generator)
    rows = (top[:, None] + torch.arange(height))[:, :, None]
    columns = (left[:, None] + torch.arange(width))[:, None, :]
    index = torch.arange(batch)[:, None, None]
    return padded.permute(0, 2, 3, 1)[index, rows, columns].permute(0, 3, 1, 2)


def train(
    dataset: Dataset,
    out: str | Path,
    *,
    arch: str = "resnet8",
    p: float = 0.2,
    epochs: int = 20,
    batch_size: int = 64,
    learning_rate: float = 1e-2,
    seed: int = 0,
    shift: int | None = None,
    flip: bool = False,
) -> Run:
    """Train a Gaussian-dropout network and write the run to `out`.

    Args:
        dataset: The images; only their `train` split is fitted.
        out: The run's folder.
        arch: See `architectures.build`.
        p: Gaussian dropout rate.
        epochs: Passes over the training images.
        batch_size: Images per step.
        learning_rate: Peak of the one-cycle schedule.
        seed: Seed of weights, order, augmentation and noise.
        shift: Training images move by up to this many pixels; None for an eighth of their width.
        flip: Mirror half of the training images.

    Returns:
        The description of the run, as saved.
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size)):
        if value < 1:
            raise UsageError(expected(f"`{name}`", "at least 1", value, f"As in --{name.replace('_', '-')} 20"))
    height, width, _ = dataset.image_shape
    shift = width // 8 if shift is None else shift
    if not 0 <= shift < min(height, width):
        raise UsageError(expected("`shift`", f"0 to {min(height, width) - 1} pixels", shift, "As in --shift 2"))
    if not 0 < learning_rate < math.inf:
        raise UsageError(expected("`learning_rate`", "positive", learning_rate, "For example: --learning-rate 0.003"))
    mean, std = _moments(dataset.splits["train"].images)
    run = Run(
        data=dataset.name,
        root=dataset.root,
        arch=arch,
        p=p,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
        shift=shift,
        flip=flip,
        class_names=dataset.class_names,
        image=ImageSpec(
            *dataset.image_shape,
            mean=mean,
            std=std,
        ),
        split_hashes=dataset.hashes(),
        tools=tool_versions(),
    )
    torch.manual_seed(seed)
    model = run.build()
    writable_folder(out)  # an hour of training must not end at a full or forbidden disk
    loss = _optimise(model, run, dataset.splits["train"])
    save_weights(model, out)
    accuracy = _accuracy(model, run, dataset.splits["calibration"])
    run = replace(run, metrics={"train_nll_last_epoch": round(loss, 4), "held_out_accuracy": round(accuracy, 4)})
    run.save(out)
    return run


def _moments(images: npt.NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of pixels in [0, 1], from histograms: no copy of the images is made."""
    means, deviations = [], []
    values = np.arange(256) / 255
    for channel in range(images.shape[-1]):
        weights = np.bincount(images[..., channel].ravel(), minlength=256) / images[..., channel].size
        mean = float(weights @ values)
        means.append(round(mean, 4))
        deviations.append(round(float(np.sqrt(weights @ (values - mean) ** 2)), 4))
    if min(deviations) == 0:
        raise UsageError("The training images are all of one colour: there is nothing to learn from. Check --data.")
    return tuple(means), tuple(deviations)


def _optimise(model: nn.Module, run: Run, data: Split) -> float:
    """AdamW with a one-cycle schedule; returns the mean loss of the last epoch."""
    generator = torch.Generator().manual_seed(run.seed)
    images, labels = normalise(torch.from_numpy(data.images), run.image), torch.from_numpy(data.labels)
    steps = max(1, len(labels) // run.batch_size)  # the last, smaller batch of an epoch is left out
    optimiser = torch.optim.AdamW(model.parameters(), lr=run.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=run.learning_rate, total_steps=steps * run.epochs)
    model.train()
    mean_loss = math.nan
    with progress("training", total=run.epochs * steps) as advance:
        for epoch in range(run.epochs):
            losses = []
            order = torch.randperm(len(labels), generator=generator)
            for batch in torch.split(order[: steps * run.batch_size], run.batch_size):
                loss = nn.functional.cross_entropy(
                    model(augment(images[batch], run.shift, run.flip, generator)), labels[batch]
                )
                if not torch.isfinite(loss):
                    raise UceEdgeError(
                        f"The loss became {loss.item()} in epoch {epoch + 1}; nothing was saved. "
                        f"Try a smaller --learning-rate than {run.learning_rate} or a smaller --p than {run.p}."
                    )
                optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                schedule.step()
                losses.append(loss.item())
                advance(1)
            mean_loss = float(np.mean(losses))
    model.eval()
    return mean_loss


def _accuracy(model: nn.Module, run: Run, data: Split) -> float:
    """Accuracy of the network without noise on images it was not trained on."""
    pixels = normalise(torch.from_numpy(data.images), run.image)
    with torch.no_grad(), deterministic(model):
        labels = torch.cat([model(batch).argmax(-1) for batch in torch.split(pixels, 256)])
    return float((labels == torch.from_numpy(data.labels)).double().mean())
