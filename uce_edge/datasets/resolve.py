"""Find a dataset by its name, its archive or its path."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from uce_edge.datasets import downloads, formats, groups, named
from uce_edge.datasets.formats import npz
from uce_edge.datasets.sources import Named, ReaderOptions, Source
from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.errors import argument as spelled


@dataclass(frozen=True)
class Resolved:
    """A dataset that was found."""

    source: Source
    name: str
    """The name, or the absolute path of a folder or file."""
    root: str | None = None
    """Where a dataset that has a name lies; None for a path, and for one that a Python package brings."""
    packaged: bool = False
    """Whether a Python package brings it: then every user gets the same splits."""


def resolve(
    given: str,
    root: str | Path | None = None,
    options: ReaderOptions = ReaderOptions(),
    *,
    argument: str = "data",
    download: bool = False,
    below_root: bool = True,
    endings: Sequence[str] = ("",),
) -> Resolved:
    """Read a dataset.

    A name that is known is that dataset, whatever lies in the current folder. Then come an archive of this name under
    the root, a path, and last an archive in the current folder. What starts with a dot, as ./cifar10, is always a path.

    Args:
        given: A name, the name of an .npz file under the root, a folder or a file.
        root: Where datasets with a name lie; None for the environment variable UCE_EDGE_DATA, or else the current
            folder.
        options: The reader's options.
        argument: The name of the argument in messages.
        download: Fetch a public dataset that is not under the root.
        below_root: Whether datasets under the root may be meant.
        endings: What the name of an archive may end in before .npz, in this order; such as "_test".
    """
    resolved = _resolve(
        given, root or os.environ.get("UCE_EDGE_DATA"), options, argument, download, below_root, endings
    )
    if options.group is not None and not resolved.source.origins:
        message = f"--group needs a folder or a manifest: the images of {given} have no file names. Leave it out."
        groups.refuse_or_warn(options, given, UsageError(message, "group.no-names"))
    return resolved


def _resolve(
    given: str,
    place: str | Path | None,
    options: ReaderOptions,
    argument: str,
    download: bool,
    below_root: bool,
    endings: Sequence[str],
) -> Resolved:
    path = Path(given)
    is_path = path.is_absolute() or given.startswith(".")
    archives = [f"{given}{ending}.npz" for ending in endings] if below_root and not is_path else []
    if given in named.names():
        dataset = named.get(given)
        if dataset.public is None:
            return Resolved(dataset.read(Path(), options), given, packaged=True)
        if below_root:
            return _named(given, dataset, place, options, download, archives)
    if place and (resolved := _archive(given, Path(place), archives, options)):
        return resolved
    for kind in formats.all_formats():
        if kind.takes(path):
            return Resolved(kind.read(path, options), str(path.resolve()))
    if resolved := _archive(given, Path(), archives, options):
        return resolved
    if len(path.parts) > 1 and not path.exists():
        raise UsageError(
            f"There is no folder or file {given}. Check the path given to {spelled(argument)}.",
            "dataset.missing",
            path=path,
        )
    rules = [kind.rule if options.labels else kind.rule_unlabelled or kind.rule for kind in formats.all_formats()]
    if below_root:
        rules = [*named.names(), *rules]
    rule = f"{', '.join(rules[:-1])}, or {rules[-1]}"
    remedy = f"Check {spelled(argument)}" + (f", and {spelled('root')} for a dataset's name" if below_root else "")
    raise UsageError(expected(f"`{argument}`", rule, given, remedy))


def _archive(given: str, place: Path, names: Sequence[str], options: ReaderOptions) -> Resolved | None:
    for name in names:
        if (place / name).is_file():
            return Resolved(npz.read(place / name, options), given, str(place.resolve()))
    return None


def _named(
    name: str, dataset: Named, root: str | Path | None, options: ReaderOptions, download: bool, archives: Sequence[str]
) -> Resolved:
    """A public dataset: an archive under the root, or the original files."""
    public, place = dataset.public, Path(root or Path.cwd())
    assert public is not None
    if download:
        if root is None:
            raise UsageError(
                f"No folder was given to download {name} to. Name one with {spelled('root')} or the variable "
                "UCE_EDGE_DATA.",
                "download.no-root",
            )
        downloads.fetch(name, public, place)
    if resolved := _archive(name, place, archives, options):
        return resolved
    remedy = f"`train` and `reproduce` fetch it with --download; or {downloads.by_hand(public, place)}"
    for folder in downloads.places(name, public, place):
        if folder.is_dir() and any(folder.glob(dataset.sign)):
            try:
                return Resolved(dataset.read(folder, options), name, str(place.resolve()))
            except UceEdgeError:
                raise
            except Exception as error:  # a missing file, or whatever gzip and scipy ran into in a damaged one
                raise UsageError(
                    f"{name} in {folder} is incomplete or damaged ({error}). {remedy}.", "dataset.damaged", path=folder
                ) from None
    here = f" If you mean the folder here, write ./{name}." if Path(name).is_dir() else ""
    raise UsageError(
        f"{name} is not under {place}. {remedy}. "
        f"Or put {name}.npz into {place}, or name another place with {spelled('root')} or UCE_EDGE_DATA.{here}",
        "dataset.missing",
        path=place,
    )
