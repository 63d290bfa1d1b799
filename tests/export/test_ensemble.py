"""Ensembles: every member runs every seed, and the whole is calibrated, gated and measured as one."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from conftest import GOLDEN, Call
from helpers.errors import raises
from helpers.nets import Net, export, simple, wide

from uce_edge import contract
from uce_edge.calibration.maps import fit_map
from uce_edge.calibration.novelty import Distance
from uce_edge.contract import Inference, Method, NoiseKind, Posterior
from uce_edge.datasets import overlap
from uce_edge.datasets.splits import Split, load
from uce_edge.errors import ModelFileError, UsageError
from uce_edge.metadata import Metadata
from uce_edge.rejection.promises import NoveltyPromise, Promise
from uce_edge.runtime.model import Model
from uce_edge_export.graph.ensemble import combine
from uce_edge_export.options import Options
from uce_edge_export.recalibration import recalibrate
from uce_edge_export.transform.feature_extraction import emit_all_features, probe

IMAGES = np.random.default_rng(5).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
MC = [GOLDEN / "digits-mc.onnx", GOLDEN / "digits-factored.onnx"]


def net(seed: int, kind: Callable[[Net], onnx.ModelProto] = simple) -> onnx.ModelProto:
    made = Net()
    made.rng = np.random.default_rng(seed)
    return kind(made)


def members(folder: Path, inference: Inference, seeds: tuple[int, ...] = (1, 2, 3), **how: object) -> list[Path]:
    files = []
    for seed in seeds:
        place = folder / f"{inference}-{seed}"
        place.mkdir()
        files.append(export(net(seed), place, inference=inference, **how)[1].path)
    return files


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[Inference, list[Path]]:
    """Three networks as files of every kind."""
    return {inference: members(tmp_path_factory.mktemp("members"), inference) for inference in Inference}


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three networks whose passes are more than draws of the last layer."""
    places = [tmp_path_factory.mktemp("deep") for _ in range(3)]
    return [export(net(seed, wide), place, ("0.02",))[1].path for seed, place in enumerate(places)]


def graph_outputs(path: Path, images: np.ndarray, seeds: range | None = None) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feed = {contract.IMAGE: images} | ({} if seeds is None else {contract.SEEDS: np.array(seeds, np.int32)})
    return dict(zip(names, session.run(names, feed), strict=True))


@pytest.mark.parametrize("inference", Inference)
def test_every_pass_is_that_of_a_member_seed_by_seed(
    inference: Inference, made: dict[Inference, list[Path]], tmp_path: Path
) -> None:
    files = made[inference]
    done = combine(files, tmp_path / "e.onnx", IMAGES)
    assert (done.metadata.posterior, done.metadata.members) == (Posterior.ENSEMBLE, 3)
    samples = None if inference is Inference.DETERMINISTIC else 4
    together = Model(done.path, "cpu").logits(IMAGES, samples)
    for number, file in enumerate(files):
        alone = Model(file, "cpu")
        np.testing.assert_allclose(together[number::3], alone.logits(IMAGES, samples), atol=1e-6)
        one, all_ = alone.metadata.costs, done.metadata.costs
        assert one is not None
        assert all_ is not None
        assert (all_.macs_once, all_.macs_per_pass) == (3 * one.macs_once, 3 * one.macs_per_pass)


def test_the_standard_error_is_that_of_the_averages_over_members(
    made: dict[Inference, list[Path]], tmp_path: Path
) -> None:
    done = combine(made[Inference.MC], tmp_path / "e.onnx")
    said = graph_outputs(done.path, IMAGES, range(7))
    passes = said["pass_probabilities"].astype(np.float64)
    assert passes.shape == (21, 5, 4)
    p = passes.mean(0)
    for image in range(5):
        of_seeds = [
            np.mean([-(passes[3 * seed + member, image] * np.log(p[image])).sum() / math.log(4) for member in range(3)])
            for seed in range(7)
        ]
        np.testing.assert_allclose(said["standard_error"][image], np.std(of_seeds, ddof=1) / math.sqrt(7), rtol=1e-4)
    entropies = -(passes * np.log(passes)).sum(-1).mean(0) / math.log(4)
    np.testing.assert_allclose(said["model_uncertainty"], said["uncertainty"] - entropies, atol=1e-6)
    assert graph_outputs(done.path, IMAGES, range(1))["standard_error"].tolist() == [1] * 5


def test_passes_split_over_calls_merge_to_what_one_call_gives(deep: list[Path], tmp_path: Path) -> None:
    done = combine(deep, tmp_path / "e.onnx", samples=70)
    whole, split = graph_outputs(done.path, IMAGES, range(70)), Model(done.path, "cpu").predict(IMAGES)
    assert split.samples == 70
    for name in ("probabilities", "uncertainty", "model_uncertainty", "standard_error", "error_probability"):
        np.testing.assert_allclose(getattr(split, name), whole[name], atol=1e-6)


def test_adaptive_passes_count_seeds_and_stop_where_the_outcome_is_clear(deep: list[Path], tmp_path: Path) -> None:
    model = Model(combine(deep, tmp_path / "e.onnx", samples=60).path, "cpu")
    everything = model.predict(IMAGES)
    # Thresholds near and far from what is decided.
    for reject in (0.05, float(np.median(everything.uncertainty)), 0.999):
        early = model.predict(IMAGES, reject=reject, adaptive=0.01)
        assert early.decisions == model.predict(IMAGES, reject=reject).decisions
        assert ((early.drawn % 5 == 0) & (early.drawn <= 60)).all()
        for image, drawn in enumerate(early.drawn):
            same = graph_outputs(Path(model.path), IMAGES[image : image + 1], range(drawn))
            np.testing.assert_allclose(early.uncertainty[image], same["uncertainty"][0], atol=1e-6)
            np.testing.assert_allclose(early.standard_error[image], same["standard_error"][0], atol=1e-6)
    assert (early.drawn < 60).all()


def test_deterministic_members_take_no_seeds_and_have_no_sampling_error(
    made: dict[Inference, list[Path]], tmp_path: Path
) -> None:
    done = combine(made[Inference.DETERMINISTIC], tmp_path / "e.onnx")
    said = graph_outputs(done.path, IMAGES)
    assert said["logits"].shape == said["pass_probabilities"].shape == (3, 5, 4)
    assert said["standard_error"].tolist() == [0] * 5
    assert (said["model_uncertainty"] > 1e-4).all()
    np.testing.assert_allclose(said["probabilities"], said["pass_probabilities"].mean(0), atol=1e-6)
    prediction = Model(done.path, "cpu").predict(IMAGES)
    assert (prediction.samples, prediction.drawn.tolist()) == (1, [1] * 5)


def test_a_file_that_lies_about_its_members_is_refused(made: dict[Inference, list[Path]], tmp_path: Path) -> None:
    done = combine(made[Inference.DETERMINISTIC], tmp_path / "e.onnx")
    model = ir.load(done.path)
    model.metadata_props.clear()
    model.metadata_props.update(replace(done.metadata, members=2, digests=None).to_properties())
    ir.save(model, done.path)
    with pytest.raises(ModelFileError, match="damaged: its metadata promises"):
        Model(done.path, "cpu")


def test_equal_constants_and_equal_work_are_in_the_file_once(tmp_path: Path) -> None:
    def headed(seed: int) -> onnx.ModelProto:
        made = Net()
        trunk = made.Relu(made.conv(made.stem(), 6, 6))
        made.rng = np.random.default_rng(seed)
        return made.model(made.head(trunk))

    files = []
    for seed in (1, 2):
        (tmp_path / f"{seed}").mkdir()
        files.append(export(headed(seed), tmp_path / f"{seed}", inference=Inference.DETERMINISTIC)[1].path)
    done = combine(files, tmp_path / "e.onnx")
    assert [node.op_type for node in ir.load(done.path).graph].count("Conv") == 2
    one, both = Model(files[0], "cpu").metadata.costs, done.metadata.costs
    assert one is not None
    assert both is not None
    assert both.macs_once == one.macs_once + 6 * 4  # only the last layer is there twice
    noisy = combine(MC, tmp_path / "noisy.onnx").path
    constants = ir.load(noisy).graph.initializers
    assert [name for name in constants if name.startswith("noise.table")] == ["noise.table"]
    assert noisy.stat().st_size < 0.65 * sum(file.stat().st_size for file in MC)


def test_networks_of_other_kinds_and_normalisations_can_be_members(tmp_path: Path) -> None:
    files = []
    for name, proto, mean in (("a", net(1), (0.5, 0.4, 0.3)), ("b", wide(), (0.1, 0.2, 0.3))):
        (tmp_path / name).mkdir()
        files.append(export(proto, tmp_path / name, mean=mean, samples=3)[1].path)
    done = combine(files, tmp_path / "e.onnx", IMAGES)
    assert done.parity.largest_difference < 1e-4
    assert Model(done.path, "cpu").predict(IMAGES).probabilities.shape == (5, 4)


def test_members_with_the_runtimes_own_noise_do_not_share_it(tmp_path: Path) -> None:
    files = members(tmp_path, Inference.MC, (1, 2), noise=NoiseKind.RANDN)
    model = Model(combine(files, tmp_path / "e.onnx").path, "cpu")
    kinds = [node.op_type for node in ir.load(model.path).graph]
    assert kinds.count("RandomNormalLike") == 2 * [node.op_type for node in ir.load(files[0]).graph].count(
        "RandomNormalLike"
    )
    assert np.isfinite(model.logits(IMAGES, 3)).all()


def test_baked_passes(made: dict[Inference, list[Path]], tmp_path: Path) -> None:
    files = made[Inference.MC]
    baked = combine(files, tmp_path / "baked.onnx", samples=4, baked=True)
    free = Model(combine(files, tmp_path / "free.onnx", samples=4).path, "cpu")
    model = Model(baked.path, "cpu")
    assert not model.metadata.takes_seeds
    np.testing.assert_array_equal(model.predict(IMAGES).probabilities, free.predict(IMAGES).probabilities)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An ensemble, and the same calibrated, gated, and with a promise."""
    folder = tmp_path_factory.mktemp("ensemble")
    digits = load("digits")
    plain = combine(MC, folder / "plain.onnx", samples=3).path
    new = folder / "calibrated.onnx"
    recalibrate(
        plain, new, digits.splits["calibration"], Method.TEMPERATURE,
        promise=Promise(0.03), novelty=NoveltyPromise(), held_out=digits.splits["guarantee"],
    )  # fmt: skip
    return plain, new


def test_an_ensemble_is_calibrated_as_a_whole(calibrated: tuple[Path, Path]) -> None:
    old, new = (Model(path, "cpu") for path in calibrated)
    data = load("digits").splits["calibration"]
    logits = old.logits(data.images)
    assert new.metadata.calibration.samples == 3
    assert new.metadata.calibration.parameters == fit_map(Method.TEMPERATURE, logits, data.labels).parameters
    assert new.metadata.members == 2
    assert np.array_equal(new.logits(data.images[:3]), old.logits(data.images[:3]))


def test_a_promise_holds_for_the_seeds_of_the_whole(calibrated: tuple[Path, Path]) -> None:
    model, data = Model(calibrated[1], "cpu"), load("digits").splits["guarantee"]
    rule = model.metadata.rule
    assert rule is not None
    assert rule.promise is not None
    said = model.predict(data.images, reject="auto")
    accepted = np.array([decision == "accept" for decision in said.decisions])
    assert (rule.promise.samples, rule.promise.accepted) == (3, accepted.sum())
    assert (said.class_ids != data.labels)[accepted].mean() == pytest.approx(rule.promise.error)


def test_an_ensemble_of_finished_files_keeps_no_promise_of_its_members(tmp_path: Path) -> None:
    digits, files = load("digits"), []
    for number, source in enumerate(MC):
        files.append(tmp_path / f"{number}.onnx")
        recalibrate(
            source, files[-1], digits.splits["calibration"], Method.TEMPERATURE, 2,
            promise=Promise(0.1), novelty=NoveltyPromise(), held_out=digits.splits["guarantee"],
        )  # fmt: skip
    one = Model(files[0], "cpu").metadata
    assert None not in (one.rule, one.held_out, one.monitor)
    done = combine(files, tmp_path / "e.onnx")
    model = Model(done.path, "cpu")
    written = model.metadata
    assert (written.rule, written.held_out, written.monitor, written.metrics) == (None, None, None, {})
    assert written.probe != one.probe
    images = digits.splits["test"].images[:9]
    assert not model.outputs(images, np.arange(2, dtype=np.int32), [contract.DECISION])[contract.DECISION].any()


def test_the_novelty_of_an_ensemble_is_the_sum_of_its_members_distances(calibrated: tuple[Path, Path]) -> None:
    images = load("digits").splits["test"].images[:20]
    constants = {name: value.const_value.numpy() for name, value in ir.load(calibrated[1]).graph.initializers.items()}
    wanted = np.zeros(20)
    for number, file in enumerate(MC):
        (features,) = probe(ir.load(file), images, emit_all_features)
        fitted = Distance(constants[f"novelty.{number}.whitening"].T, constants[f"novelty.{number}.means"], 0)
        wanted += fitted(features)
    said = Model(calibrated[1], "cpu").predict(images)
    np.testing.assert_allclose(said.novelty_score, wanted, rtol=1e-4)


def test_novelty_is_taken_away_again_with_its_costs(calibrated: tuple[Path, Path], tmp_path: Path) -> None:
    digits = load("digits").splits["calibration"]
    recalibrate(calibrated[1], tmp_path / "again.onnx", digits, Method.NONE)
    before, after = (Model(path, "cpu").metadata for path in (calibrated[0], tmp_path / "again.onnx"))
    assert after.outputs == ()
    assert after.costs == before.costs


def refused(folder: Path, files: list[Path], code: str, *named: object) -> None:
    with raises(f"ensemble.{code}") as caught:
        combine(files, folder / "x.onnx")
    assert all(str(name) in str(caught.value) for name in named)
    assert not (folder / "x.onnx").exists()


def test_what_cannot_be_a_member_is_refused_by_name(made: dict[Inference, list[Path]], tmp_path: Path) -> None:
    a, b, c = made[Inference.DETERMINISTIC]
    refused(tmp_path, [a], "one-member")
    refused(tmp_path, [a, a], "same-weights", a)
    refused(tmp_path, [a, MC[0]], "different-members", a, MC[0], "classes")
    refused(tmp_path, [a, made[Inference.MC][0]], "different-members", "deterministic")
    refused(tmp_path, [combine([a, b], tmp_path / "two.onnx").path, c], "nested", "two.onnx")
    baked = members(tmp_path, Inference.MOMENTS, (8,), options=Options(bake=True), samples=3)[0]
    refused(tmp_path, [baked, c], "baked-member", baked)
    (tmp_path / "large").mkdir()
    large = export(simple(Net(), ("n", 3, 9, 8)), tmp_path / "large", inference=Inference.DETERMINISTIC)[1].path
    refused(tmp_path, [a, large], "different-members", "8 x 8 x 3 uint8", "9 x 8 x 3 uint8")


def test_nobody_calibrates_on_what_any_member_was_trained_on(tmp_path: Path) -> None:
    files = []
    for number, file in enumerate(MC):
        own = np.full((4, 8, 8, 1), 100 + number, np.uint8)
        model = ir.load(file)
        told = Metadata.from_properties(dict(model.metadata_props), "x")
        model.metadata_props.clear()
        model.metadata_props.update(replace(told, trained_on=overlap.sketch(own), digests=None).to_properties())
        files.append(tmp_path / f"{number}.onnx")
        ir.save(model, files[-1])
    done = combine(files, tmp_path / "e.onnx")
    images = np.full((60, 8, 8, 1), 101, np.uint8)
    with pytest.raises(UsageError, match="60 images of the calibration set were used to train"):
        recalibrate(done.path, tmp_path / "x.onnx", Split(images, np.arange(60) % 10), Method.TEMPERATURE)


def test_the_command_line_makes_one_of_several_files(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "e.onnx"
    said = call("export", "--from", *MC, "--data", "digits", "--samples", 2, "--target-error", 0.05, "--out", out)
    assert said.code == 0
    assert "The file is an ensemble of 2 networks, which all run every seed." in said.err
    assert "Temperature" in said.err
    assert "--reject auto" in said.err
    shown = call("info", out).out
    assert "an ensemble of 2: 2 x resnet8" in shown
    assert "mc, 2 passes by default, in each of 2 networks" in shown


def test_third_party_files_become_one_ensemble(call: Call, tmp_path: Path) -> None:
    for seed in (1, 2):
        (tmp_path / f"{seed}.onnx").write_bytes(net(seed).SerializeToString())
    out = tmp_path / "e.onnx"
    sources = [tmp_path / "1.onnx", tmp_path / "2.onnx"]
    said = call("export", "--from", *sources, "--inference", "deterministic", "--classes", "a,b,c,d", "--out", out)
    assert said.code == 0
    assert "the ensemble is not calibrated" in said.err
    assert f"calibrate {out}" in said.err
    assert Model(out, "cpu").classes == ("a", "b", "c", "d")
    assert call("export", "--from", *sources, tmp_path).code == 2
    missing = call("export", "--from", sources[0], tmp_path / "no.onnx")
    assert f"There is no file {tmp_path / 'no.onnx'}" in missing.err
