"""What the command of every port must pass about foreign images: the rule of a file, its reasons and its refusals."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from conftest import GOLDEN, ROOT

from helpers.pictures import no_photos
from helpers.port_cases import GATED, IMAGE, MODEL, REFERENCE_IMAGES, Port, answer, not_a_number, refusal, variant
from uce_edge import Model
from uce_edge.errors import ModelFileError
from uce_edge.images.loader import load
from uce_edge.models import BUNDLED, bundled

EXAMPLES = sorted((ROOT / "examples" / "images").glob("*.png"))
Change = Callable[[dict[str, Any]], object]
"""Of a metadata document."""
_CUTOFF = "its cutoff is not strictly between 0 and 1"


def wrong_rules() -> dict[str, tuple[Change, str]]:
    """Changes of the metadata of `GATED` after which its rule cannot be applied, and what is said of them."""

    def foreign(**values: object) -> Change:
        return lambda about: about["rule"]["foreign"].update(values)

    def uncertain(**values: object) -> Change:
        return lambda about: about["rule"]["uncertain"].update(values)

    return {
        "cutoff-0": (foreign(cutoff=0), _CUTOFF),
        "cutoff-1": (foreign(cutoff=1), _CUTOFF),
        "cutoff-word": (foreign(cutoff="low"), "its key cutoff has the wrong type"),
        "no-cutoff": (lambda about: about["rule"]["foreign"].pop("cutoff"), "it lacks the key cutoff"),
        "no-foreign": (lambda about: about["rule"].pop("foreign"), "it lacks the key foreign"),
        "foreign-list": (lambda about: about["rule"].update(foreign=[]), "its key foreign has the wrong type"),
        "rule-list": (lambda about: about.update(rule=[]), "its key rule has the wrong type"),
        "score": (lambda about: about["rule"].update(score="energy"), "its rule compares energy"),
        "threshold": (uncertain(threshold=1.5), "its threshold is not between 0 and 1"),
        "samples": (uncertain(samples=0), "its key samples is out of range"),
        "outputs": (lambda about: about.update(outputs=["novelty_score"]), "its rule needs the output novelty"),
        "no-outputs": (lambda about: about.pop("outputs"), "its rule needs the output novelty"),
    }


def bundled_copy(folder: Path, kind: str) -> Path:
    """A model of the box with its description beside it, as they lie there."""
    file = folder / f"{kind}.onnx"
    for suffix in (".onnx", ".json"):
        shutil.copy(bundled(kind).with_suffix(suffix), file.with_suffix(suffix))
    return file


def words_of_python(model: Path, image: Path, reject: float | Literal["auto"]) -> str:
    """What Python says of the decision about a golden image."""
    opened = Model(model, "cpu", threads=1)
    (prediction,) = opened.predict(np.frombuffer(image.read_bytes(), np.uint8).reshape(1, 8, 8, 1), reject=reject)
    return prediction.why


class GateTests:
    """Inherited by the tests of each port, whose module has the fixture `port`."""

    @pytest.mark.parametrize("reject", ["auto", 0.4])
    @pytest.mark.parametrize("image", ["digit-0", "two-digits", "black", "stripes"])
    @pytest.mark.parametrize("model", [MODEL, GATED], ids=lambda path: path.stem)
    def test_a_person_is_told_why_in_the_words_of_python(
        self, port: Port, model: Path, image: str, reject: float | Literal["auto"]
    ) -> None:
        raw = GOLDEN / f"{image}.raw"
        assert answer(port, model, raw, "--reject", reject)["why"] == words_of_python(model, raw, reject)

    def test_a_threshold_of_ones_own_is_about_the_uncertainty_alone(self, port: Port) -> None:
        said = answer(port, GATED, GOLDEN / "black.raw", "--reject", 0.5)
        assert (said["decision"], said["reason"]) == ("accept", None)
        assert said["novelty"] == pytest.approx(1 / (REFERENCE_IMAGES + 1))
        said = answer(port, GATED, GOLDEN / "stripes.raw", "--reject", 0.35)
        assert (said["decision"], said["reason"]) == ("reject", "uncertain")

    def test_a_rule_may_promise_nothing_about_the_error(self, port: Port, tmp_path: Path) -> None:
        file = variant(tmp_path, lambda about: about["rule"].update(uncertain=None), source=GATED)
        said = answer(port, file, GOLDEN / "noise.raw", "--reject", "auto")
        assert (said["decision"], said["why"]) == ("accept", "like what it was calibrated on")
        assert answer(port, file, GOLDEN / "stripes.raw", "--reject", "auto")["reason"] == "foreign"

    def test_not_even_such_a_rule_accepts_an_uncertainty_that_is_not_a_number(self, port: Port, tmp_path: Path) -> None:
        file = variant(tmp_path, lambda about: about["rule"].update(uncertain=None), not_a_number, GATED)
        assert answer(port, file, IMAGE, "--reject", "auto")["reason"] == "uncertain"

    def test_a_novelty_that_is_not_a_number_is_foreign(self, port: Port, tmp_path: Path) -> None:
        file = variant(tmp_path, graph=lambda graph: not_a_number(graph, "novelty.weights"), source=GATED)
        said = answer(port, file, IMAGE, "--reject", "auto")
        assert (said["novelty"], said["decision"], said["reason"]) == (None, "reject", "foreign")

    def test_a_file_without_a_rule_rejects_by_its_threshold(self, port: Port, tmp_path: Path) -> None:
        file = variant(tmp_path, lambda about: about.update(rule=None), source=GATED)
        said = answer(port, file, GOLDEN / "black.raw", "--reject", "auto")
        assert (said["decision"], said["why"]) == ("accept", "its uncertainty is at most 0.2074")
        assert said["novelty"] is not None

    def test_the_promise_of_the_rule_is_its_own(self, port: Port, tmp_path: Path) -> None:
        file = variant(tmp_path, lambda about: about["rule"]["uncertain"].update(samples=30), source=GATED)
        assert "promise" in port(file, IMAGE, "--reject", "auto").stderr
        file = variant(tmp_path, lambda about: about["reject"].update(samples=30), source=GATED)
        assert port(file, IMAGE, "--reject", "auto").stderr == ""

    @pytest.mark.parametrize("model", [MODEL, GATED], ids=lambda path: path.stem)
    def test_a_threshold_on_the_confidence_is_applied_instead_of_that_on_the_uncertainty(
        self, port: Port, tmp_path: Path, model: Path
    ) -> None:
        image = np.frombuffer(IMAGE.read_bytes(), np.uint8).reshape(1, 8, 8, 1)
        doubt = 1 - float(Model(model, "cpu").predict(image).probabilities.max())
        for share, decision in ((1.01, "accept"), (0.99, "reject")):
            stored = {"threshold": share * doubt}
            file = variant(tmp_path, lambda about: about.update(doubt=about["reject"] | stored), source=model)  # noqa: B023
            said = answer(port, file, IMAGE, "--reject", "auto")
            assert (said["decision"], said["why"]) == (decision, words_of_python(file, IMAGE, "auto"))
            assert "confidence is" in said["why"]
        assert said["reason"] == "uncertain"
        if model == GATED:  # the gate of the rule stays
            raw = GOLDEN / "black.raw"
            said = answer(port, file, raw, "--reject", "auto")
            assert (said["decision"], said["why"]) == ("reject", words_of_python(file, raw, "auto"))
            assert said["reason"] in ("foreign", "both")
        file = variant(tmp_path, lambda about: about.update(doubt=about["reject"] | {"threshold": 2}), source=model)
        assert refusal(port, file, IMAGE).endswith(" has damaged metadata: its threshold is not between 0 and 1.")

    @pytest.mark.parametrize("model", [MODEL, GATED], ids=lambda path: path.stem)
    def test_a_limit_for_every_class_is_applied_instead_of_one_for_all(
        self, port: Port, tmp_path: Path, model: Path
    ) -> None:
        image = np.frombuffer(IMAGE.read_bytes(), np.uint8).reshape(1, 8, 8, 1)
        (plain,) = Model(model, "cpu").predict(image)

        def limits(own: float, others: float, classes: int = 10) -> Change:
            some = {"target_error": 0.1, "error_bound": 0.1, "error": 0, "coverage": 1, "accepted": 9, "images": 9}
            listed = [some | {"threshold": own if index == plain.class_id else others} for index in range(classes)]
            how = {"confidence": 0.95, "tested": 10, "samples": 25, "seed": 0, "data": ""}
            return lambda about: about.update(per_class={"limits": listed, **how})

        for own, others, decision in (
            (1.01 * plain.uncertainty, 0, "accept"), (0.99 * plain.uncertainty, 1, "reject"), (-1, 1, "reject"),
        ):  # fmt: skip
            file = variant(tmp_path, limits(own, others), source=model)
            said = answer(port, file, IMAGE, "--reject", "auto")
            assert (said["decision"], said["why"]) == (decision, words_of_python(file, IMAGE, "auto"))
        assert (said["reason"], said["why"]) == ("uncertain", f"nothing that is labelled {plain.label} is accepted")
        if model == GATED:  # the gate of the rule stays
            raw = GOLDEN / "black.raw"
            said = answer(port, file, raw, "--reject", "auto")
            assert (said["decision"], said["why"]) == ("reject", words_of_python(file, raw, "auto"))
            assert said["reason"] in ("foreign", "both")
        assert "promise" in port(file, IMAGE, "--reject", "auto", "--seed", 1).stderr
        for change, sentence in (
            (limits(2, 1), "the limit of a class is not between -1 and 1"),
            (limits(0, 0, 9), "it has not one limit for every class"),
        ):
            file = variant(tmp_path, change, source=model)
            assert refusal(port, file, IMAGE).endswith(f" has damaged metadata: {sentence}.")
            with pytest.raises(ModelFileError):
                Model(file, "cpu")

    @pytest.mark.parametrize(("change", "sentence"), wrong_rules().values(), ids=wrong_rules())
    def test_a_rule_that_cannot_be_applied_is_refused_as_python_does(
        self, port: Port, tmp_path: Path, change: Change, sentence: str
    ) -> None:
        file = variant(tmp_path, change, source=GATED)
        assert refusal(port, file, IMAGE).endswith(f" has damaged metadata: {sentence}.")
        with pytest.raises(ModelFileError):
            Model(file, "cpu")

    def test_a_graph_without_the_outputs_that_are_listed_is_refused(self, port: Port, tmp_path: Path) -> None:
        file = variant(tmp_path, lambda about: about.update(outputs=["novelty", "novelty_score"]))
        assert refusal(port, file, IMAGE) == f"{file} breaks the contract: its graph is not what its metadata says."

    @pytest.mark.parametrize("kind", BUNDLED)
    def test_the_bundled_file_rejects_what_is_no_photo_as_foreign(self, port: Port, tmp_path: Path, kind: str) -> None:
        file, image = bundled_copy(tmp_path, kind), tmp_path / "image.raw"
        for what, frames in no_photos().items():
            image.write_bytes(frames[0].tobytes())
            said = answer(port, file, image, "--reject", "auto")
            assert (said["decision"], said["reason"] in ("foreign", "both")) == ("reject", True), what

    @pytest.mark.parametrize("kind", BUNDLED)
    def test_the_bundled_file_does_not_reject_all_photos(self, port: Port, tmp_path: Path, kind: str) -> None:
        file, image = bundled_copy(tmp_path, kind), tmp_path / "image.raw"
        reasons = []
        for path in EXAMPLES:
            image.write_bytes(load(path, Model(file, "cpu").metadata.image).tobytes())
            reasons.append(answer(port, file, image, "--reject", "auto")["reason"])
        assert reasons == Model(file, "cpu").predict(EXAMPLES, reject="auto").reasons
        assert None in reasons
