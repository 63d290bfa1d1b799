"""The training loop: maximum likelihood under Gaussian dropout, one noise draw per image and step."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from uce_edge.contract import ImageSpec
from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.files import writable_folder
from uce_edge.progress import progress
from uce_edge_train.data import Dataset, Split
from uce_edge_train.runs import Run, save_weights, tool_versions


def normalise(images: Tensor, spec: ImageSpec) -> Tensor:
    """Pixels [n, h, w, c] -> normalised float32 [n, c, h, w], as the exported graph does it."""
    mean, std = torch.tensor(spec.mean), torch.tensor(spec.std)
    return ((images.float() / spec.scale - mean) / std).permute(0, 3, 1, 2).contiguous()


def shift(images: Tensor, pixels: int, generator: torch.Generator) -> Tensor:
    """Move every image of a batch by its own offset of up to `pixels`, reflecting at the border."""
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
) -> Run:
    """Train a Gaussian-dropout network and write the run to `out`.

    Returns:
        The description of the run, as saved.
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size)):
        if value < 1:
            raise UsageError(expected(f"`{name}`", "at least 1", value, "The defaults suit the digits"))
    if not 0 < learning_rate < math.inf:
        raise UsageError(expected("`learning_rate`", "positive", learning_rate, "For example: --learning-rate 0.003"))
    pixels = dataset.splits["train"].images / 255.0
    run = Run(
        data=dataset.name,
        arch=arch,
        p=p,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
        class_names=dataset.class_names,
        image=ImageSpec(
            *dataset.image_shape,
            mean=tuple(round(float(value), 4) for value in pixels.mean(axis=(0, 1, 2))),
            std=tuple(round(float(value), 4) for value in pixels.std(axis=(0, 1, 2))),
        ),
        split_hashes=dataset.hashes(),
        tools=tool_versions(),
    )
    torch.manual_seed(seed)
    model = run.build()
    writable_folder(out)  # an hour of training must not end at a full or forbidden disk
    loss = _optimise(model, run, dataset.splits["train"])
    save_weights(model, out)
    run = replace(run, metrics={"train_nll_last_epoch": round(loss, 4)})
    run.save(out)
    return run


def _optimise(model: nn.Module, run: Run, data: Split) -> float:
    """AdamW with a one-cycle schedule; returns the mean loss of the last epoch."""
    generator = torch.Generator().manual_seed(run.seed)
    images, labels = normalise(torch.from_numpy(data.images), run.image), torch.from_numpy(data.labels)
    steps = max(1, len(labels) // run.batch_size)
    optimiser = torch.optim.AdamW(model.parameters(), lr=run.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=run.learning_rate, total_steps=steps * run.epochs)
    model.train()
    mean_loss = math.nan
    with progress("training", total=run.epochs * steps) as advance:
        for epoch in range(run.epochs):
            losses = []
            order = torch.randperm(len(labels), generator=generator)
            for batch in torch.split(order[: steps * run.batch_size], run.batch_size):
                loss = nn.functional.cross_entropy(model(shift(images[batch], 1, generator)), labels[batch])
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
