"""What the command of every port must pass about the reject rule of a file: its decision and its refusals."""

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN, ROOT

from helpers.pictures import no_photos
from helpers.port_cases import GATED, IMAGE, REFERENCE_IMAGES, Port, answer, not_a_number, refusal, variant
from uce_edge import Model
from uce_edge.errors import ModelFileError
from uce_edge.images.loader import load
from uce_edge.models import bundled, kinds

EXAMPLES = sorted((ROOT / "tests" / "cifar").glob("*.png"))
OOD = ("out-of-distribution", "both")
Change = Callable[[dict[str, Any]], object]
"""Of a metadata document."""


def _rule(**values: object) -> Change:
    return lambda about: about["rule"].update(values)


WRONG_RULES: dict[str, tuple[Change, str]] = {
    "list": (lambda about: about.update(rule=[]), "its key rule has the wrong type"),
    "score": (_rule(score="energy"), "its rule compares energy"),
    "limits": (_rule(limits=[0.1] * 9), "its rule has not one limit for every class"),
    "outputs": (lambda about: about.update(outputs=["novelty_score"]), "its rule needs the output novelty"),
    "no-outputs": (lambda about: about.pop("outputs"), "its rule needs the output novelty"),
}
"""Changes of the metadata of `GATED` after which its rule cannot be applied, and what is said of them."""
RULES: dict[str, dict[str, object]] = {
    "uncertainty": {"limits": [0.35], "cutoff": None, "gate": None},
    "confidence": {"score": "confidence", "limits": [0.1], "promise": None},
    "classes": {"limits": [1.0, -1.0] * 5, "promise": None},
    "cutoff": {"limits": None, "promise": None},
}
"""Of `GATED`."""


def bundled_copy(folder: Path, kind: str) -> Path:
    """A bundled model with its description beside it."""
    file = folder / f"{kind}.onnx"
    for suffix in (".onnx", ".json"):
        shutil.copy(bundled(kind, "cifar10").with_suffix(suffix), file.with_suffix(suffix))
    return file


class GateTests:
    """Inherited by the tests of each port, whose module has the fixture `port`."""

    def test_a_threshold_of_ones_own_is_about_the_uncertainty_alone(self, port: Port) -> None:
        said = answer(port, GATED, GOLDEN / "black.raw", "--reject", 0.5)
        assert (said["decision"], said["reason"]) == ("accept", None)
        assert said["novelty"] == pytest.approx(1 / (REFERENCE_IMAGES + 1))
        said = answer(port, GATED, GOLDEN / "stripes.raw", "--reject", 0.35)
        assert (said["decision"], said["reason"]) == ("reject", "uncertain")

    @pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
    def test_split_passes_have_the_decision_of_all_of_them(
        self, port: Port, tmp_path: Path, rule: dict[str, object]
    ) -> None:
        """Calls that are merged compute it from the metadata alone."""
        file, found = variant(tmp_path, _rule(**rule), source=GATED), []
        for name in ("digit-0", "two-digits", "black", "stripes"):
            raw = GOLDEN / f"{name}.raw"
            pixels = np.frombuffer(raw.read_bytes(), np.uint8).reshape(1, 8, 8, 1)
            with warnings.catch_warnings(action="ignore"):
                (wanted,) = Model(file, "cpu").predict(pixels, samples=101, reject="auto")
            said = answer(port, file, raw, "--samples", 101, "--reject", "auto")
            assert (said["decision"], said["reason"]) == (wanted.decision, wanted.reason)
            found.append(said["reason"])
        assert len(set(found)) > 1

    def test_a_novelty_that_is_not_a_number_is_out_of_distribution(self, port: Port, tmp_path: Path) -> None:
        file = variant(tmp_path, graph=lambda graph: not_a_number(graph, "novelty.weights"), source=GATED)
        for samples in (25, 101):
            said = answer(port, file, IMAGE, "--reject", "auto", "--samples", samples)
            assert (said["novelty"], said["decision"], said["reason"]) == (None, "reject", "out-of-distribution")

    def test_other_passes_than_those_of_the_promise_are_announced(self, port: Port, tmp_path: Path) -> None:
        file = variant(tmp_path, lambda about: about["rule"]["promise"].update(samples=30), source=GATED)
        assert "promise" in port(file, IMAGE, "--reject", "auto").stderr
        assert port(GATED, IMAGE, "--reject", "auto").stderr == ""

    @pytest.mark.parametrize(("change", "sentence"), WRONG_RULES.values(), ids=WRONG_RULES)
    def test_a_rule_that_cannot_be_applied_is_refused_as_in_python(
        self, port: Port, tmp_path: Path, change: Change, sentence: str
    ) -> None:
        file = variant(tmp_path, change, source=GATED)
        assert refusal(port, file, IMAGE).endswith(f" has damaged metadata: {sentence}.")
        with pytest.raises(ModelFileError):
            Model(file, "cpu")

    def test_a_graph_without_the_outputs_that_are_listed_is_refused(self, port: Port, tmp_path: Path) -> None:
        file = variant(tmp_path, lambda about: about.update(outputs=["novelty", "novelty_score"]))
        assert refusal(port, file, IMAGE) == f"{file} breaks the contract: its graph is not what its metadata says."

    @pytest.mark.parametrize("kind", kinds("cifar10"))
    def test_the_bundled_file_rejects_what_is_no_photo(self, port: Port, tmp_path: Path, kind: str) -> None:
        file, image = bundled_copy(tmp_path, kind), tmp_path / "image.raw"
        for what, frames in no_photos().items():
            image.write_bytes(frames[0].tobytes())
            said = answer(port, file, image, "--reject", "auto")
            assert (said["decision"], said["reason"] in OOD) == ("reject", True), what

    @pytest.mark.parametrize("kind", kinds("cifar10"))
    def test_the_bundled_file_does_not_reject_all_photos(self, port: Port, tmp_path: Path, kind: str) -> None:
        file, image = bundled_copy(tmp_path, kind), tmp_path / "image.raw"
        reasons = []
        for path in EXAMPLES:
            image.write_bytes(load(path, Model(file, "cpu").metadata.image).tobytes())
            reasons.append(answer(port, file, image, "--reject", "auto")["reason"])
        assert reasons == Model(file, "cpu").predict(EXAMPLES, reject="auto").reasons
        assert None in reasons
