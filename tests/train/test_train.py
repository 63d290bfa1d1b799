"""Training: recipes, resuming, checkpoints and logs."""

import csv
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.helpers.errors import raises
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Dataset, Split
from uce_edge.errors import UceEdgeError, UsageError
from uce_edge_train.choices import Arithmetic, Dropout, Mixing, Optimiser, Rates, Schedule, TrainDevice
from uce_edge_train.data import selection
from uce_edge_train.data.augmentation import Augmentation
from uce_edge_train.dropout import learned_rates
from uce_edge_train.loop import training
from uce_edge_train.loop.checkpoint import CHECKPOINT
from uce_edge_train.loop.journal import Journal, open_journal
from uce_edge_train.networks import tensor_files
from uce_edge_train.recipe import Recipe
from uce_edge_train.runs import Run, load_model


@pytest.fixture(scope="module")
def few() -> Dataset:
    """A quarter of the digits, for trainings of a second."""
    whole = splits.load("digits")
    return dataclasses.replace(
        whole, splits={name: Split(part.images[::4], part.labels[::4]) for name, part in whole.splits.items()}
    )


SHORT = Recipe(epochs=4, batch_size=32)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "weights.safetensors")


def log(folder: Path) -> list[dict[str, str]]:
    with (folder / "log.csv").open() as file:
        return list(csv.DictReader(file))


def interrupt_after(monkeypatch: pytest.MonkeyPatch, epochs: int) -> None:
    """Stop in the middle of an epoch, when the checkpoint of `epochs` epochs is on disk."""
    step, calls = training._Loop._step, 0

    def counted(self: training._Loop, *arguments: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls > self.steps * epochs + self.steps // 2:
            raise KeyboardInterrupt
        return step(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(training._Loop, "_step", counted)


@pytest.mark.parametrize(
    "recipe",
    [
        SHORT,
        dataclasses.replace(SHORT, optimiser=Optimiser.SGD, schedule=Schedule.PLATEAU, flip=True, erase=0.5),
        dataclasses.replace(SHORT, rates=Rates.LAYER, patience=3, schedule=Schedule.COSINE, penalty=0.1, clip=1.0),
        dataclasses.replace(SHORT, augment=Mixing.PIXMIX, logit_norm=0.04, patience=3),
        dataclasses.replace(SHORT, augment=Mixing.AUGMIX, noise=0.3, blur=0.3, mixup=0.2, rotate=15),
        dataclasses.replace(SHORT, dropout=Dropout.BERNOULLI, augment=Mixing.TRIVIAL, colour=0.4),
    ],
    ids=["adamw", "sgd", "learned rates", "pixmix", "augmix", "bernoulli"],
)
def test_a_resumed_training_ends_as_the_uninterrupted_one(
    recipe: Recipe, few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = training.train(few, tmp_path / "whole", recipe)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            training.train(few, tmp_path / "broken", recipe)
    assert (tmp_path / "broken" / CHECKPOINT).exists()
    assert not (tmp_path / "broken" / "run.json").exists()
    again = training.train(few, tmp_path / "broken", recipe, resume=True)
    assert not (tmp_path / "broken" / CHECKPOINT).exists()
    for name, value in weights(tmp_path / "whole").items():
        assert torch.equal(value, weights(tmp_path / "broken")[name]), name
    assert again.rates == whole.rates
    assert again.metrics == whole.metrics
    assert len(log(tmp_path / "broken")) == len(log(tmp_path / "whole"))


def test_a_process_that_was_killed_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "uce_edge", "train", "--data", "digits", "--epochs", "3", "--out"]
    subprocess.run([*command, tmp_path / "whole"], check=True, capture_output=True)
    process = subprocess.Popen([*command, tmp_path / "killed"], stderr=subprocess.DEVNULL)
    while not (tmp_path / "killed" / CHECKPOINT).exists():
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "run.json").exists()
    refused = subprocess.run([*command, tmp_path / "killed"], check=False, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    subprocess.run([*command, tmp_path / "killed", "--resume"], check=True, capture_output=True)
    for name, value in weights(tmp_path / "whole").items():
        assert torch.equal(value, weights(tmp_path / "killed")[name]), name
    # A new start over the finished run that is killed again goes on too.
    (tmp_path / "killed" / CHECKPOINT).write_bytes(b"torn")
    torn = subprocess.run([*command, tmp_path / "killed", "--resume"], check=False, capture_output=True, text=True)
    assert "cannot be read" in torn.stderr
    (tmp_path / "killed" / CHECKPOINT).unlink()
    finished = subprocess.run([*command, tmp_path / "killed", "--resume"], check=True, capture_output=True, text=True)
    assert "is finished" in finished.stderr


def test_two_processes_learn_like_one(tmp_path: Path) -> None:
    options = ["train", "--data", "digits", "--epochs", "4", "--device", "cpu", "--out"]
    alone = [sys.executable, "-m", "uce_edge", *options, str(tmp_path / "one")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(alone, check=True, capture_output=True)
    done = subprocess.run(
        [*torchrun, "-m", "uce_edge", *options, str(tmp_path / "two")],
        check=True, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.stderr.count("Trained resnet8") == 1, "every process talks"
    assert json.loads((tmp_path / "two" / "run.json").read_text())["tools"]["processes"] == "2"
    one, two = ([float(row["train_nll"]) for row in log(tmp_path / name)] for name in ("one", "two"))
    # Other noise and batch statistics over half a batch: the same curve, not the same numbers.
    np.testing.assert_allclose(two, one, rtol=0.15)
    assert two[-1] < 0.5 * two[0]


def test_several_processes_need_a_batch_they_can_share(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "-m", "uce_edge", "train", "--batch-size", "63", "--out", str(tmp_path / "run")],
        check=False, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode != 0
    assert "a multiple of the 2 processes" in done.stderr


def test_a_diverged_training_keeps_the_last_good_checkpoint(few: Dataset, tmp_path: Path) -> None:
    with raises("training.diverged") as caught:
        training.train(few, tmp_path / "at-once", dataclasses.replace(SHORT, learning_rate=1e30))
    assert caught.value.fields == {"epoch": 1, "kept": 0}
    calm = dataclasses.replace(SHORT, optimiser=Optimiser.SGD, schedule=Schedule.PLATEAU)
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            training.train(few, tmp_path, calm)
    before = (tmp_path / CHECKPOINT).read_bytes()
    with raises("training.diverged") as caught:
        training.train(few, tmp_path, dataclasses.replace(calm, learning_rate=1e30), resume=True)
    assert caught.value.fields == {"epoch": 2, "kept": 1}
    assert "--resume" in str(caught.value)
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    training.train(few, tmp_path, dataclasses.replace(calm, learning_rate=0.001), resume=True)
    assert len(log(tmp_path)) == 4


@pytest.fixture
def small_disk() -> Iterator[Callable[[bool], None]]:
    """A disk that can be full: files of this process may not grow past 100 kB then, and a write fails half-way."""
    resource = pytest.importorskip("resource", reason="Windows has no limit on the size of files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda full: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]) if full else before)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_the_old_checkpoint_intact(
    few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_disk: Callable[[bool], None]
) -> None:
    add = Journal.add

    def fill_the_disk(self: Journal, rows: list[dict[str, float]]) -> None:
        add(self, rows)
        if len(rows) == 2:
            small_disk(True)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", fill_the_disk)
        with pytest.raises(UceEdgeError, match="Cannot write"):
            training.train(few, tmp_path, SHORT)
    small_disk(False)
    assert sorted(path.name for path in tmp_path.iterdir()) == [CHECKPOINT, "log.csv"]
    training.train(few, tmp_path, SHORT, resume=True)
    assert [row["epoch"] for row in log(tmp_path)] == ["1", "2", "3", "4"]


@pytest.fixture
def interrupted(few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            training.train(few, tmp_path, SHORT)
    return tmp_path


def test_a_checkpoint_of_another_training_is_refused(few: Dataset, interrupted: Path) -> None:
    with raises("checkpoint.recipe", UsageError) as caught:
        training.train(few, interrupted, dataclasses.replace(SHORT, arch="resnet20"), resume=True)
    assert caught.value.fields["differences"] == ["arch"]
    other = dataclasses.replace(few, splits=few.splits | {"train": few.splits["test"]})
    with raises("checkpoint.data", UsageError):
        training.train(other, interrupted, SHORT, resume=True)
    (interrupted / CHECKPOINT).write_bytes(b"torn")
    with raises("checkpoint.unreadable"):
        training.train(few, interrupted, SHORT, resume=True)


def changed_header(path: Path, key: str, value: object) -> None:
    """Write a checkpoint again with another value in its progress."""
    tensors, header = tensor_files.read(path)
    header["progress"] = json.dumps(json.loads(header["progress"]) | {key: value})
    path.write_bytes(save(tensors, metadata=header))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epoch", "x"), ("epoch", 10**40), ("epoch", 3), ("best_epoch", 7), ("best_nll", None), ("log", []),
        ("log", [{"epoch": 1}]), ("log", [[1]]), ("scaler", {"scale": 1}), ("reductions", -1),
    ],
)  # fmt: skip
def test_a_checkpoint_that_says_what_cannot_be_is_refused(
    few: Dataset, interrupted: Path, key: str, value: object
) -> None:
    changed_header(interrupted / CHECKPOINT, key, value)
    with raises("checkpoint.unreadable"):
        training.train(few, interrupted, SHORT, resume=True)


def test_a_checkpoint_of_other_tensors_is_refused(few: Dataset, interrupted: Path) -> None:
    path = interrupted / CHECKPOINT
    tensors, header = tensor_files.read(path)
    state = next(name for name in tensors if name.startswith("optimiser."))
    rest = state.partition(".")[2].partition(".")[2]
    one = torch.zeros(1)
    for wrong in (
        {"now.model.other": one},
        {"best.model.other": one},
        {state: torch.zeros(7, 7, 7)},
        {f"optimiser.99999.{rest}": tensors[state].clone()},
        {f"optimiser.x.{rest}": tensors[state].clone()},
        {state.replace(rest, "other"): tensors[state].clone()},
    ):
        path.write_bytes(save(tensors | wrong, metadata=header))
        with raises("checkpoint.mismatch"):
            training.train(few, interrupted, SHORT, resume=True)
    for damaged in (save(tensors), path.read_bytes()[:1000], b""):
        path.write_bytes(damaged)
        with raises("checkpoint.unreadable"):
            training.train(few, interrupted, SHORT, resume=True)


def test_weights_that_are_not_finite_are_refused(few: Dataset, tmp_path: Path) -> None:
    run = training.train(few, tmp_path, dataclasses.replace(SHORT, epochs=1))
    broken = {
        name: value * torch.nan if value.is_floating_point() else value for name, value in weights(tmp_path).items()
    }
    (tmp_path / "weights.safetensors").write_bytes(save(broken))
    with raises("weights.not-finite"):
        load_model(run, tmp_path)


def test_weights_of_another_architecture_are_refused(few: Dataset, tmp_path: Path) -> None:
    run = training.train(few, tmp_path, dataclasses.replace(SHORT, epochs=1))
    with raises("architecture.changed"):
        load_model(dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, arch="resnet20")), tmp_path)
    wide = dataclasses.replace(run, class_names=(*run.class_names, "ten"))
    with raises("weights.mismatch"):
        load_model(wide, tmp_path)


def test_weights_broken_by_the_last_step_are_not_kept(
    few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = training._Loop._step, 0

    def poisoned(self: training._Loop, *arguments: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        nll = step(self, *arguments)  # type: ignore[arg-type]
        if calls == 2 * self.steps:
            torch.nn.init.constant_(next(self.training.model.parameters()), float("nan"))
        return nll

    monkeypatch.setattr(training._Loop, "_step", poisoned)
    with raises("training.diverged") as caught:
        training.train(few, tmp_path, SHORT)
    assert caught.value.fields == {"epoch": 2, "kept": 1}
    assert not (tmp_path / "run.json").exists()
    assert all(bool(torch.isfinite(value).all()) for value in load_file(tmp_path / CHECKPOINT).values())


def test_every_epoch_is_logged(few: Dataset, tmp_path: Path) -> None:
    run = training.train(few, tmp_path, SHORT, tensorboard=True)
    rows = log(tmp_path)
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    assert float(rows[-1]["train_nll"]) < float(rows[0]["train_nll"])
    assert float(rows[-1]["held_out_accuracy"]) == run.metrics.held_out_accuracy
    events = EventAccumulator(str(tmp_path)).Reload()
    found = [(event.step, event.value) for event in events.Scalars("train_nll")]
    assert [step for step, _ in found] == [1, 2, 3, 4]
    np.testing.assert_allclose([value for _, value in found], [float(row["train_nll"]) for row in rows], rtol=1e-6)


def test_a_resumed_training_replaces_the_events_it_repeats(tmp_path: Path) -> None:
    def record(epochs: range, nll: float) -> None:
        with open_journal(tmp_path, 5, tensorboard=True, done=epochs[0] - 1) as opened:
            for epoch in epochs:
                opened.add([{"epoch": epoch, "train_nll": nll}])
                time.sleep(0.01)

    record(range(1, 4), 0.0)
    time.sleep(1)  # event files are ordered by the second in their names
    record(range(3, 5), 1.0)  # the checkpoint is of epoch 2
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("train_nll")
    assert [(event.step, event.value) for event in events] == [(1, 0.0), (2, 0.0), (3, 1.0), (4, 1.0)]


def test_an_epoch_is_on_disk_before_the_journal_closes(tmp_path: Path) -> None:
    with open_journal(tmp_path, 5, tensorboard=True) as opened:
        opened.add([{"epoch": 1, "train_nll": 0.5}])
        assert len(EventAccumulator(str(tmp_path)).Reload().Scalars("train_nll")) == 1


def test_without_tensorboard_the_missing_package_is_named(
    few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setattr(training._Loop, "run", lambda self: pytest.fail("trained before the check"))
    with raises("part.missing") as caught:
        training.train(few, tmp_path, SHORT, tensorboard=True)
    assert caught.value.fields == {"package": "tensorboard", "extra": "tensorboard"}


def test_schedules_end_where_they_should() -> None:
    rate = {kind: Recipe(schedule=kind, learning_rate=0.5).learning_rate_at for kind in Schedule}
    assert rate[Schedule.COSINE](0, 0) == 0.5
    assert rate[Schedule.COSINE](0.5, 0) == pytest.approx(0.25)
    assert rate[Schedule.COSINE](1, 0) == pytest.approx(0)
    assert rate[Schedule.ONE_CYCLE](0, 0) == pytest.approx(0.02)
    assert rate[Schedule.ONE_CYCLE](0.3, 0) == pytest.approx(0.5)
    assert rate[Schedule.ONE_CYCLE](1, 0) == pytest.approx(5e-6)
    assert rate[Schedule.PLATEAU](0.9, 2) == pytest.approx(0.005)


def test_the_learning_rate_falls_on_a_plateau(few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_PLATEAU", 2)
    # With a learning rate this large hardly any epoch improves.
    recipe = dataclasses.replace(
        SHORT, epochs=24, optimiser=Optimiser.SGD, schedule=Schedule.PLATEAU, learning_rate=3.0, clip=100.0
    )
    training.train(few, tmp_path, recipe)
    rates, losses = ([float(row[name]) for row in log(tmp_path)] for name in ("learning_rate", "train_nll"))
    first = next(epoch for epoch in range(24) if epoch - int(np.argmin(losses[: epoch + 1])) >= 2)
    assert rates[: first + 2] == [*[3.0] * (first + 1), pytest.approx(0.3)]


def test_training_stops_early_and_takes_the_best_epoch(few: Dataset, tmp_path: Path) -> None:
    recipe = dataclasses.replace(SHORT, epochs=60, patience=3, schedule=Schedule.PLATEAU, learning_rate=0.02)
    run = training.train(few, tmp_path, recipe)
    rows = log(tmp_path)
    assert len(rows) < 60
    best = min(rows, key=lambda row: float(row["held_out_nll"]))
    assert run.metrics.epochs == int(best["epoch"]) == len(rows) - 3
    watched = selection.part(few.splits["train"], selects=True).held_out(few)
    nll, accuracy = training.evaluate(load_model(run, tmp_path), run.image, watched)
    assert nll == pytest.approx(float(best["held_out_nll"]), rel=1e-4)
    assert accuracy == pytest.approx(float(best["held_out_accuracy"]))


def test_the_confidence_penalty_raises_the_entropy() -> None:
    recipe, logits = Recipe(penalty=0.1), torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    loss, nll = recipe.loss(logits, torch.tensor([0]))
    p = torch.softmax(logits.detach(), -1)
    entropy = -(p * p.log()).sum()
    assert nll.item() == pytest.approx(-p[0, 0].log().item())
    assert loss.item() == pytest.approx(nll.item() - 0.1 * entropy.item())


@pytest.mark.parametrize("kind", [Rates.MODEL, Rates.LAYER])
def test_learned_rates_move_and_are_kept(kind: Rates, few: Dataset, tmp_path: Path) -> None:
    run = training.train(few, tmp_path, dataclasses.replace(SHORT, rates=kind))
    found = set(run.rates.values())
    assert 0.2 not in found
    assert (len(found) == 1) == (kind is Rates.MODEL)
    assert all(0.001 <= p <= 0.5 for p in found)
    loaded = load_model(Run.load(tmp_path), tmp_path)
    assert learned_rates.current(loaded) == run.rates
    assert float(log(tmp_path)[-1]["mean_p"]) == pytest.approx(np.mean(list(run.rates.values())), abs=1e-5)


def test_mixed_precision_trains(few: Dataset, tmp_path: Path) -> None:
    run = training.train(few, tmp_path, dataclasses.replace(SHORT, epochs=8, precision=Arithmetic.BFLOAT16))
    assert run.metrics.train_nll < 1.5
    assert all(value.dtype in (torch.float32, torch.int64) for value in weights(tmp_path).values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_absent_hardware_is_refused(few: Dataset, tmp_path: Path) -> None:
    with raises("device.missing"):
        training.train(few, tmp_path, SHORT, device=TrainDevice.CUDA)
    with raises("argument.precision", UsageError):
        training.train(few, tmp_path, dataclasses.replace(SHORT, precision=Arithmetic.FLOAT16))
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0), ("batch_size", 0), ("patience", 0), ("learning_rate", 0.0), ("learning_rate", float("nan")),
        ("clip", -1.0), ("erase", 1.5), ("penalty", -0.1), ("penalty", float("inf")), ("weight_decay", -1.0),
        ("shift", -1), ("augment", "mixup"), ("noise", 1.1), ("blur", -0.1), ("logit_norm", 0.0),
        ("rotate", 181.0), ("colour", 1.1), ("mixup", -0.2),
    ],
)  # fmt: skip
def test_wrong_recipes_are_refused(field: str, value: float) -> None:
    with raises(f"argument.{field}", UsageError) as caught:
        Recipe(**{field: value})  # type: ignore[arg-type]
    assert f"--{field.replace('_', '-')}" in str(caught.value.fields["remedy"])


def test_a_shift_past_the_image_is_refused(few: Dataset, tmp_path: Path) -> None:
    with raises("argument.shift", UsageError):
        training.train(few, tmp_path, dataclasses.replace(SHORT, shift=8))


def test_augmentation_moves_mirrors_and_erases() -> None:
    images = torch.rand(400, 2, 9, 12) + 1
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(Augmentation()(images, generator), images)
    mirrored = Augmentation(flip=True)(images, generator)
    same, turned = (mirrored == images).flatten(1).all(1), (mirrored == images.flip(3)).flatten(1).all(1)
    assert bool((same ^ turned).all())
    assert 140 < int(turned.sum()) < 260
    moved = Augmentation(shift=2)(images, generator)
    padded = torch.nn.functional.pad(images, [2] * 4, mode="reflect")
    offsets = set()
    for image, frame in zip(moved, padded, strict=True):
        place = [(t, s) for t in range(5) for s in range(5) if torch.equal(image, frame[:, t : t + 9, s : s + 12])]
        assert len(place) == 1
        offsets.add(place[0])
    assert len(offsets) == 25
    erased = Augmentation(erase=0.5)(images, generator)
    gone = erased == 0
    assert torch.equal(gone[:, 0], gone[:, 1])
    assert torch.equal(erased[~gone], images[~gone])
    share = gone[:, 0].float().mean((1, 2))
    assert 140 < int((share > 0).sum()) < 260
    assert 0 < float(share[share > 0].min()) < 0.1
    assert 0.2 < float(share.max()) <= 0.4
    filled = [
        bool(image[rows][:, columns].all()) for image in gone[:, 0] for rows, columns in [(image.any(1), image.any(0))]
    ]
    assert all(filled), "what is erased is a rectangle"


def test_a_training_in_a_log_file_says_how_far_it_is(
    few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("uce_edge_train.loop.journal._INTERVAL", 0.0)
    with caplog.at_level("INFO", "uce_edge_train"):
        training.train(few, tmp_path, SHORT)
    lines = [record.message for record in caplog.records]
    assert len(lines) == 4
    assert re.fullmatch(r"epoch 4/4: NLL \d\.\d{3}, held-out NLL \d\.\d{3}, accuracy \d+\.\d%; 0 min left", lines[-1])
