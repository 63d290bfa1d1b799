"""The experiments: every number follows from the networks, nothing is trained twice, and each cell has its command."""

import csv
import json
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

from tests.helpers.errors import raises
from uce_edge import metrics
from uce_edge.calibration.logits import ArrayLogits
from uce_edge.calibration.maps import fit_map, probabilities
from uce_edge.cli import app
from uce_edge.contract import Inference, Method
from uce_edge.datasets import labelled, splits
from uce_edge.datasets.sources import SkippedImagesWarning
from uce_edge.datasets.splits import Split
from uce_edge.errors import UceEdgeError, UsageError
from uce_edge.evaluation import batch_mixture
from uce_edge.metadata import ImageSpec
from uce_edge_train.choices import Dropout, Experiment, Scale, Schedule, TrainDevice
from uce_edge_train.loop import training
from uce_edge_train.reproduce import dropout_figure, experiments, paper_aux, rejection_curve, scorecard, side_by_side
from uce_edge_train.reproduce.experiments import reproduce
from uce_edge_train.reproduce.result_files import interval
from uce_edge_train.reproduce.seed_intervals import measure
from uce_edge_train.reproduce.settings import memorised, setting
from uce_edge_train.reproduce.trained_networks import Row, Study, Subject
from uce_edge_train.runs import Run


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All experiments on the digits, with noise pictures as out-of-distribution images."""
    folder = tmp_path_factory.mktemp("reproduce")
    pictures = folder / "noise"
    pictures.mkdir()
    rng = np.random.default_rng(0)
    for index in range(40):
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(pictures / f"{index}.png")
    call = [
        "reproduce", "all", "--data", "digits", "--ood", str(pictures), "--out", str(folder / "out"),
        "--epochs", "4", "--samples", "10", "--scale", "laptop",
    ]  # fmt: skip
    done = CliRunner().invoke(app, call, catch_exceptions=False)
    assert done.exit_code == 0
    return folder / "out"


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_one_page_has_verdicts_rules_and_twins_of_every_dataset(results: Path, tmp_path: Path) -> None:
    side_by_side.write(tmp_path, "uce-edge reproduce all", {"cifar10": results, "other": results})
    page = (tmp_path / "README.md").read_text()
    for line in rows(results, "scorecard"):
        assert page.count(line["evidence"]) == 2
        assert line["rule"] in page
        assert line["cause"] in page
    assert "| cifar10 | the paper | ResNet-34 | 4.5 |" in page
    first = rows(results, "table1")[0]
    cell = f"{100 * float(first['tuce']):.1f}, *{100 * float(first['tuce_twin']):.1f}*"
    assert page.count(f"| {cell} |") >= 2


def test_committed_results_without_newer_columns_give_their_page(tmp_path: Path) -> None:
    """Their networks took an hour to train, and are not trained again for a new column."""
    folder = Path(__file__).parents[2] / "docs" / "results" / "memorise"
    places = {name: folder / name for name in ("cifar10", "cifar100")}
    assert "rates" not in rows(places["cifar10"], "table1")[0]
    command = "uce-edge reproduce all --scale memorise --root data --out docs/results/memorise"
    side_by_side.write(tmp_path, command, places)
    made, committed = ((place / "README.md").read_text().split("## Evidence")[0] for place in (tmp_path, folder))
    assert made == committed


def test_two_datasets_are_reported_where_they_are_with_the_whole_command(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(_: Experiment, name: str, out: Path, *__: object, **___: object) -> list[Experiment]:
        shutil.copytree(results, out, ignore=shutil.ignore_patterns("work"))
        return [Experiment.TABLE1, Experiment.SCORECARD]

    monkeypatch.setattr("uce_edge_train.reproduce.experiments.reproduce", made)
    monkeypatch.setattr(splits, "load", lambda *_, **__: None)
    out = tmp_path / "both of them"
    options = ["--seeds", "2", "--epochs", "4", "--samples", "10", "--ood", "my noise", "--arch", "resnet8", "--seed"]
    done = CliRunner().invoke(app, ["reproduce", "all", *options, "3", "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0
    for name in ("cifar10", "cifar100"):
        assert str(out / name) in done.stderr
        assert (out / name / "table1.md").exists()
    assert str(out / "README.md") in done.stderr
    (line,) = [line.strip() for line in (out / "README.md").read_text().splitlines() if "    uce-edge" in line]
    words = shlex.split(line)
    for pair in (*zip(options[::2], [*options[1::2], "3"], strict=True), ("--scale", "memorise"), ("--out", str(out))):
        assert words[words.index(pair[0]) + 1] == pair[1]
    assert "--data" not in words, "both"


def subject(folder: Path, ood: Split | None = None) -> Subject:
    dataset = splits.load("digits")
    chosen = setting(dataset, "digits", Scale.LAPTOP, epochs=4, samples=10)
    return Subject(chosen, dataset, ood, folder, TrainDevice.CPU)


def study(folder: Path) -> Study:
    found = subject(folder)
    return Study(found.setting, [found], folder)


def test_every_experiment_writes_its_files(results: Path) -> None:
    for kind in Experiment:
        if kind is not Experiment.ALL:
            assert (results / f"{kind}.csv").stat().st_size > 100
            assert (results / f"{kind}.md").read_text().startswith("## ")
    for kind in set(Experiment) - {Experiment.ALL, Experiment.SCORECARD}:
        with Image.open(results / f"{kind}.png") as picture:
            assert picture.width > 600
            assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 20, "the figure is empty"
    page = (results / "README.md").read_text()
    assert page.index("Scorecard") < page.index("Table 1") < page.index("Out of distribution")


def test_the_table_is_what_the_metrics_say(results: Path) -> None:
    table = {(row["inference"], row["method"]): row for row in rows(results, "table1")}
    assert len(table) == 6 + 8, "the deterministic network has no dropout rates to tune"
    again = subject(results)
    labels = again.labels()
    for inference in (Inference.DETERMINISTIC, Inference.MC):
        for kind in (Row.UNCALIBRATED, Row.PENALTY, Row.VECTOR, Row.PAPER_AUX):
            found, cell = again.probabilities(kind, inference), table[str(inference), str(kind)]
            assert float(cell["cuce"]) == pytest.approx(metrics.classwise_uce(found, labels), rel=1e-5)
            assert float(cell["nll"]) == pytest.approx(metrics.nll(found, labels), rel=1e-5)
            assert float(cell["cece_twin"]) > 0
            assert float(cell["uce_low"]) <= float(cell["uce_high"])
    assert float(table["mc", "temperature"]["nll"]) < float(table["mc", "uncalibrated"]["nll"])
    assert table["mc", "confidence penalty"]["nll"] != table["mc", "uncalibrated"]["nll"]


def test_the_table_names_the_tuned_rates_and_the_accuracy_on_training_images(results: Path) -> None:
    table = {(row["inference"], row["method"]): row for row in rows(results, "table1")}
    again = subject(results)
    assert table["mc", "temperature"]["rates"] == f"{again.setting.recipe.p:g}"
    assert table["deterministic", "temperature"]["rates"] == "", "no noise"
    for row, kind in ((Row.TUNED_MODEL, "model"), (Row.TUNED_LAYER, "layer")):
        (stored,) = (results / "work" / "rates").glob(f"nll-{kind}-*.json")
        expected = {name: round(p, 4) for name, p in json.loads(stored.read_text()).items()}
        cell = table["mc", str(row)]["rates"]
        if row is Row.TUNED_MODEL:
            assert {float(cell)} == set(expected.values())
        else:
            assert {name: float(p) for name, p in (pair.split("=") for pair in cell.split())} == expected
    train = again.dataset.splits["train"]
    found = again.probabilities(Row.PENALTY, Inference.DETERMINISTIC, "train")
    for inference in ("mc", "deterministic"):
        accuracy = float(table[inference, "confidence penalty"]["train_accuracy"])
        assert accuracy == pytest.approx(metrics.accuracy(found, train.labels), rel=1e-5)


def test_every_cell_records_commands_that_the_program_understands(results: Path) -> None:
    for name in ("table1", "reliability", "rejection", "rejection-areas", "ood", "ood-detection"):
        for row in rows(results, name)[:20]:
            for line in (row["command"], row["trained_by"]):
                words = shlex.split(line)
                assert words[0] == "uce-edge"
                command = typer.main.get_command(app)
                found = command.get_command(None, words[1])  # type: ignore[attr-defined,arg-type]
                found.make_context(words[1], words[2:])
    recipes = {Run.load(results / "work" / "runs" / kind).recipe.penalty for kind in ("nll", "penalty")}
    assert recipes == {0.0, 0.1}


def test_the_recorded_commands_make_the_cell_again(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cell = next(row for row in rows(results, "table1") if row["method"] == "confidence penalty")
    for line in (cell["trained_by"], cell["command"].replace(str(results), "again")):
        assert CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False).exit_code == 0
    name = "weights.safetensors"
    weights = (results / "work/runs/penalty" / name).read_bytes()
    assert (tmp_path / "runs/penalty" / name).read_bytes() == weights
    assert (tmp_path / "again/work/runs/penalty" / name).read_bytes() == weights
    other = [row | {"command": ""} for row in rows(tmp_path / "again", "table1")]
    assert other == [row | {"command": ""} for row in rows(results, "table1")]


def test_a_second_experiment_trains_and_asks_nothing_again(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("trained or predicted again")

    before = [row | {"command": ""} for row in rows(results, "table1")]
    monkeypatch.setattr(training, "train", never)
    monkeypatch.setattr("uce_edge_train.reproduce.trained_networks.mc_blocks", never)
    reproduce(Experiment.TABLE1, "digits", results, Scale.LAPTOP, epochs=4, samples=10)
    assert [row | {"command": ""} for row in rows(results, "table1")] == before


def test_networks_of_another_setting_are_refused(results: Path) -> None:
    with raises("run.different", UsageError) as caught:
        reproduce(Experiment.TABLE1, "digits", results, Scale.LAPTOP, epochs=7, samples=10)
    assert caught.value.fields["differences"] == ["epochs"]


def test_the_ood_experiment_needs_foreign_images(tmp_path: Path) -> None:
    with raises("ood.missing", UsageError):
        reproduce(Experiment.OOD, "digits", tmp_path, epochs=1)
    with pytest.raises(UceEdgeError, match="nowhere"):
        reproduce(Experiment.OOD, "digits", tmp_path, epochs=1, ood_images="nowhere")
    assert not (tmp_path / "work").exists(), "it trained before it looked for the images"


def test_the_ood_curve_is_that_of_an_evaluation(results: Path) -> None:
    noise = labelled.load_ood(str(results.parent / "noise"), ImageSpec(8, 8, 1))
    again = subject(results, noise)
    inside, outside = (
        metrics.normalized_entropy(again.probabilities(Row.TEMPERATURE, Inference.MC, split))
        for split in ("test", "ood")
    )
    mean, deviation = batch_mixture.mixture(inside, outside, batch_mixture.FRACTIONS)
    curve = [row for row in rows(results, "ood") if (row["inference"], row["method"]) == ("mc", "temperature")]
    assert [float(row["fraction"]) for row in curve] == batch_mixture.FRACTIONS.tolist()
    assert [float(row["mean_uncertainty"]) for row in curve] == pytest.approx(mean.tolist(), rel=1e-5)
    assert [float(row["batch_std"]) for row in curve] == pytest.approx(deviation.tolist(), rel=1e-5)
    found = {(row["inference"], row["method"]): row for row in rows(results, "ood-detection")}
    assert float(found["mc", "temperature"]["auroc H"]) == pytest.approx(metrics.ood_auroc(inside, outside), rel=1e-5)
    assert float(found["mc", "temperature"]["mean_foreign"]) == pytest.approx(float(outside.mean()), rel=1e-5)
    assert found["deterministic", "temperature"]["auroc model part"] == "nan", "one pass has no model part"


def test_both_kinds_of_dropout_have_the_moments_of_the_formula_and_one_of_them_its_correlations(results: Path) -> None:
    """Against the exact moments, and against the covariance of outputs that share their masks."""
    found = rows(results, "dropout")
    assert len(found) == 12
    for row in found:
        mean, deviation = float(row["formula_mean"]), float(row["formula_deviation"])
        assert float(row["mean"]) == pytest.approx(mean, abs=4 * deviation / 20_000**0.5)
        assert float(row["deviation"]) == pytest.approx(deviation, rel=0.04)
    gaussian = [row for row in found if row["dropout"] == "gaussian"]
    assert max(float(row["distance_to_normal"]) for row in gaussian) < 0.015
    assert max(abs(float(row["correlation"])) for row in gaussian) < 0.03
    few, many = (dropout_figure.draw(channels, 0.5, seed=0) for channels in (1, 16))
    assert few.distance(Dropout.BERNOULLI) > 2 * many.distance(Dropout.BERNOULLI)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        layer, image = torch.nn.Conv2d(1, 2, 3, bias=False), torch.randn(1, 1, 3, 3)
    terms = (layer.weight.detach()[:, 0] * image[0, 0]).flatten(1)  # of both outputs, which drop the same ones
    shared = float(terms[0] @ terms[1] / (terms[0].norm() * terms[1].norm()))
    assert few.correlation(Dropout.BERNOULLI) == pytest.approx(shared, abs=0.03)


@pytest.mark.parametrize(("plain", "verdict"), [(0.9, "confirmed"), (0.99, "partly")])
def test_the_line_must_be_straighter_with_calibration_than_without(
    results: Path, monkeypatch: pytest.MonkeyPatch, plain: float, verdict: str
) -> None:
    """The claim is a contrast: a line that is straight in both cases does not confirm it."""
    straight = iter([plain, 0.97])
    monkeypatch.setattr(scorecard, "_straightness", lambda *_: next(straight))
    rising = metrics.RiskCoverage(np.full(9, 0.5), np.linspace(0.01, 0.1, 9), scorecard.STEPS)
    monkeypatch.setattr(metrics, "error_at", lambda *_, **__: rising)
    assert scorecard._rejection_lowers(study(results)).verdict == verdict


def test_the_scorecard_judges_all_eight_claims(results: Path) -> None:
    found = rows(results, "scorecard")
    assert [row["claim"] for row in found] == [str(number) for number in range(1, 9)]
    assert {row["verdict"] for row in found} <= {"confirmed", "partly", "undecided", "not confirmed", "not tested"}
    assert found[3]["verdict"] == "not tested", "ten classes are few"
    again = subject(results)
    gap = scorecard._overconfidence(again.probabilities(Row.PENALTY, Inference.MC), again.labels())
    assert (found[4]["verdict"] == "confirmed") <= (gap < 0)


def test_the_evidence_has_the_intervals_that_decide(results: Path) -> None:
    """A reader can check the verdicts of claims 2 and 4 from their numbers."""
    made, found = study(results), rows(results, "scorecard")
    for name, metric in {"T-UCE": metrics.tuce, "cT-UCE": metrics.classwise_tuce}.items():
        differences = (scorecard._difference(made, metric, row, Row.UNCALIBRATED) for row in scorecard.MAPS)
        shown = ", ".join(f"{row} {interval(one)}" for row, one in zip(scorecard.MAPS, differences, strict=True))
        assert f"{name} minus that of uncalibrated in %: {shown}" in found[1]["evidence"]
    cuce, nll = (
        scorecard._difference(made, metric, Row.UNCALIBRATED, Row.PAPER_AUX)
        for metric in (metrics.classwise_uce, metrics.nll)
    )
    words = f"cUCE {interval(cuce)} %, NLL {nll.value:.3f} ({nll.low:.3f} to {nll.high:.3f})"
    assert f"uncalibrated minus aux of the paper: {words}" in found[3]["evidence"]


def test_a_cause_that_was_not_tested_is_called_unknown(results: Path) -> None:
    assert scorecard._CLAIMS[4].text.startswith("The confidence penalty")
    assert scorecard._CLAIMS[4].cause.startswith("Unknown:")


@pytest.mark.parametrize(
    ("left", "reason"),
    [(0.01, "0 of the 9 thresholds on H from 0.1 to 0.9 accept an image"), (None, "the error is 0.0 % at every")],
)
def test_thresholds_that_tell_nothing_leave_the_claim_untested(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: float | None, reason: str
) -> None:
    shutil.copytree(results / "work", tmp_path / "work")
    again = subject(tmp_path)
    original, labels = again.probabilities, again.labels()

    def changed(*arguments: Any, **options: Any) -> np.ndarray:
        table = original(*arguments, **options)
        if len(table) != len(labels):
            return table  # of other images than the test images
        if left is None:  # every label right and every image certain
            return np.where(np.arange(10) == labels[:, None], 0.999, 0.001 / 9)
        return left * table + (1 - left) / 10

    monkeypatch.setattr(again, "probabilities", changed)
    scorecard.run(Study(again.setting, [again], tmp_path))
    claim = rows(tmp_path, "scorecard")[5]
    assert claim["text"].startswith("Lowering H_max")
    assert claim["verdict"] == "not tested"
    assert reason in claim["evidence"]
    rejection_curve.run(Study(again.setting, [again], tmp_path))
    assert (tmp_path / "rejection.png").stat().st_size > 100


def test_a_calibrated_prediction_is_neither_over_nor_underconfident(rng: np.random.Generator) -> None:
    """With two classes the error is far from mean H at perfect calibration; the scorecard must not be fooled."""
    p = rng.beta(5, 1, 20_000)
    table = np.stack([p, 1 - p], -1)
    labels = (rng.random(20_000) > p).astype(np.int64)
    assert abs(scorecard._overconfidence(table, labels)) < 0.01
    sharp = table**2 / (table**2).sum(-1, keepdims=True)
    assert scorecard._overconfidence(sharp, labels) > 0.03
    flat = table**0.5 / (table**0.5).sum(-1, keepdims=True)
    assert scorecard._overconfidence(flat, labels) < -0.03


def test_uce_towards_the_twin_is_judged_by_the_twins_error(rng: np.random.Generator) -> None:
    """Plain UCE prefers the overconfident prediction here; the claim must not."""
    honest = rng.dirichlet(np.full(5, 0.4), 4000)
    labels = (honest.cumsum(-1) < rng.random((4000, 1))).sum(-1)
    sharp = honest**2.5 / (honest**2.5).sum(-1, keepdims=True)
    assert metrics.uce(sharp, labels) < metrics.uce(honest, labels)

    def verdict(plain: np.ndarray, mapped: np.ndarray) -> str:
        made = SimpleNamespace(
            labels=lambda: labels, probabilities=lambda row, _: plain if row is Row.UNCALIBRATED else mapped
        )
        return scorecard._to_the_twin(SimpleNamespace(subjects=[made], first=made)).verdict  # type: ignore[arg-type]

    assert (verdict(sharp, honest), verdict(honest, sharp)) == ("confirmed", "not confirmed")
    assert verdict(honest, honest) == "undecided"


def test_verdicts() -> None:
    assert scorecard._verdict([True, True]) == "confirmed"
    assert scorecard._verdict([True, None]) == scorecard._verdict([True, False]) == "partly"
    assert scorecard._verdict([None, False]) == "not confirmed"
    assert scorecard._verdict([None, None]) == "undecided"


def test_the_scales_are_those_of_the_paper_and_of_a_laptop() -> None:
    digits = splits.load("digits")
    paper = setting(digits, "cifar100", Scale.PAPER)
    assert (paper.recipe.arch, paper.recipe.schedule, paper.recipe.batch_size) == ("resnet101", Schedule.PLATEAU, 256)
    assert paper.recipe.flip
    assert (paper.recipe.learning_rate, paper.recipe.epochs, paper.recipe.erase, paper.seeds) == (0.01, 500, 0.5, 1)
    assert setting(digits, "svhn", Scale.PAPER).ood == "cifar10"
    few = setting(digits, "digits", Scale.MEMORISE)
    assert (few.recipe.arch, few.recipe.epochs, few.recipe.shift, few.seeds) == ("convnet5", 30, 0, 5)
    laptop = setting(digits, "digits", Scale.LAPTOP, arch="resnet20")
    assert (laptop.recipe.arch, laptop.recipe.epochs, laptop.recipe.flip) == ("resnet20", 20, False)


def test_the_paper_scale_trains_on_all_images_but_those_of_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """45,000 and 5,000 of CIFAR-10, as in the paper: no images are kept for promises."""
    found: list[Study] = []
    monkeypatch.setitem(experiments.EXPERIMENTS, Experiment.TABLE1, found.append)
    reproduce(Experiment.TABLE1, "digits", tmp_path, Scale.PAPER, epochs=1)
    before, after = splits.load("digits").splits, found[0].first.dataset.splits
    kept = np.concatenate([before[name].images for name in ("train", "guarantee")])
    assert np.array_equal(after["train"].images, kept)
    for name in ("calibration", "test"):
        assert after[name].sha256() == before[name].sha256()
    assert list(found[0].first.commands(Experiment.TABLE1, Row.AUX)) == ["command"], "train keeps images for promises"


def test_a_network_that_memorises_is_overconfident_and_intervals_hold_the_spread_of_seeds(tmp_path: Path) -> None:
    """As in the paper: two seeds on 100 digits, a third of them with labels that can only be memorised."""
    splits_of = splits.load("digits").splits.values()
    pixels, labels = (
        np.concatenate([getattr(part, name) for part in splits_of])[:500] for name in ("images", "labels")
    )
    labels[::3] = np.random.default_rng(0).permutation(labels[::3])
    np.savez(tmp_path / "few.npz", x_train=pixels[:130], y_train=labels[:130], x_test=pixels[130:], y_test=labels[130:])
    call = ["reproduce", "scorecard", "--data", str(tmp_path / "few.npz"), "--out", str(tmp_path / "out")]
    call += ["--epochs", "20", "--samples", "3", "--seeds", "2"]
    assert CliRunner().invoke(app, call, catch_exceptions=False).exit_code == 0
    claims = rows(tmp_path / "out", "scorecard")
    assert [row["cause"] == "" for row in claims] == [row["verdict"] == "confirmed" for row in claims]
    runs = sorted((tmp_path / "out/work").glob("seed-*/runs/nll/run.json"))
    assert [Run.load(path.parent).recipe.seed for path in runs] == [0, 1]
    data = memorised(splits.load(str(tmp_path / "few.npz")))
    chosen = setting(data, "few", Scale.MEMORISE, epochs=20, samples=3, seeds=2)
    subjects = [Subject(chosen.with_seed(i), data, None, tmp_path / "out", TrainDevice.CPU) for i in range(2)]
    cell = (Row.UNCALIBRATED, Inference.MC)
    widths = {}
    for used in (subjects[:1], subjects[1:], subjects):
        found = measure(Study(chosen, used, tmp_path), scorecard._overconfidence, cell)
        assert found.value > 0.05, "it is wrong more often than it expects"
        widths[len(used)] = found.high - found.low
    assert widths[2] > widths[1], "two seeds differ, and Student's t allows for more"


def test_the_paper_aux_overfits_where_ours_stops(rng: np.random.Generator) -> None:
    classes, images = 40, 400
    truth = rng.integers(classes, size=2 * images)
    shared, own = rng.normal(size=(1, 2 * images, classes)), rng.normal(size=(3, 2 * images, classes))
    logits = (shared + 0.2 * own).astype(np.float32)
    logits[:, np.arange(2 * images), truth] += 1.5
    fitted, unseen = (ArrayLogits(logits[:, part]) for part in (slice(images), slice(images, None)))
    parameters = paper_aux.fit(fitted, truth[:images])
    ours = fit_map(Method.AUX, fitted, truth[:images])
    seen = metrics.accuracy(paper_aux.probabilities(parameters, fitted), truth[:images])
    assert seen > 0.98, "two layers of 40 units memorise 400 images"
    worse = metrics.nll(paper_aux.probabilities(parameters, unseen), truth[images:])
    assert worse > 1.5 * metrics.nll(probabilities(ours, unseen), truth[images:])


def test_foreign_images_come_from_folders_with_and_without_classes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (20, 10), (name == "a" and "white") or "black").save(tmp_path / name / "x.png")
    (tmp_path / "b" / "broken.png").write_bytes(b"no image")
    with pytest.warns(SkippedImagesWarning, match=r"1 images were left out.*b/broken\.png"):
        found = labelled.load_ood(str(tmp_path), ImageSpec(8, 8, 1))
    assert found.images.shape == (2, 8, 8, 1)
    assert found.images[:, 0, 0, 0].tolist() == [255, 0]
    np.savez(tmp_path / "other_test.npz", x=np.zeros((3, 8, 8), np.uint8), y=np.zeros(3, np.int64))
    assert len(labelled.load_ood("other", ImageSpec(8, 8, 1), tmp_path)) == 3
