"""Where `predict` writes besides stdout, and what it must not write over."""

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
}


@dataclass(frozen=True)
class Destinations:
    """The places that are written to; None for those that were not asked for."""

    save: Path | None = None
    """The folder of annotated copies."""
    sheet: Path | None = None
    """The picture of all images."""
    audit: Path | None = None
    """The log of decisions."""
    monitor: Path | None = None
    """The state of the monitor."""
    audit_bytes: int | None = None
    """The size from which the log goes on in a new file."""

    def check(self, model: Path, images: Sequence[str], watched: Path | None = None) -> None:
        """Refuse to write over the model, an image or each other; nothing is opened for it.

        Args:
            model: The model file.
            images: The image files; `-` is standard input.
            watched: The folder whose images are answered as they arrive.
        """
        from uce_edge.images.folder_watch import list_images
        from uce_edge.images.loader import STDIN

        files = [Path(path) for path in images if path != STDIN] + (list_images(watched) if watched else [])
        for option, path in self._given().items():
            if same_place(path, model):
                raise self._refusal(option, "another file than the model, which would be overwritten")
            if same_place(path, model.with_suffix(".json")):
                raise self._refusal(option, "another file than the model's description, which would be overwritten")
            if (identity := _identity(path)) and any(_identity(file) == identity for file in files):
                raise self._refusal(option, "another file than the images, one of which would be overwritten")
        if self.save is not None and _identity(self.save) in _folders(files, watched):
            raise self._refusal("save", "another folder than that of the images, which would be overwritten")
        for first, second in combinations(self._given(), 2):
            if same_place(self._given()[first], self._given()[second]):
                raise self._refusal(second, f"another place than that of --{first}, which would be overwritten")
        for option in ("audit", "monitor"):
            if watched is not None and self._would_arrive(self._given().get(option), watched):
                raise self._refusal(option, "a file that is not taken for an image of the watched folder")

    def reserved(self, model: Path) -> set[str]:
        """The names, without .png, that no annotated copy may take from what else lies in its folder."""
        others = [model, *(path for option, path in self._given().items() if option != "save")]
        return {
            path.stem
            for path in others
            if self.save is not None and path.suffix.lower() == ".png" and same_place(path.parent, self.save)
        }

    def _given(self) -> dict[str, Path]:
        options = {"save": self.save, "sheet": self.sheet, "audit": self.audit, "monitor": self.monitor}
        return {option: path for option, path in options.items() if path is not None}

    def _would_arrive(self, written: Path | None, watched: Path) -> bool:
        from uce_edge.images.loader import is_image_name

        return written is not None and is_image_name(written.name) and same_place(written.parent, watched)

    def _refusal(self, option: str, rule: str) -> UsageError:
        return UsageError(expected(f"`{option}`", rule, str(self._given()[option]), _REMEDIES[option]))


def check_apart(option: str, written: Path, models: Iterable[Path]) -> None:
    """Refuse to write a page or picture over a model that it is about."""
    if any(same_place(written, model) for model in models):
        rule, remedy = "another file than the model, which would be overwritten", f"Choose another name with --{option}"
        raise UsageError(expected(f"`{option}`", rule, str(written), remedy))


class _Identity(NamedTuple):
    """What all names of one file have in common: symbolic links and hard links too."""

    device: int
    number: int


def _identity(path: Path) -> _Identity | None:
    try:
        status = path.stat()
    except (OSError, ValueError):  # not there, or no name at all: whoever opens it says so
        return None
    return _Identity(status.st_dev, status.st_ino)


def same_place(one: Path, other: Path) -> bool:
    """Whether two paths are one place, be it there yet or not."""
    identity = _identity(one)
    return identity == _identity(other) if identity else _resolved(one) == _resolved(other)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # a link that leads to itself
        return path.absolute()


def _folders(files: Iterable[Path], watched: Path | None) -> set[_Identity]:
    """The folders of the images, and of those that links lead to."""
    links = {_resolved(file).parent for file in files if file.is_symlink()}
    folders = {file.parent for file in files} | links | ({watched} if watched else set())
    return {identity for folder in folders if (identity := _identity(folder))}
