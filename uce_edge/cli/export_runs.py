"""Export of training runs and untrained networks, with messages."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from uce_edge.cli.calibration_messages import tell_auto, tell_calibration, tell_curve, tell_levels, tell_rule
from uce_edge.cli.export_steps import tell_combined, tell_written
from uce_edge.cli.messages import quote, say, warn
from uce_edge.cli.shared_options import SetsBy, parse_novelty, parse_numbers, parse_promise, parse_sets
from uce_edge.contract import NoiseKind, SetScore
from uce_edge.errors import UsageError, expected
from uce_edge_export.options import FileKind
from uce_edge_train.choices import Rates

if TYPE_CHECKING:
    from uce_edge_train.runs import Run


class Asked(NamedTuple):
    """The promises that options of `export` ask of an ensemble."""

    target_error: str | None = None
    novelty_level: float | None = None
    sets: float | None = None
    sets_score: SetScore | None = None
    sets_by: SetsBy | None = None

    @property
    def words(self) -> str:
        """The options, as they are typed; empty without one."""
        given = {name.replace("_", "-"): value for name, value in self._asdict().items() if value is not None}
        return " ".join(f"--{name} {value}" for name, value in given.items())


def export_runs(given: list[Path], out: Path | None, kind: FileKind, asked: Asked) -> tuple[Path, str]:
    """Export one run, or several as an ensemble.

    Args:
        given: Folders, each of a run or of the members of an ensemble; none for the newest under runs/.
        out: The file.
        kind: The kind of file.
        asked: What an ensemble promises, where that is not what the calibration of its runs asked for.
    """
    from uce_edge_train.runs import members_of, newest

    if not given:
        given = [newest()]
        say(f"Exporting the newest run: {given[0]}")
    folders = [member for folder in given for member in members_of(folder)]
    if len(folders) == 1:
        if asked.words:
            raise UsageError(
                f"{asked.words.split()[0]} needs --from or several runs. A single run gets its promises when it is "
                f"calibrated: uce-edge calibrate {quote(folders[0])} {asked.words}",
                "export.needs-from",
            )
        return export_run(folders[0], out, kind)
    from uce_edge_train.ensemble_export import export_ensemble

    out = out or Path(f"{given[0].resolve().name}{kind.suffix}.onnx" if len(given) == 1 else "ensemble.onnx")
    promise = None if asked.target_error is None else parse_promise(asked.target_error)
    level, sets = parse_novelty(asked.novelty_level).level, parse_sets(asked.sets, asked.sets_score, asked.sets_by)
    done = export_ensemble(folders, out, kind, promise, level=level, sets=sets)
    for folder, member in zip(folders, done.members, strict=True):
        say(f"{folder}:")
        tell_written(member)
    tell_combined(done.combined)
    fitted = done.calibrated
    auto = tell_rule(fitted)
    following = f"predict --model {quote(out)} image.png --reject {'0.3' if auto is None else 'auto'}"
    tell_calibration(fitted.metadata.calibration, fitted.refused)
    return out, following


def export_run(run: Path, out: Path | None, kind: FileKind) -> tuple[Path, str]:
    """Export a training run; returns file and next command."""
    from uce_edge_train import export
    from uce_edge_train.runs import Run

    out = out or Path(f"{run.resolve().name}{kind.suffix}.onnx")
    described = Run.load(run)
    done = export.export_run(
        run, out, described.dataset(), kind.inference, kind.noise, kind.samples, kind.options, kind.precision
    )
    tell_written(done)
    if kind.noise is not NoiseKind.INPUT:
        original = "" if done.torch_nll is None else f" (PyTorch: {done.torch_nll:.4f})"
        say(f"NLL on the calibration images: {done.file_nll:.4f}{original}.")
    if done.refused is not None:
        warn(f"the file has no stored threshold. {done.refused}")
        tell_curve(done.refused, lambda target: _promising(run, described, target))
    tell_levels(done.costs)
    auto = tell_auto(done.metadata)
    if described.calibration.samples is None:
        warn(
            f"THE FILE IS NOT CALIBRATED, because the run {run} is not: its confidence is that of the raw network. "
            f"Run: uce-edge calibrate {quote(run)}   and export it again"
        )
        return out, f"calibrate {quote(run)}"
    threshold = "0.3" if auto is None else "auto"
    return out, f"predict --model {quote(out)} image.png --reject {threshold}"


def _promising(folder: Path, run: "Run", target_error: float) -> str:
    """The command that calibrates a run for another error."""
    parts = f"uce-edge calibrate {quote(folder)} --method {run.calibration.method} --samples {run.calibration.samples}"
    if run.laplace is not None:
        parts += f" --posterior laplace --prior {run.laplace.prior_from}"
    if run.tuned_rates is not None:
        parts += f" --rates {Rates.MODEL if len(set(run.tuned_rates.values())) == 1 else Rates.LAYER}"
    if run.promise is not None:
        parts += f" --confidence {run.promise.confidence:g} --score {run.promise.score}"
    if run.sets is not None:
        by = " --sets-by class" if run.sets.by_class else ""
        parts += f" --sets {run.sets.alpha:g} --sets-score {run.sets.score}{by}"
    return f"{parts} --target-error {target_error:g}   and export it again"


def export_untrained(name: str, out: Path | None, kind: FileKind, p: list[str] | None) -> tuple[Path, str]:
    """Export an untrained network; returns file and next command."""
    from uce_edge_train.networks import untrained

    if p and (len(p) > 1 or "=" in p[0]):
        raise UsageError(expected("`p`", "one rate for an untrained network", p, "Use: --p 0.2"))
    out = out or Path(f"{name}{kind.suffix}.onnx")
    tell_written(untrained.export_untrained(name, out, kind, parse_numbers("p", p[0])[0] if p else None))
    return out, f"bench --model {quote(out)}"
