"""The bundled models: they answer at once, keep their promises of size and cost, and say what they are."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Call
from helpers.errors import raises
from helpers.pictures import no_photos
from PIL import Image

from uce_edge import Model, models
from uce_edge.datasets import splits
from uce_edge.errors import ModelFileError
from uce_edge.integrity.verification import check_description
from uce_edge.models import bundled, files, find, kinds
from uce_edge.output.wording import percent
from uce_edge.rejection.rule import Reason

IMAGES = ROOT / "tests" / "cifar"
OWN = sorted(path for path in IMAGES.glob("*.png") if not path.name.startswith("other-"))
OTHER = sorted(IMAGES.glob("other-*.png"))


def test_both_files_are_small_and_cheap() -> None:
    assert sum(bundled(kind, "cifar10").stat().st_size for kind in kinds("cifar10")) < 5e6
    for kind in kinds("cifar10"):
        model = Model(bundled(kind, "cifar10"), "cpu")
        assert model.metadata.inference is kind
        assert model.metadata.promise is not None
        assert model.metadata.calibration.method == "temperature"
        # Two products for every deterministic one, but for the first layer: a pass without noise costs half. The gate
        # of an mc file takes one pass without noise.
        costs = model.metadata.costs
        assert costs.macs(1) < (3 if kind == "mc" else 2) * 45e6


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_its_description_lies_beside_it_for_runtimes_that_read_no_metadata(path: Path) -> None:
    metadata = Model(path, "cpu").metadata
    assert check_description(path, metadata)
    description = path.with_suffix(".json").read_text()
    assert description == metadata.to_json(indent=2) + "\n"
    assert len(description) < 100_000


def test_a_model_that_the_package_leaves_out_says_where_it_is(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in files():
        if not file.stem.startswith("xray"):
            (tmp_path / file.name).symlink_to(file)
    monkeypatch.setattr(models, "_FOLDER", tmp_path)
    with raises("model.left-out", ModelFileError):
        find("xray")
    told = call("models").out
    assert "\nxray: chest X-rays of children" in told
    assert "get xray-mc.onnx from the folder uce_edge/models of" in told
    assert "xray" not in {one["name"] for one in json.loads(call("models", "--json").out)}


def test_a_model_that_is_there_is_not_listed_as_left_out(call: Call) -> None:
    assert models.left_out() == ()
    assert "not in this package" not in call("models").out


CARDS = sorted(path.name for path in (ROOT / "docs").glob("model-card*.md"))


@pytest.mark.parametrize("page", ["README.md", "mkdocs.yml", "docs/faq.md"])
def test_every_model_card_is_linked(page: str) -> None:
    assert len(CARDS) == len(models.names())
    assert [card for card in CARDS if card not in (ROOT / page).read_text("utf-8")] == []


def test_a_small_photo(call: Call) -> None:
    printed = call("predict", IMAGES / "ship.png", "--model", "cifar10", "--reject", "0.3")
    assert printed.code == 0
    assert printed.out.splitlines()[1].split()[0] == "ship"
    assert "accept: its uncertainty is at most 0.3" in printed.out


@pytest.mark.parametrize("kind", kinds("cifar10"))
def test_its_own_classes_are_known_and_others_are_doubted(kind: str) -> None:
    model = Model(bundled(kind, "cifar10"), "cpu")
    own, other = model.predict(OWN), model.predict(OTHER)
    right = [label == path.stem for label, path in zip(own.labels, OWN, strict=True)]
    assert sum(right) >= 7
    assert own.uncertainty.mean() < other.uncertainty.mean() - 0.1
    # What it gets wrong, it is unsure about.
    assert all(ok or h > 0.25 for ok, h in zip(right, own.uncertainty, strict=True))


def test_both_files_agree_as_far_as_one_is_an_approximation() -> None:
    answers = [Model(bundled(kind, "cifar10"), "cpu").predict(OWN + OTHER) for kind in kinds("cifar10")]
    assert np.abs(answers[0].uncertainty - answers[1].uncertainty).mean() < 0.05


def test_the_card_is_inside_the_file_and_in_the_docs(call: Call) -> None:
    shown = call("info", "cifar10", "--all").out
    for word in ("accuracy", "limits", "licence", "train --data", "reject auto"):
        assert word in shown
    card = (IMAGES.parent.parent / "docs" / "model-card.md").read_text()
    accuracy = Model(bundled(name="cifar10"), "cpu").metadata.metrics["accuracy"]
    assert f"{100 * accuracy.value:.1f} %" in card
    assert accuracy.value >= 0.85


def test_moments_is_the_default_of_several_files(call: Call) -> None:
    asked = ("predict", IMAGES / "cat.png", "--json", "--model", "cifar10")
    plain, named = json.loads(call(*asked).out), json.loads(call(*asked, "--inference", "moments").out)
    assert plain == named


@pytest.mark.parametrize("kind", kinds("cifar10"))
@pytest.mark.parametrize("what", no_photos())
def test_what_is_no_photo_is_rejected_as_out_of_distribution(kind: str, what: str) -> None:
    prediction = Model(bundled(kind, "cifar10"), "cpu").predict(no_photos()[what], reject="auto")
    assert set(prediction.reasons or ()) <= {Reason.OUT_OF_DISTRIBUTION, Reason.BOTH}


@pytest.mark.parametrize("kind", kinds("cifar10"))
def test_its_own_photos_are_familiar(kind: str) -> None:
    model = Model(bundled(kind, "cifar10"), "cpu")
    prediction = model.predict(OWN, reject="auto")
    assert sum(reason in (Reason.OUT_OF_DISTRIBUTION, Reason.BOTH) for reason in prediction.reasons or ()) <= 1
    rule = model.metadata.rule
    assert rule is not None
    assert rule.gate is not None
    assert (rule.gate.level, rule.gate.confidence, rule.gate.images) == (0.01, 0.95, 2500)
    assert rule.promise is not None
    assert rule.promise.target_error == 0.05


def test_a_person_is_told_why(call: Call, tmp_path: Path) -> None:
    Image.fromarray(no_photos()["white noise"][0]).save(tmp_path / "noise.png")
    printed = call("predict", tmp_path / "noise.png", IMAGES, "--model", "cifar10", "--reject", "auto")
    assert printed.code == 0
    (line,) = (line for line in printed.out.splitlines() if "noise.png" in line)
    assert "reject: unlike anything it was calibrated on" in line


@pytest.mark.skipif("UCE_EDGE_DATA" not in os.environ, reason="needs CIFAR-10 under UCE_EDGE_DATA")
def test_of_its_own_test_images_about_one_in_a_hundred_is_lost() -> None:
    model = Model(bundled(name="cifar10"), "cpu")
    prediction = model.predict(splits.load("cifar10").splits["test"].images, reject="auto")
    rejected = [reason in (Reason.OUT_OF_DISTRIBUTION, Reason.BOTH) for reason in prediction.reasons or ()]
    assert 0.002 < np.mean(rejected) < 0.013


@pytest.mark.skipif("UCE_EDGE_DATA" not in os.environ, reason="needs CIFAR-10 under UCE_EDGE_DATA")
def test_the_card_tells_the_truth(call: Call) -> None:
    printed = call("evaluate", "cifar10", "--data", "cifar10", "--no-latency", "--json")
    assert printed.code == 0, printed.err
    found = json.loads(printed.out)["metrics"]
    for name, score in Model(bundled(name="cifar10"), "cpu").metadata.metrics.items():
        assert found[name]["value"] == pytest.approx(score.value, abs=1e-4)


def _card(name: str) -> str:
    return (ROOT / "docs" / f"model-card-{name}.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["imagenet", "waste", "xray"])
def test_the_card_has_the_scores_and_the_promise_of_the_file(name: str) -> None:
    metadata = Model(bundled(name=name), "cpu").metadata
    page = _card(name)
    rows = {
        "accuracy": "accuracy",
        "ece": "ECE",
        "tuce": "T-UCE",
        "uce": "UCE",
        "aurc": "AURC",
        "auroc": "AUROC of errors",
    }
    for key, title in rows.items():
        score = metadata.metrics[key]
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {title} | "))
        shown = [float(number) for number in re.findall(r"\d+\.\d+", row)]
        stored = [100 * value for value in (score.value, score.low, score.high, score.twin)]
        assert shown == pytest.approx(stored, abs=0.0056 if key == "aurc" else 0.051)
    level = {"imagenet": 0.03, "waste": 0.05, "xray": 0.03}[name]
    start = f"| {metadata.inference} | {percent(level)} |"
    (promised,) = (line for line in page.splitlines() if line.startswith(start))
    assert metadata.rule is not None
    assert metadata.rule.gate is not None
    assert metadata.rule.gate.level == level
    assert metadata.promise is not None
    assert f"| {percent(metadata.promise.target_error)} |" in promised
    (limit,) = metadata.rule.limits or ()
    accepts = f"uncertainty at most {limit:.4f}" if metadata.rule.score == "uncertainty" else percent(1 - limit, 2)
    assert accepts in promised
    for line in metadata.card["limits"]:
        assert f"- {line}" in page


def test_the_limits_of_waste_name_the_share_of_other_photos_that_it_accepts() -> None:
    page = _card("waste")
    (row,) = (line for line in page.splitlines() if line.startswith("| mc, 1,000 of test |"))
    assert f"- Other things are often accepted: {row.split('|')[-2].strip()} of ImageNet's photos." in page


def test_the_cards_of_built_models_point_to_the_comparison_of_posteriors() -> None:
    for name in ("waste", "xray"):
        assert "are the defaults of `uce-edge build`" in _card(name)
        assert "(posteriors.md)" in _card(name)


@pytest.mark.parametrize(("name", "channels"), [("imagenet", 3), ("waste", 3), ("xray", 1)])
def test_noise_is_out_of_distribution(name: str, channels: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1, 224, 224, channels), np.uint8)
    (image,) = Model(bundled(name=name), "cpu").predict(noise, reject="auto")
    assert image.reason in (Reason.OUT_OF_DISTRIBUTION, Reason.BOTH)


XRAYS = sorted((ROOT / "tests" / "xrays").glob("*.png"))


def test_the_xray_model_reads_xrays_and_no_photos(call: Call) -> None:
    printed = call("predict", "--model", "pneumonia", *XRAYS, IMAGES / "cat.png", "--reject", "auto", "--json")
    assert printed.code == 0, printed.err
    answers = json.loads(printed.out)
    right = [answer["label"] == path.stem.rpartition("-")[0] for answer, path in zip(answers, XRAYS, strict=False)]
    assert sum(right) >= 5
    assert answers[-1]["reason"] in ("out-of-distribution", "both")


def test_an_ood_image_has_no_odds_and_a_file_without_noise_no_spread(call: Call) -> None:
    photo, xray = ROOT / "tests" / "cifar" / "cat.png", ROOT / "tests" / "xrays" / "pneumonia-1.png"
    asked = ("predict", "--model", "pneumonia", "--reject", "auto")
    of_photo, of_xray = (call(*asked, path).out for path in (photo, xray))
    assert "odds unknown" in of_photo
    assert "wrong about < 1 in 1000" in of_xray
    assert "±" not in of_photo + of_xray
    table = call(*asked, photo, xray).out.splitlines()
    assert [line.split()[4] for line in table[1:]] == ["–", "<"]


def test_the_xray_model_has_a_card_and_a_licence(call: Call) -> None:
    shown = call("info", "pneumonia", "--all").out
    for word in ("accuracy", "limits", "CC BY 4.0", "not a medical device"):
        assert word in shown
    model = Model(bundled(name="pneumonia"), "cpu")
    assert model.metadata.members == 3
    assert bundled(name="pneumonia").stat().st_size < 1.5e6
    card = (ROOT / "docs" / "model-card-pneumonia.md").read_text()
    assert f"{100 * model.metadata.metrics['accuracy'].value:.1f} %" in card


@pytest.mark.parametrize("what", no_photos())
def test_what_is_no_xray_is_rejected_as_out_of_distribution(what: str) -> None:
    gray = no_photos()[what][:, 2:30, 2:30, :1]
    prediction = Model(bundled(name="pneumonia"), "cpu").predict(gray, reject="auto")
    assert set(prediction.reasons or ()) <= {Reason.OUT_OF_DISTRIBUTION, Reason.BOTH}


# The default


def test_the_default_knows_a_thousand_things_by_readable_names(call: Call) -> None:
    model = Model(None, "cpu")
    assert bundled() == bundled(name="imagenet")
    assert len(set(model.classes)) == 1000
    assert model.classes[281] == "tabby cat"
    assert not any("_" in name or name.startswith("n0") for name in model.classes)
    # Names that mislead where they stand alone: a laptop, a part of a bottle, a ship, a monitor.
    misleading = {"notebook", "nipple", "pirate", "pick", "screen", "sunglass", "Mexican hairless"}
    assert misleading & set(model.classes) == set()
    assert {"in_set", "heatmap", "novelty"} <= set(model.metadata.outputs)
    assert model.metadata.promise is not None
    assert model.metadata.promise.target_error == 0.1
    shown = call("info", "--all").out
    card = (ROOT / "docs" / "model-card-imagenet.md").read_text()
    for word in ("fp16-weights", "Apache-2.0", "imagenet-network"):
        assert word in shown
    assert f"{100 * model.metadata.metrics['accuracy'].value:.1f} %" in card


@pytest.mark.parametrize("what", no_photos())
def test_what_is_no_photo_is_rejected_by_the_default(what: str) -> None:
    large = [Image.fromarray(pixels).resize((224, 224), Image.Resampling.NEAREST) for pixels in no_photos()[what][:4]]
    assert not any(Model(None, "cpu").predict(large, reject="auto").accepted)
