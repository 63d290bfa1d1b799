"""Other formats of a finished file: ORT, Triton, Hugging Face."""

from dataclasses import dataclass
from pathlib import Path

import typer

from uce_edge.cli.extras import need_onnx
from uce_edge.cli.messages import describe_auto, quote, say
from uce_edge.errors import UsageError


@dataclass(frozen=True)
class Forms:
    """Other formats to write beside the file."""

    ort: bool = False
    """The file in ONNX Runtime's own format."""
    triton: Path | None = None
    """A model repository for Triton."""
    hub: Path | None = None
    """A folder for the Hugging Face hub."""

    def check(self) -> None:
        """Reject unusable folders."""
        for option, folder in (("--triton", self.triton), ("--hub", self.hub)):
            if folder is not None and folder.exists() and not folder.is_dir():
                raise UsageError(f"{folder} is a file, not a folder. Name a folder with {option}.", "folder.file")
        if self.triton is not None and self.hub is not None and self.triton.resolve() == self.hub.resolve():
            raise UsageError(
                "--triton and --hub write different files: name a different folder for each.", "export.same-folder"
            )

    def write(self, model: Path) -> None:
        """Write the requested formats of a model file."""
        if self.ort:
            from uce_edge_export import ort_format

            written = ort_format.convert(model)
            say(f"Wrote {written} ({written.stat().st_size / 1e6:.1f} MB).")
        if self.triton is not None:
            from uce_edge_export.publish import triton

            folder = triton.write_repository(model, self.triton)
            say(f"Wrote {folder}: a model for Triton. {folder / 'README.md'} shows how to send requests.")
        if self.hub is not None:
            from uce_edge.runtime.model import Model
            from uce_edge_export.publish import huggingface

            licence = huggingface.write_hub(model, self.hub, describe_auto(Model(model, "cpu").metadata))
            say(f"Wrote {self.hub}: model.onnx, model.json and README.md.")
            if licence == huggingface.UNKNOWN:
                say("Note: the file names no licence. Write yours into the first lines of README.md.")
            say(f"To publish it: hf upload USER/REPOSITORY {quote(self.hub)}")


def is_file(runs: list[Path]) -> bool:
    """Whether the arguments name a model file, not runs."""
    return any(path.suffix == ".onnx" and not path.is_dir() for path in runs)


def is_given(context: typer.Context, name: str) -> bool:
    """Whether the user gave an option."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def package(context: typer.Context, given: list[Path], forms: Forms, out: Path | None) -> None:
    """Write other forms of a finished model file, or convert it to the present contract."""
    taken = {"runs", "out", "ort", "triton", "hub"}
    others = [f"--{name.replace('_', '-')}" for name in context.params if name not in taken and is_given(context, name)]
    first = quote(given[0])
    if len(given) > 1 or others:
        what = f"{', '.join(others)} cannot change it" if others else "only one can be given"
        raise UsageError(
            f"{first} is taken as a finished model file, and {what}. Use: uce-edge export {first} with --out FILE, "
            "--triton DIR, --hub DIR or --ort alone. To read it as any other classifier: "
            f"uce-edge export --from {first}",
            "export.finished-file",
        )
    if forms == Forms() and out is None:
        raise UsageError(
            f"{first} is taken as a finished model file. Choose what to write with --triton DIR, --hub DIR or --ort; "
            "--out FILE converts it to the present contract. "
            f"To read it as any other classifier: uce-edge export --from {first}",
            "export.finished-file",
        )
    need_onnx("Writing another form of a file")
    if out is not None:
        _convert(given[0], out)
    forms.write(out or given[0])


def _convert(source: Path, out: Path) -> None:
    from uce_edge.contract import VERSION
    from uce_edge_export.publish.draft import convert

    say(f"Wrote {out}: model contract {VERSION}, from contract {convert(source, out)}.")
