"""The training loop: maximum likelihood under dropout.

Every image and step has one noise draw.

All randomness of an epoch comes from the seed, the epoch and the rank of the process, so a training that
resumes from a checkpoint repeats the uninterrupted one.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from uce_edge._util.atomic_files import writable_folder
from uce_edge._util.progress import progress
from uce_edge.datasets import overlap
from uce_edge.datasets.splits import Dataset, Split
from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.metadata import ImageSpec
from uce_edge_train.choices import Arithmetic, Dropout, Schedule, TrainDevice
from uce_edge_train.data import mixup
from uce_edge_train.data.augmentation import Augmentation
from uce_edge_train.data.pixel_scaling import channel_statistics, normalise
from uce_edge_train.dropout import learned_rates, torch_dropout
from uce_edge_train.dropout.gaussian_layers import deterministic, noise_from
from uce_edge_train.dropout.noise_draws import NoisePool, generator
from uce_edge_train.loop.checkpoint import CHECKPOINT, COLUMNS, Training
from uce_edge_train.loop.journal import Journal, open_journal
from uce_edge_train.loop.process_group import Group, join
from uce_edge_train.networks import parameter_groups, pretrained
from uce_edge_train.recipe import Recipe
from uce_edge_train.runs import Run, TrainingScores, save_weights, tool_versions

_log = logging.getLogger(__name__)
_PLATEAU = 10  # epochs without a lower training NLL before the learning rate falls, as in the authors' code


def train(
    dataset: Dataset,
    out: str | Path,
    recipe: Recipe = Recipe(),
    *,
    device: TrainDevice = TrainDevice.AUTO,
    resume: bool = False,
    tensorboard: bool = False,
) -> Run:
    """Train a network and write the run to `out`.

    Started by `torchrun`, several processes share every batch.

    Args:
        dataset: The images; only their `train` split is fitted. The `calibration` split is watched for the log and
            for early stopping; the others are not looked at.
        out: The run's folder.
        recipe: How the network is trained.
        device: Where it is trained.
        resume: Continue from the checkpoint in `out`, if there is one.
        tensorboard: Also write TensorBoard's event files (`pip install "uce-edge[tensorboard]"`).

    Returns:
        The description of the run, as saved.
    """
    out = Path(out)
    mean, std = channel_statistics(dataset.splits["train"].images)
    image = ImageSpec(*dataset.image_shape, mean=mean, std=std, range=dataset.gray.range, resize=dataset.resize)
    augment = recipe.augmentation(image)
    model = recipe.build(len(dataset.class_names), image.channels)
    hashes = dataset.hashes()
    with join(device) as group:
        if recipe.batch_size % group.size:
            rule = f"a multiple of the {group.size} processes"
            raise UsageError(expected("`batch_size`", rule, recipe.batch_size, "The processes share every batch"))
        if recipe.precision is Arithmetic.FLOAT16 and group.device.type != "cuda":
            rule = "float32 or bfloat16 without CUDA"
            raise UsageError(expected("`precision`", rule, "float16", "Use --precision bfloat16"))
        resumes = resume and (out / CHECKPOINT).exists()
        if recipe.init is not None and not resumes:
            summary = pretrained.begin(model, recipe.init, recipe.arch)
            _log.log(logging.INFO if group.leads else logging.DEBUG, summary)
        held = parameter_groups.freeze(model, recipe.freeze)
        writable_folder(out)  # an hour of training must not end at a full or forbidden disk
        model = model.to(group.device)
        if recipe.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        learned = learned_rates.learn(model, recipe.rates)
        training = Training(model, recipe.optimiser_for(model, learned), learned, held=held)
        if resumes:
            training.load(out, recipe, hashes["train"])
        if group.from_leader([training.progress.epoch]) != [training.progress.epoch]:
            raise UsageError(
                f"The processes see different checkpoints. Put --out ({out}) where all machines see it.",
                "checkpoint.not-shared",
            )
        with open_journal(out, recipe.epochs, tensorboard and group.leads, training.progress.epoch) as journal:
            _Loop(training, recipe, augment, image, dataset, hashes["train"], group, out, journal).run()
        if training.best:
            training.take(training.best)
        model = model.to("cpu").eval()
        last = training.progress.log[(training.progress.best_epoch if training.best else 0) - 1]
        run = Run(
            data=dataset.name,
            root=dataset.root,
            recipe=recipe,
            class_names=dataset.class_names,
            image=image,
            split_hashes=hashes,
            trained_on=overlap.union(
                [overlap.sketch(dataset.splits["train"].images), pretrained.trained_on(recipe.init)]
            ),
            rates=learned_rates.settle(model),
            metrics=TrainingScores(
                epochs=last["epoch"],
                train_nll=last["train_nll"],
                held_out_nll=last["held_out_nll"],
                held_out_accuracy=last["held_out_accuracy"],
            ),
            group=dataset.group,
            tools=tool_versions() | {"device": str(group.device), "processes": str(group.size)},
        )
        if group.leads:
            save_weights(model, out)
            run.save(out)
            (out / CHECKPOINT).unlink(missing_ok=True)
    return run


class _Loop:
    """One training in one process."""

    def __init__(
        self,
        training: Training,
        recipe: Recipe,
        augment: Augmentation,
        image: ImageSpec,
        dataset: Dataset,
        data_hash: str,
        group: Group,
        out: Path,
        journal: Journal,
    ) -> None:
        self.training, self.recipe, self.image, self.group = training, recipe, image, group
        self.augment, self.out, self.journal = augment, out, journal
        self.held_out = dataset.splits["calibration"]
        data = dataset.splits["train"]
        self.data_hash = data_hash
        self.pixels, self.labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
        # The last, smaller batch of an epoch is left out; a set smaller than a batch is one batch.
        self.batch = min(recipe.batch_size, len(self.labels) // group.size * group.size)
        self.steps = len(self.labels) // self.batch
        self.learning_rate = recipe.learning_rate
        self.scaler = torch.amp.GradScaler(group.device.type, enabled=recipe.precision is Arithmetic.FLOAT16)
        if training.progress.scaler:
            self.scaler.load_state_dict(training.progress.scaler)

    def run(self) -> None:
        """Train the remaining epochs."""
        state, recipe = self.training.progress, self.recipe
        parallel = self.group.wrap(self.training.model)
        with progress("training", total=recipe.epochs * self.steps, shown=self.group.leads) as advance:
            advance(state.epoch * self.steps)
            while state.epoch < recipe.epochs and not self._stalled():
                started = time.monotonic()
                nll = self._epoch(parallel, advance)
                held_out = self.group.from_leader(self._held_out() if self.group.leads else [0.0, 0.0])
                if not np.isfinite(held_out[0]):  # the last step broke the weights: the checkpoint before it is good
                    raise self._diverged(held_out[0])
                state.epoch += 1
                self._note(nll, held_out, time.monotonic() - started)
                if self.group.leads:
                    state.scaler = self.scaler.state_dict()
                    self.training.save(self.out, recipe, self.data_hash)

    def _held_out(self) -> list[float]:
        return list(evaluate(self.training.model, self.image, self.held_out, self.recipe.judged))

    def _stalled(self) -> bool:
        state, patience = self.training.progress, self.recipe.patience
        return patience is not None and state.epoch - state.best_epoch >= patience

    def _note(self, nll: float, held_out: list[float], seconds: float) -> None:
        """Update log, best weights and schedule after an epoch."""
        state = self.training.progress
        plain = 0.0 if self.recipe.dropout is Dropout.NONE else self.recipe.p
        current = list(learned_rates.current(self.training.model).values()) or [plain]
        rate, mean_p = float(f"{self.learning_rate:.6g}"), round(sum(current) / len(current), 6)
        scores = (round(value, 6) for value in (nll, *held_out))
        state.log.append(dict(zip(COLUMNS, (state.epoch, rate, *scores, mean_p, round(seconds, 3)), strict=True)))
        if held_out[0] < state.best_nll:
            state.best_nll, state.best_epoch = held_out[0], state.epoch
            if self.recipe.patience is not None:
                self.training.best = {name: value.clone() for name, value in self.training.weights().items()}
        lowest = min(state.log, key=lambda row: row["train_nll"])["epoch"]
        if (
            self.recipe.schedule is Schedule.PLATEAU
            and state.epoch - max(lowest, state.last_reduction) >= _PLATEAU
        ):
            state.reductions, state.last_reduction = state.reductions + 1, state.epoch
        if self.group.leads:
            self.journal.add(state.log)

    def _epoch(self, parallel: nn.Module, advance: Callable[[int], None]) -> float:
        """One pass over the training images; returns its mean NLL."""
        recipe, group, epoch = self.recipe, self.group, self.training.progress.epoch
        order = torch.randperm(len(self.labels), generator=generator("cpu", recipe.seed, epoch, 0))
        mine = generator("cpu", recipe.seed, epoch, 1 + group.rank)
        on_device = mine if group.device.type == "cpu" else generator(group.device, recipe.seed, epoch, 1 + group.rank)
        # A processor draws normal numbers slowly, a graphics card does not.
        noise = NoisePool(mine) if group.device.type == "cpu" else on_device
        self.training.learn()
        total = torch.zeros((), dtype=torch.float32, device=group.device)
        with noise_from(self.training.model, noise):
            for step in range(self.steps):
                batch = group.share(order[step * self.batch : (step + 1) * self.batch])
                share = (epoch + step / self.steps) / recipe.epochs
                self._set_learning_rate(recipe.learning_rate_at(share, self.training.progress.reductions))
                total += self._step(parallel, batch, mine, noise)
                advance(1)
        self.training.model.eval()
        return float(group.mean(total)) / self.steps

    def _step(
        self, parallel: nn.Module, batch: Tensor, source: torch.Generator, noise: NoisePool | torch.Generator
    ) -> Tensor:
        """One optimiser step; returns the NLL of the batch."""
        recipe, group, training = self.recipe, self.group, self.training
        images = normalise(self.pixels[batch].to(group.device), self.image)
        images = self.augment(images, source)
        blend = mixup.draw(recipe.mixup, len(images), source) if recipe.mixup else None
        images = images if blend is None else blend.images(images)
        layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        images = images.contiguous(memory_format=layout)
        mixed = recipe.precision is not Arithmetic.FLOAT32
        kind = torch.float16 if recipe.precision is Arithmetic.FLOAT16 else torch.bfloat16
        with torch.autocast(group.device.type, dtype=kind, enabled=mixed), torch_dropout.training_with(noise):
            logits = parallel(images)
        loss, nll = recipe.loss(logits, self.labels[batch].to(group.device), blend)
        seen = group.mean(loss.detach().clone())  # of all processes, so that all stop together
        if not torch.isfinite(seen):
            raise self._diverged(seen.item())
        loss = loss + learned_rates.prior(training.model, len(self.labels))
        training.optimiser.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if training.learned_rates and group.size > 1:  # they are no parameters of the wrapped model
            gradients = group.mean(torch.stack([rate.grad for rate in training.learned_rates if rate.grad is not None]))
            for rate, gradient in zip(training.learned_rates, gradients, strict=True):
                rate.grad = gradient
        if recipe.clip is not None:
            self.scaler.unscale_(training.optimiser)
            nn.utils.clip_grad_norm_(training.model.parameters(), recipe.clip)
        self.scaler.step(training.optimiser)
        self.scaler.update()
        learned_rates.keep_in_bounds(training.learned_rates)
        return nll.detach()

    def _set_learning_rate(self, value: float) -> None:
        self.learning_rate = value
        for group in self.training.optimiser.param_groups:
            group["lr"] = value * group["factor"]

    def _diverged(self, loss: float) -> UceEdgeError:
        recipe, done = self.recipe, self.training.progress.epoch
        kept = (
            f"{self.out / CHECKPOINT} holds the end of epoch {done}. Continue from it with --resume and"
            if done
            else "No epoch was finished. Start again with"
        )
        return UceEdgeError(
            f"The loss became {loss} in epoch {done + 1}. {kept} a smaller --learning-rate than "
            f"{recipe.learning_rate}, or --clip 1; a smaller --p than {recipe.p} needs a new start.",
            "training.diverged",
            epoch=done + 1,
            kept=done,
        )


def evaluate(
    model: nn.Module, image: ImageSpec, data: Split, judged: Callable[[Tensor], Tensor] = Tensor.float
) -> tuple[float, float]:
    """NLL and accuracy of the network without noise."""
    device = next(model.parameters()).device
    nll, right = 0.0, 0
    with torch.no_grad(), deterministic(model):
        for start in range(0, len(data), 256):
            pixels = torch.from_numpy(data.images[start : start + 256]).to(device)
            labels = torch.from_numpy(data.labels[start : start + 256]).to(device)
            logits = judged(model(normalise(pixels, image)))
            nll += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
            right += int((logits.argmax(-1) == labels).sum())
    return nll / len(data), right / len(data)
