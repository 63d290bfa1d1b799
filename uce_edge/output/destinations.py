"""Files that a command writes, and checks that it overwrites nothing."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from uce_edge.errors import UsageError, expected

_REMEDIES = {
    "save": "Use: --save annotated/",
    "sheet": "Use: --sheet answers.png",
    "audit": "Use: --audit decisions.jsonl",
    "monitor": "Use: --monitor state.json",
    "dicom_sr": "Use: --dicom-sr report.dcm",
}


@dataclass(frozen=True)
class Destinations:
    """Output paths of `predict`; None for those that are not requested."""

    save: Path | None = None
    """The folder of annotated copies."""
    sheet: Path | None = None
    """The contact sheet of all images."""
    audit: Path | None = None
    """The log of decisions."""
    monitor: Path | None = None
    """The state file of the monitor."""
    dicom_sr: Path | None = None
    """The DICOM structured report of one image, or the folder of several."""
    audit_bytes: int | None = None
    """The size at which the log continues in a new file."""

    def check(self, model: Path, images: Sequence[str], watched: Path | None = None) -> None:
        """Raise an error if an output would overwrite the model, an image or another output.

        Args:
            model: The model file.
            images: The image files; `-` is standard input.
            watched: The folder that is watched for images.
        """
        from uce_edge.images.folder_watch import list_images
        from uce_edge.images.loader import STDIN

        if self.dicom_sr is not None:
            from uce_edge.output import dicom_report

            dicom_report.check_place(self.dicom_sr, len(images), endless=watched is not None)
        files = [Path(path) for path in images if path != STDIN] + (list_images(watched) if watched else [])
        beside = []
        if self.dicom_sr is not None and self.dicom_sr.suffix:
            beside = [("dicom_sr", dicom_report.heatmap_beside(self.dicom_sr))]
        for option, path in [*self._given().items(), *beside]:
            if same_place(path, model):
                raise self._conflict(option, "another file than the model, which would be overwritten")
            if same_place(path, model.with_suffix(".json")):
                raise self._conflict(option, "another file than the model's description, which would be overwritten")
            if (identity := _identity(path)) and any(_identity(file) == identity for file in files):
                raise self._conflict(option, "another file than the images, one of which would be overwritten")
        for option in ("save", "dicom_sr"):
            folder = self._given().get(option)
            if folder is not None and _identity(folder) in _folders(files, watched):
                raise self._conflict(option, "another folder than that of the images, which would be overwritten")
        for first, second in combinations(self._given(), 2):
            if same_place(self._given()[first], self._given()[second]):
                raise self._conflict(second, f"another place than that of --{first}, which would be overwritten")
        for option in ("audit", "monitor"):
            if watched is not None and self._would_arrive(self._given().get(option), watched):
                raise self._conflict(option, "a file that is not an image of the watched folder")

    def reserved(self, model: Path) -> set[str]:
        """The names, without .png, that annotated copies must not use."""
        others = [model, *(path for option, path in self._given().items() if option != "save")]
        return {
            path.stem
            for path in others
            if self.save is not None and path.suffix.lower() == ".png" and same_place(path.parent, self.save)
        }

    def _given(self) -> dict[str, Path]:
        options = {"save": self.save, "sheet": self.sheet, "audit": self.audit, "monitor": self.monitor}
        if self.dicom_sr is not None:
            options |= {"dicom_sr": self.dicom_sr}
        return {option: path for option, path in options.items() if path is not None}

    def _would_arrive(self, written: Path | None, watched: Path) -> bool:
        from uce_edge.images.loader import is_image_name

        return written is not None and is_image_name(written.name) and same_place(written.parent, watched)

    def _conflict(self, option: str, rule: str) -> UsageError:
        return UsageError(expected(f"`{option}`", rule, str(self._given()[option]), _REMEDIES[option]))


def check_apart(option: str, written: Path, models: Iterable[Path]) -> None:
    """Raise an error if a report or picture would overwrite a model."""
    if any(same_place(written, model) for model in models):
        rule, remedy = "another file than the model, which would be overwritten", f"Choose another name with --{option}"
        raise UsageError(expected(f"`{option}`", rule, str(written), remedy))


def check_report(report: Path, models: Iterable[Path]) -> None:
    """Raise an error if a report cannot be written, before minutes of evaluation."""
    check_apart("report", report, models)
    if report.suffix.lower() not in (".html", ".htm") or report.is_dir():
        raise UsageError(expected("`report`", "a file name ending in .html", str(report), "Use: --report report.html"))
    if not report.parent.is_dir():
        remedy = f"Make the folder, or choose another: --report {report.name}"
        raise UsageError(expected("`report`", "a file in a folder that exists", str(report), remedy))
    if not os.access(report.parent, os.W_OK):
        remedy = "Choose another folder with --report"
        raise UsageError(expected("`report`", "a file in a folder you may write to", str(report), remedy))


class _Identity(NamedTuple):
    """The identity of a file, whatever its name: also through links."""

    device: int
    number: int


def _identity(path: Path) -> _Identity | None:
    try:
        status = path.stat()
    except (OSError, ValueError):  # missing or not a valid name; opening it reports that
        return None
    return _Identity(status.st_dev, status.st_ino)


def same_place(one: Path, other: Path) -> bool:
    """Whether two paths are the same file, even if it does not exist."""
    identity = _identity(one)
    return identity == _identity(other) if identity else _resolved(one) == _resolved(other)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # a link to itself
        return path.absolute()


def _folders(files: Iterable[Path], watched: Path | None) -> set[_Identity]:
    """The folders of the images, and of the targets of links."""
    links = {_resolved(file).parent for file in files if file.is_symlink()}
    folders = {file.parent for file in files} | links | ({watched} if watched else set())
    return {identity for folder in folders if (identity := _identity(folder))}
