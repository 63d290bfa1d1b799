"""The training loop: maximum likelihood under dropout.

Every image and step has one noise draw.

All randomness of an epoch comes from the seed, the epoch and the rank of the process, so a training that
resumes from a checkpoint repeats the uninterrupted one.
"""

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from uce_edge._util.atomic_files import writable_folder
from uce_edge._util.progress import progress, working
from uce_edge.calibration.logits import ArrayLogits
from uce_edge.calibration.maps import fit_map
from uce_edge.contract import Method
from uce_edge.datasets import overlap
from uce_edge.datasets.splits import Dataset, Split
from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.metadata import ImageSpec
from uce_edge_train.choices import Arithmetic, Dropout, Rates, Schedule, TrainDevice, Unfreeze
from uce_edge_train.data import mixup, selection
from uce_edge_train.data.augmentation import Augmentation
from uce_edge_train.data.pixel_scaling import channel_statistics, normalise
from uce_edge_train.data.selection import Parts
from uce_edge_train.dropout import learned_rates, torch_dropout
from uce_edge_train.dropout.gaussian_layers import deterministic, noise_from
from uce_edge_train.dropout.noise_draws import NoisePool, generator
from uce_edge_train.loop import feeds, rate_fit
from uce_edge_train.loop.checkpoint import CHECKPOINT, COLUMNS, Training, stored
from uce_edge_train.loop.feeds import Feed
from uce_edge_train.loop.journal import Journal, kept_epoch, open_journal
from uce_edge_train.loop.process_group import Group, join
from uce_edge_train.networks import parameter_groups, pretrained
from uce_edge_train.networks import seam as seams
from uce_edge_train.recipe import Recipe
from uce_edge_train.runs import LayerChoice, Run, TrainingScores, save_weights, tool_versions

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
    features: str | Path | None = None,
) -> Run:
    """Train a network and write the run to `out`.

    Started by `torchrun`, several processes share every batch.

    Args:
        dataset: The images; only their `train` split is fitted. Where epoch, rate or layers are chosen, a part of it
            chooses them; elsewhere the `calibration` split is watched for the log. The others are not looked at.
        out: The run's folder.
        recipe: How the network is trained.
        device: Where it is trained.
        resume: Continue from the checkpoint in `out`, if there is one.
        tensorboard: Also write TensorBoard's event files (`pip install "uce-edge[tensorboard]"`).
        features: The folder whose stored features of a frozen trunk are used and added to, such as that of several
            trainings over one trunk; None for `out`.

    Returns:
        The description of the run, as saved.
    """
    out = Path(out)
    image = image_of(dataset, recipe)
    augment = recipe.augmentation(image)
    model = recipe.build(len(dataset.class_names), image.channels)
    hashes = dataset.hashes()
    parts = selection.part(dataset.splits["train"], selects=recipe.selects)
    with join(device) as group:
        if recipe.batch_size % group.size:
            rule = f"a multiple of the {group.size} processes"
            raise UsageError(expected("`batch_size`", rule, recipe.batch_size, "The processes share every batch"))
        rate_fit.check_processes(recipe.rates, group.size)
        if recipe.precision is Arithmetic.FLOAT16 and group.device.type != "cuda":
            rule = "float32 or bfloat16 without CUDA"
            raise UsageError(expected("`precision`", rule, "float16", "Use --precision bfloat16"))
        resumes = resume and (out / CHECKPOINT).exists()
        if recipe.init is not None and (recipe.repeats or not resumes):
            summary = pretrained.begin(model, recipe.init, recipe.arch)
            _log.log(logging.INFO if group.leads and not resumes else logging.DEBUG, summary)
        writable_folder(out)  # an hour of training must not end at a full or forbidden disk
        model = model.to(group.device)
        if recipe.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if parts.watched is not None and group.leads:
            _log.info(parts.summary())
        job = _Job(model, dataset, parts, image, augment, hashes, group, out, tensorboard, Path(features or out))
        start = {name: value.clone() for name, value in model.state_dict().items()} if recipe.repeats else {}
        stages = recipe.stages()
        reached = stored(out).recipe.unfreeze if resumes else None
        begun = next((number for number, stage in enumerate(stages) if stage.unfreeze is reached), 0)
        last = kept_epoch(out, best=recipe.patience is not None) if begun else {}
        choice = None
        for number, stage in enumerate(stages[begun:]):
            before, last = last, job.train(stage, resumes and number == 0, last)
            if before:
                kept = Unfreeze.TAIL if last is before else Unfreeze.ALL
                choice = LayerChoice(kept, before["held_out_nll"], job.lowest)
                if group.leads:
                    _log.info(_all_layers(choice))
        rate = job.fit_rate(stages[0]) if recipe.rates is Rates.FITTED else None
        if rate is not None:
            last = last | job.scores(stages[0])
        if recipe.repeats:
            job.repeat(recipe, start, last["epoch"], rate)
        model = model.to("cpu").eval()
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
            layer_choice=choice,
            tools=tool_versions() | {"device": str(group.device), "processes": str(group.size)},
        )
        if group.leads:
            save_weights(model, out)
            run.save(out)
            (out / CHECKPOINT).unlink(missing_ok=True)
    return run


@dataclass(eq=False)
class _Job:
    """A training in one process, of one or two stages."""

    model: nn.Module
    dataset: Dataset
    parts: Parts
    image: ImageSpec
    augment: Augmentation
    hashes: dict[str, str]
    group: Group
    out: Path
    tensorboard: bool
    features: Path
    lowest: float = float("inf")
    """The lowest held-out NLL of the last stage."""

    def train(self, stage: Recipe, resumes: bool, before: dict[str, Any]) -> dict[str, Any]:
        """Train one stage; returns the log of the epoch whose weights are kept.

        Args:
            stage: How.
            resumes: Whether it continues from its checkpoint.
            before: The log of the stage before, whose weights stay if no epoch is better.
        """
        model, out, group = self.model, self.out, self.group
        held = self._hold(stage)
        learned = learned_rates.learn(model, stage.rates)
        training = Training(model, stage.optimiser_for(model, learned), learned, held=held)
        if resumes:
            training.load(out, stage, self.hashes["train"])
        elif before:
            training.best, training.progress.best_nll = training.copy(), before["held_out_nll"]
        if group.from_leader([training.progress.epoch]) != [training.progress.epoch]:
            raise UsageError(
                f"The processes see different checkpoints. Put --out ({out}) where all machines see it.",
                "checkpoint.not-shared",
            )
        feed = self._feed(stage)
        events = self.tensorboard and group.leads
        with open_journal(out, stage.epochs, events, training.progress.epoch, second=bool(before)) as journal:
            _Loop(training, stage, feed, self.hashes["train"], group, out, journal).run()
        progress = training.progress
        self.lowest = min(row["held_out_nll"] for row in progress.log)
        if training.best:
            training.take(training.best)
            return progress.log[progress.best_epoch - 1] if progress.best_epoch else before
        return progress.log[-1]

    def fit_rate(self, stage: Recipe) -> rate_fit.Fitted:
        """Fit the dropout rate, and train with it where that helps."""
        found = rate_fit.fit(self._feed(stage), stage.seed, lambda p: self._train_at(stage, p))
        _log.info(found.summary())
        return found

    def _train_at(self, stage: Recipe, p: float) -> None:
        """Train one epoch with noise, at a tenth of the learning rate."""
        how = replace(stage, p=p, rates=Rates.FIXED, epochs=1, learning_rate=stage.learning_rate / 10)
        self._epochs(how, 1, f"training with p = {p:g}")

    def scores(self, stage: Recipe) -> dict[str, float]:
        """The held-out scores of the present weights."""
        feed = self._feed(stage)
        nll, accuracy = evaluate(feed.network, feed.image, feed.held_out, stage.judged, tempered=True)
        return {"held_out_nll": nll, "held_out_accuracy": accuracy}

    def repeat(self, recipe: Recipe, start: dict[str, Tensor], epochs: int, rate: rate_fit.Fitted | None) -> None:
        """Train again on all training images, as their selection images chose.

        Args:
            recipe: How.
            start: The weights that training began with.
            epochs: The epochs until the best.
            rate: The rate that was fitted, if any.
        """
        whole = replace(self, parts=self.parts.whole())
        if self.group.leads:
            count, times = len(whole.parts.fitted), f"{epochs} epoch{'s' * (epochs > 1)}"
            _log.info("The choice is made. All %s training images train the tail again, for %s.", f"{count:,}", times)
        self.model.load_state_dict(start)
        whole._epochs(recipe, epochs)
        if rate is not None:
            rate_fit.set_rate(self.model, rate.p)
            if rate.trained:
                whole._train_at(recipe, rate.p)

    def _epochs(self, stage: Recipe, count: int, task: str = "training again") -> None:
        """Train the first epochs of a stage; nothing is watched or stored."""
        learned = learned_rates.learn(self.model, stage.rates)
        training = Training(self.model, stage.optimiser_for(self.model, learned), learned, held=self._hold(stage))
        loop = _Loop(training, stage, self._feed(stage), self.hashes["train"], self.group, self.out)
        with progress(task, total=count * loop.steps, shown=self.group.leads) as advance:
            for _ in range(count):
                loop.epoch(advance)

    def _hold(self, stage: Recipe) -> tuple[str, ...]:
        """Freeze layers; returns the batch-norm layers whose statistics stay."""
        held: tuple[str, ...] = ()
        if stage.unfreeze is not None:
            held = parameter_groups.thaw(self.model, seams.weights_behind(self.model, stage.seam), stage.unfreeze)
        return (*held, *parameter_groups.freeze(self.model, stage.freeze))

    def _feed(self, stage: Recipe) -> Feed:
        return feeds.of(
            self.model, self.dataset, self.image, self.augment, stage, self.parts, self.features, self.hashes
        )


class _Loop:
    """One training in one process."""

    def __init__(
        self,
        training: Training,
        recipe: Recipe,
        feed: Feed,
        data_hash: str,
        group: Group,
        out: Path,
        journal: Journal | None = None,
    ) -> None:
        self.training, self.recipe, self.feed, self.group = training, recipe, feed, group
        self.out, self.journal, self.data_hash = out, journal, data_hash
        self.labels = feed.labels
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
        parallel = self.group.wrap(self.feed.network)
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

    def epoch(self, advance: Callable[[int], None]) -> None:
        """Train one epoch, and note nothing."""
        self._epoch(self.group.wrap(self.feed.network), advance)
        self.training.progress.epoch += 1

    def _held_out(self) -> list[float]:
        feed, recipe = self.feed, self.recipe
        # Few images: raw NLL would stop a network that only needs a temperature, which calibration gives it.
        tempered = recipe.unfreeze is not None
        return list(evaluate(feed.network, feed.image, feed.held_out, recipe.judged, tempered=tempered))

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
            if self.recipe.patience is not None or self.training.best:  # the second stage begins with the best so far
                self.training.best = self.training.copy()
        lowest = min(state.log, key=lambda row: row["train_nll"])["epoch"]
        if self.recipe.schedule is Schedule.PLATEAU and state.epoch - max(lowest, state.last_reduction) >= _PLATEAU:
            state.reductions, state.last_reduction = state.reductions + 1, state.epoch
        if self.group.leads and self.journal is not None:
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
        # A fitted rate comes afterwards: noise at an unknown rate would harm.
        quiet = deterministic(self.training.model) if recipe.rates is Rates.FITTED else nullcontext()
        with quiet, noise_from(self.training.model, noise):
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
        images = self.feed.take(batch, source, group.device)
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
        if self.journal is None:  # after the logged epochs
            kept = f"{self.out / CHECKPOINT} holds the epochs before this last training. Continue with --resume and"
        elif done:
            kept = f"{self.out / CHECKPOINT} holds the end of epoch {done}. Continue from it with --resume and"
        else:
            kept = "No epoch was finished. Start again with"
        return UceEdgeError(
            f"The loss became {loss} in epoch {done + 1}. {kept} a smaller --learning-rate than "
            f"{recipe.learning_rate}, or --clip 1; a smaller --p than {recipe.p} needs a new start.",
            "training.diverged",
            epoch=done + 1,
            kept=done,
        )


def _all_layers(choice: LayerChoice) -> str:
    """What came of training all layers after the tail."""
    change = f"the NLL of the selection images from {choice.tail_nll:.3f} to {choice.all_nll:.3f}"
    if choice.kept is Unfreeze.ALL:
        return f"All layers are trained: they lower {change}."
    return f"The trunk stays frozen: training all layers changes {change}."


def image_of(dataset: Dataset, recipe: Recipe) -> ImageSpec:
    """The images of a training, with the pixel scaling of the recipe."""
    mean, std = recipe.mean, recipe.std
    if mean is None or std is None:
        own_mean, own_std = channel_statistics(dataset.splits["train"].images)
        mean, std = mean or own_mean, std or own_std
    if dataset.image_shape[2] == 1:  # gray images for colour weights
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    return ImageSpec(*dataset.image_shape, mean=mean, std=std, range=dataset.gray.range, resize=dataset.resize)


def evaluate(
    model: nn.Module,
    image: ImageSpec,
    data: Split,
    judged: Callable[[Tensor], Tensor] = Tensor.float,
    *,
    tempered: bool = False,
) -> tuple[float, float]:
    """NLL and accuracy of the network without noise.

    Args:
        model: The network, or its tail.
        image: How it takes images.
        data: Labelled images, or features.
        judged: What is done to logits before.
        tempered: Whether the NLL is that with the best temperature.
    """
    device = next(model.parameters()).device
    parts = []
    with working("held-out images"), torch.no_grad(), deterministic(model):
        for start in range(0, len(data), 256):
            pixels = torch.from_numpy(data.images[start : start + 256]).to(device)
            parts.append(judged(model(normalise(pixels, image))).cpu())
    logits, labels = torch.cat(parts), torch.from_numpy(data.labels)
    nll = float(nn.functional.cross_entropy(logits, labels))
    if tempered and np.isfinite(nll):
        nll = fit_map(Method.TEMPERATURE, ArrayLogits(logits[None].numpy()), data.labels).outcome.nll_after
    return nll, float((logits.argmax(-1) == labels).float().mean())
