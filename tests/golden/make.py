"""Makes the goldens: small contract files, raw images, and what ONNX Runtime on a processor answers.

    python tests/golden/make.py contract
    python tests/golden/make.py RUN digits-mc digits-moments
    python tests/golden/make.py FACTORED_RUN digits-factored digits-factored-moments
    python tests/golden/make.py BERNOULLI_RUN digits-bernoulli
    python tests/golden/make.py LAPLACE_RUN digits-laplace
    python tests/golden/make.py RUN digits-heatmap
    python tests/golden/make.py TAIL_RUN digits-tail
    python tests/golden/make.py novelty
    python tests/golden/make.py rules PLAIN_RUN
    python tests/golden/make.py sets
    python tests/golden/make.py cases
    python tests/golden/make.py ensemble MEMBERS
    python tests/golden/make.py monitor
    python tests/golden/make.py range

The first writes contract.json alone, which every reader's test compares its names, limits and rules with. The
others write the named files and their cases, and leave those of other files alone. `novelty` writes digits-novelty:
digits-mc with novelty and otherwise its answers. `rules` writes digits-rule-KIND: one network without noise and every
kind of reject rule. `sets` writes digits-sets-SCORE, with prediction sets.
`cases` asks all files again, for an output that was added to them. `ensemble` writes
digits-ensemble, with novelty and a promise. `range` writes range.json: 16-bit gray values and the bytes that a range
makes of them, absent ranges included. `monitor` writes monitor.json: made scores, of which those from 120 on are
larger, and the
evidence after each. A run is a calibrated digits run:

    uce-edge train --data digits --out RUN                      (FACTORED_RUN: --sigma factored)
                                                                (BERNOULLI_RUN: --dropout bernoulli --p 0.1)
                                                                (LAPLACE_RUN, PLAIN_RUN: --dropout none --epochs 6)
                                                                (TAIL_RUN: --noisy tail)
    uce-edge calibrate RUN --method temperature --target-error 0.015 --no-novelty
                                                                (BERNOULLI_RUN: --target-error 0.02, with novelty)
                                                                (PLAIN_RUN: --method temperature alone)
                                   (LAPLACE_RUN: --target-error 0.02, --posterior laplace --prior held-out-nll)
    uce-edge train --data digits --members 2 --epochs 12 --out MEMBERS

digits-minor-0 is the first file of its kind, with the noise and the metadata of its time: it is never made again, and
every reader answers it as ever.

Every port's test reads the same files: image as bytes, seeds as numbers, outputs as numbers.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import numpy as np

from uce_edge import Model, contract
from uce_edge.contract import Inference, RuleScore, SetScore, pass_seeds
from uce_edge.datasets.splits import Dataset, load
from uce_edge.metadata import Metadata
from uce_edge.rejection.promises import NoveltyPromise
from uce_edge.rejection.rule import REASONS, Code, RejectRule, within
from uce_edge.runtime.providers import onnxruntime

HERE = Path(__file__).resolve().parent
_SHOWN = {"bool": "int32"}
SEEDS = {"default": (0, None), "other": (7, None), "one": (0, 1), "few": (4095, 3)}
"""Name: the seed, and the number of passes (None for the file's own)."""


def contract_document() -> dict[str, Any]:
    """What a reader must agree with; NaN is null."""
    return {
        "contract": contract.VERSION,
        "minor": contract.MINOR,
        "key": contract.KEY,
        "inputs": [contract.IMAGE, contract.SEEDS],
        "outputs": [
            {
                "name": output.name,
                "per": output.per,
                "dtype": output.dtype,
                "shape": output.dimensions,
                "required": output.required,
                "merge": output.merge,
            }
            for output in contract.OUTPUTS
        ],
        "metadata": {"required": Metadata.REQUIRED, "inference": list(Inference), "score": list(RuleScore)},
        "limits": {
            "max_samples": contract.MAX_SAMPLES,
            "max_seed": contract.MAX_SEED,
            "seed_space": contract.SEED_SPACE,
        },
        "accept": [
            {
                "uncertainty": None if np.isnan(uncertainty) else float(uncertainty),
                "threshold": threshold,
                "accepted": bool(within(uncertainty, threshold)),
            }
            for uncertainty, threshold in _edges(0.0, 0.1, 0.3, 0.5, 0.7, 1.0)
        ],
        "decisions": {str(code.value): REASONS[code] for code in Code},
    }


def _edges(*limits: float) -> list[tuple[np.float32, float]]:
    """Numbers at both sides of limits that float32 rounds up, down and not at all; and NaN."""
    edges = [(np.float32(np.nan), limits[-1])]
    for limit in limits:
        exact = np.float32(limit)
        below, above = (np.nextafter(exact, np.float32(end)) for end in (0, 2))
        edges += [(value, limit) for value in dict.fromkeys((below, exact, above))]
    return edges


def write_contract() -> None:
    """Write contract.json."""
    (HERE / "contract.json").write_text(json.dumps(contract_document(), indent=1) + "\n")


def write_range() -> None:
    """Write range.json: the formula of the contract in exact fractions, which no rounding of floats can change."""
    cases = []
    for low, high in (None, None), (0, 4095), (0, 65535), (100, 1123), (0.5, 1000.25), (-1024, 3071), (30000, 30255):
        first, last = (Fraction(0), Fraction(65535)) if low is None else (Fraction(low), Fraction(high))
        values = sorted({round(most * step / 40) for most in (4095, 65535) for step in range(41)})
        scaled = [floor((value - first) * 255 / (last - first) + Fraction(1, 2)) for value in values]
        document = None if low is None else {"low": low, "high": high}
        cases.append({"range": document, "values": values, "bytes": [min(255, max(0, value)) for value in scaled]})
    (HERE / "range.json").write_text(json.dumps({"cases": cases}) + "\n")


def images(dataset: Dataset) -> dict[str, np.ndarray]:
    """Three digits of the test split, one that is hard, and two that are none."""
    test = dataset.splits["test"].images
    rng = np.random.default_rng(0)
    half = ((test[3].astype(int) + test[5]) // 2).astype(np.uint8)
    return {
        "digit-0": test[0], "digit-1": test[1], "digit-2": test[2], "two-digits": half,
        "noise": rng.integers(0, 256, test[0].shape).astype(np.uint8), "black": np.zeros_like(test[0]),
    }  # fmt: skip


def stripes(dataset: Dataset) -> np.ndarray:
    """A picture that is both uncertain and out of distribution."""
    rows = np.arange(dataset.image_shape[0]) % 2 * 255
    return np.broadcast_to(rows[:, None, None], dataset.image_shape).astype(np.uint8)


FILES = {
    "digits-mc": Inference.MC,
    "digits-moments": Inference.MOMENTS,
    "digits-factored": Inference.MC,
    "digits-factored-moments": Inference.MOMENTS,
    "digits-bernoulli": Inference.MC,
    "digits-laplace": Inference.MC,
    "digits-heatmap": Inference.MC,
    "digits-tail": Inference.MC,
}


def write_exported(folder: Path, wanted: list[str]) -> None:
    """Write the named goldens of a run."""
    from uce_edge_export.options import Options
    from uce_edge_train.export import export_run
    from uce_edge_train.runs import Run

    write_contract()
    dataset = Run.load(folder).dataset()

    def export(file: Path) -> None:
        export_run(folder, file, dataset, FILES[file.stem], options=Options(heatmap=file.stem == "digits-heatmap"))

    for name in wanted:
        write(name, export, images(dataset))


def write_novelty() -> None:
    """Write digits-novelty."""
    import onnx_ir as ir

    from uce_edge.rejection.promises import Promise
    from uce_edge_export.check.held_out_rejection import measure
    from uce_edge_export.graph import novelty_score
    from uce_edge_export.publish.draft import publish

    dataset = load("digits")

    def export(file: Path) -> None:
        source = HERE / "digits-mc.onnx"
        with publish(ir.load(source), Model(source, "cpu").metadata, file) as draft:
            gate = novelty_score.add(draft, dataset.splits["calibration"], NoveltyPromise())
            assert isinstance(gate, RejectRule)
            measure(draft, dataset.splits["guarantee"], Promise(0.015), gate)

    write("digits-novelty", export, images(dataset) | {"stripes": stripes(dataset)})


def write_rules(folder: Path) -> None:
    """Write digits-rule-KIND: every kind of rule on one network without noise, with limits between its scores."""
    import onnx_ir as ir

    from uce_edge_export.publish.draft import publish
    from uce_edge_train.export import export_run
    from uce_edge_train.runs import Run

    dataset = Run.load(folder).dataset()
    shown = images(dataset) | {"stripes": stripes(dataset)}
    plain = HERE / "digits-rule-none.onnx"
    export_run(folder, plain, dataset, Inference.DETERMINISTIC)
    model = Model(plain, "cpu")
    gate = model.metadata.rule
    assert gate is not None
    answers = model.predict(np.stack(list(shown.values())))
    middle = {
        score: float(np.sort(RejectRule(score).scores(answers.uncertainty, answers.probabilities))[3:5].mean())
        for score in RuleScore
    }
    by_class = tuple(0.5 if index % 2 else -1.0 for index in range(len(model.classes)))
    kinds = {
        "none": None,
        "uncertainty": RejectRule(limits=(middle[RuleScore.UNCERTAINTY],)),
        "confidence": RejectRule(RuleScore.CONFIDENCE, (middle[RuleScore.CONFIDENCE],)),
        "classes": RejectRule(limits=by_class),
        "cutoff": RejectRule(cutoff=gate.cutoff, gate=gate.gate),
        "all": RejectRule(RuleScore.CONFIDENCE, by_class, gate.cutoff, gate=gate.gate),
    }
    source = ir.load(plain)
    for kind, rule in kinds.items():

        def export(file: Path, rule: RejectRule | None = rule) -> None:
            with publish(ir.from_proto(ir.to_proto(source)), model.metadata, file) as draft:
                draft.describe(replace(draft.metadata, rule=rule))

        write(f"digits-rule-{kind}", export, shown)


def write_sets() -> None:
    """Write digits-sets-SCORE: every score, one limit per label for lac, and passes for raps."""
    import onnx_ir as ir

    from uce_edge.calibration import conformal
    from uce_edge.calibration.label_sets import SetPromise
    from uce_edge_export.check.held_out_rejection import circumstances
    from uce_edge_export.graph import prediction_sets
    from uce_edge_export.publish.draft import publish

    dataset = load("digits")
    data = dataset.splits["guarantee"]
    kinds = {
        "digits-sets-lac": ("digits-rule-none", SetPromise(0.1, SetScore.LAC, by_class=True)),
        "digits-sets-aps": ("digits-rule-none", SetPromise(0.02, SetScore.APS)),
        "digits-sets-raps": ("digits-mc", SetPromise(0.01, SetScore.RAPS)),
    }
    for name, (plain, promise) in kinds.items():
        source = HERE / f"{plain}.onnx"

        def export(file: Path, source: Path = source, promise: SetPromise = promise) -> None:
            with publish(ir.load(source), Model(source, "cpu").metadata, file) as draft:
                other = dataset.splits["calibration"]
                penalty = conformal.choose_penalty(
                    draft.model.predict(other.images).probabilities, other.labels, promise
                )
                answers = draft.model.predict(data.images)
                how = circumstances(answers, data)
                prediction_sets.add(
                    draft,
                    conformal.fit(answers.probabilities, data.labels, promise, answers.classes, how, penalty),
                    data,
                )

        write(name, export, images(dataset) | {"stripes": stripes(dataset)})


def write_ensemble(folder: Path) -> None:
    """Write digits-ensemble."""
    from uce_edge.rejection.promises import Promise
    from uce_edge_train.ensemble_export import export_ensemble
    from uce_edge_train.runs import members_of

    dataset = load("digits")

    def export(file: Path) -> None:
        export_ensemble(members_of(folder), file, promise=Promise(0.02))

    write("digits-ensemble", export, images(dataset) | {"stripes": stripes(dataset)})


def write(golden: str, export: Callable[[Path], object], named: dict[str, np.ndarray]) -> None:
    """Write a file, the images, and what it answers to them in place of its earlier cases."""
    file = HERE / f"{golden}.onnx"
    export(file)
    several = Model(file, "cpu").metadata.takes_seeds
    cases = [case for case in json.loads((HERE / "cases.json").read_text()) if case["model"] != file.name]
    for name, pixels in named.items():
        (HERE / f"{name}.raw").write_bytes(pixels.tobytes())
        cases += [
            case_of(file, f"{name}.raw", pixels, *request)
            for request in (SEEDS.values() if several and name == "digit-0" else [SEEDS["default"]])
        ]
    (HERE / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")


def write_cases() -> None:
    """Ask all files again."""
    write_contract()
    cases = []
    for case in json.loads((HERE / "cases.json").read_text()):
        pixels = np.frombuffer((HERE / case["image"]).read_bytes(), np.uint8).reshape(case["shape"][1:])
        seeds = case["seeds"]
        seed = seeds[0] // contract.MAX_SAMPLES if seeds else 0
        cases.append(case_of(HERE / case["model"], case["image"], pixels, seed, len(seeds) or None))
    (HERE / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")


def case_of(file: Path, image: str, pixels: np.ndarray, seed: int, count: int | None) -> dict[str, Any]:
    """What a file answers, and what its own rule decides."""
    model = Model(file, "cpu")
    rule = model.metadata.rule or RejectRule()
    seeds = pass_seeds(count or model.metadata.samples, seed) if model.metadata.takes_seeds else range(0)
    feed = {contract.IMAGE: pixels[None]} | ({contract.SEEDS: np.array(seeds, np.int32)} if seeds else {})
    names = [output.name for output in contract.outputs_of(model.metadata.outputs, model.metadata.contract)]
    session = onnxruntime().InferenceSession(file, providers=["CPUExecutionProvider"])
    values = dict(zip(names, session.run(names, feed), strict=True))
    compared = (values[contract.UNCERTAINTY], values[contract.PROBABILITIES], values.get(contract.NOVELTY))
    (code,) = rule.decide(*compared)
    assert contract.DECISION not in values or values[contract.DECISION][0] == code
    sets = model.metadata.sets
    assert sets is None or np.array_equal(values[contract.IN_SET], sets.contains(values[contract.PROBABILITIES]))
    return {
        "model": file.name,
        "image": image,
        "shape": [1, *pixels.shape],
        "seeds": list(seeds),
        "threshold": rule.threshold,
        "label": model.classes[int(values[contract.CLASS_ID][0])],
        "decision": int(code),
        "reason": REASONS[code],
        "outputs": {
            name: {
                "shape": list(value.shape),
                "values": [float(str(x)) for x in value.astype(_SHOWN.get(value.dtype.name, value.dtype)).ravel()],
            }
            for name, value in values.items()
            if name not in (contract.PASS_PROBABILITIES, contract.LOGITS) or len(seeds) <= 3
        },
    }


def write_monitor() -> None:
    """A stream that changes, for the betting step."""
    from uce_edge.monitor import Monitor, reference
    from uce_edge.monitor.state import STATISTICS

    rng = np.random.default_rng(0)

    def scores(images: int, shift: float) -> dict[str, np.ndarray]:
        base = rng.normal(shift, 1, images)
        columns = (
            np.maximum(base, -0.4) + 0.4,
            base + rng.normal(0, 1, images),
            np.exp(base / 2),
        )  # the first has ties
        return {name: column.astype(np.float32) for name, column in zip(STATISTICS, columns, strict=True)}

    stored = reference.count(scores(200, 0), scores(300, 0), 25, 0, "")
    quiet, changed = scores(120, 0), scores(60, 0.8)
    values = (np.concatenate([quiet[name], changed[name]]) for name in STATISTICS)
    answers = [
        dict(zip(STATISTICS, (float(str(value)) for value in row), strict=True)) for row in zip(*values, strict=True)
    ]
    alpha, seed = 0.01, 3_000_000_000
    monitor = Monitor.start(stored, "", alpha, seed=seed)
    evidence = []
    for answer in answers:
        monitor.add_scores(answer)
        evidence.append(monitor.log_evidence)
    assert monitor.alarm is not None
    document = {
        "alpha": alpha,
        "seed": seed,
        "monitor": {"statistics": stored.to_document()["statistics"], "samples": 25, "seed": 0, "data": ""},
        "answers": answers,
        "log_evidence": evidence,
        "alarm": monitor.alarm.image,
    }
    (HERE / "monitor.json").write_text(json.dumps(document) + "\n", encoding="utf-8")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["contract"]:
            write_contract()
        case ["cases"]:
            write_cases()
        case ["sets"]:
            write_sets()
        case ["rules", folder]:
            write_rules(Path(folder))
        case ["novelty"]:
            write_novelty()
        case ["ensemble", folder]:
            write_ensemble(Path(folder))
        case ["monitor"]:
            write_monitor()
        case ["range"]:
            write_range()
        case [folder, *wanted]:
            write_exported(Path(folder), wanted)
        case _:
            sys.exit(__doc__)
