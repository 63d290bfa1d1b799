"""Triage of a folder of X-rays: rejected images go to a radiologist.

python examples/gallery/xray_triage.py incoming/ --out triage/                      # the model `xray` of this checkout
python examples/gallery/xray_triage.py incoming/ --out triage/ --model xray.onnx    # one of your own

It writes worklist.csv (what a radiologist must read comes first, the most uncertain on top), sheet.png (all images,
accepted beside rejected) and decisions.jsonl (an audit log whose lines are chained by hashes). At the end, every logged
decision is computed again. stdout has the work list, stderr a summary.

This is an example of software, not a medical device.
"""

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path

import uce_edge
from uce_edge import models
from uce_edge._util.atomic_files import replacing
from uce_edge.audit.decision_log import Audit
from uce_edge.audit.model_files import ModelFiles
from uce_edge.audit.replay import Outcome, replay
from uce_edge.images.loader import collect
from uce_edge.output.contact_sheet import save_sheet
from uce_edge.runtime.answers import Request

XRAY, SMALL = Path(__file__).resolve().parents[2] / "uce_edge" / "models" / "xray-mc.onnx", "pneumonia"
MODEL = str(XRAY) if XRAY.is_file() else SMALL
"""`xray` lies in the repository and not in the package; `pneumonia` sees X-rays at 28x28 pixels."""
ASKED = Request(reject="auto")
"""The stored rule: it keeps the promised error, and rejects out-of-distribution images."""


@dataclass(frozen=True)
class Row:
    """One image of the work list."""

    path: str
    to: str
    """accepted, or radiologist."""
    label: str = ""
    """Empty for a radiologist, so that an answer that the model does not trust influences no one."""
    probability: str = ""
    uncertainty: str = ""
    reason: str = ""
    """Why a radiologist must look: unreadable, out-of-distribution, uncertain, or both of the latter."""
    why: str = ""
    """The same in words."""

    @classmethod
    def of(cls, answer: uce_edge.Answer) -> "Row":
        """The row of an answer."""
        prediction = answer.prediction
        if prediction is None:
            return cls(answer.path, "radiologist", reason="unreadable", why=str(answer.error))
        uncertainty = f"{prediction.uncertainty:.4f}"
        if prediction.decision is uce_edge.Decision.ACCEPT:
            probability = f"{prediction.confidence:.4f}"
            return cls(answer.path, "accepted", prediction.label, probability, uncertainty, why=answer.why)
        return cls(answer.path, "radiologist", "", "", uncertainty, str(prediction.reason), answer.why)


def urgency(answer: uce_edge.Answer) -> tuple[int, float]:
    """Sort key: unreadable images, then rejected, then accepted ones.

    The most uncertain come first in each group. An out-of-distribution image may look certain, so the uncertainty alone
    would put it below accepted ones.
    """
    if answer.prediction is None:
        return 0, 0.0
    return 1 + (answer.decision is uce_edge.Decision.ACCEPT), -answer.prediction.uncertainty


def triage(model: uce_edge.Model, images: Iterable[str], log: Path) -> tuple[list[uce_edge.Answer], str]:
    """Answer every image; log each decision before the next image.

    Returns:
        The answers in the order of the work list, and the hash of the log's last line.
    """
    answers = []
    with closing(Audit(log, model, ASKED)) as audit:
        for answer in model.answers(images, reject=ASKED.reject, keep=True):
            audit.add(answer)
            answers.append(replace(answer, content=None))  # the log has its hash; thousands of files fill the memory
        return sorted(answers, key=urgency), audit.last


def write_list(rows: Sequence[Row], path: Path) -> None:
    """Write the work list as CSV, atomically."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(field.name for field in fields(Row))
        table.writerows(vars(row).values() for row in rows)


def check(log: Path, images: Path, model: Path) -> bool:
    """Compute every logged decision again, and report differences."""
    outcomes: Counter[Outcome] = Counter()
    for finding in replay(log, images, ModelFiles([model])):
        outcomes[finding.outcome] += 1
        if finding.outcome is not Outcome.SAME:
            say(f"{finding.file}:{finding.line}  {finding.path}  {finding.outcome}: {finding.why}")
    say("Replay: " + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) + ".")
    return set(outcomes) <= {Outcome.SAME}


def load(name: str) -> uce_edge.Model:
    """Load the model; the error lists what is bundled."""
    try:
        return uce_edge.load(name)
    except uce_edge.ModelFileError:
        if name != SMALL or name in models.names():
            raise
        raise uce_edge.ModelFileError(
            f"This version has no bundled model `{SMALL}`. It has: {', '.join(models.names())} (uce-edge models). "
            "Name a file of your own with --model xray.onnx; docs/tutorial-pneumonia.md makes one."
        ) from None


def say(text: str) -> None:
    """Print a message on stderr."""
    print(text, file=sys.stderr)


def run(folder: Path, out: Path, name: str) -> int:
    """Triage a folder; return the exit code."""
    if not folder.is_dir():
        raise uce_edge.UsageError(f"There is no folder {folder}. Name the folder of the X-rays.")
    if out.resolve() == folder.resolve():
        raise uce_edge.UsageError("--out is the folder of the X-rays, and the sheet would be triaged next time.")
    model = load(name)
    log, table, sheet = (out / file for file in ("decisions.jsonl", "worklist.csv", "sheet.png"))
    answers, last = triage(model, collect([str(folder)]), log)
    rows = [Row.of(answer) for answer in answers]
    write_list(rows, table)
    for row in rows:
        result = f"{row.label} {row.probability}" if row.to == "accepted" else row.reason
        print(f"{row.path}\t{row.to}\t{result}")
    written = [table, log]
    if any(answer.ok for answer in answers):
        save_sheet(answers, sheet)
        written.append(sheet)
    counts = Counter(row.to for row in rows)
    say(f"{len(rows)} images: {counts['accepted']} accepted, {counts['radiologist']} to a radiologist.")
    say(f"Wrote {', '.join(map(str, written))}.")
    same = check(log, folder, Path(model.path))
    say(f"Keep the hash of the log's last line elsewhere: {last}")
    return 0 if same else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="PNG, JPEG and others; DICOM and NIfTI with uce-edge[medical]")
    parser.add_argument("--out", type=Path, default=Path("triage"), help="one for each folder; default: triage")
    parser.add_argument(
        "--model", default=MODEL, help="a file, or the name of a bundled model; default: xray, or pneumonia"
    )
    words = parser.parse_args(arguments)
    try:
        return run(words.folder, words.out, words.model)
    except uce_edge.UceEdgeError as error:
        say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        say("Stopped by Ctrl-C. All decisions so far are in the log.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
