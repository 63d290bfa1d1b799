"""Read folders of images, with one sub-folder per class."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from uce_edge.datasets import groups as grouping
from uce_edge.datasets import image_files, image_lists
from uce_edge.datasets.class_order import in_order
from uce_edge.datasets.image_files import LOG, UNLEARNABLE, Listed
from uce_edge.datasets.sources import Format, ReaderOptions, Source, check_names, part_named
from uce_edge.errors import UsageError, expected
from uce_edge.images import loader

_DEBRIS = ("__MACOSX",)  # left by archives


def read(path: Path, options: ReaderOptions) -> Source:
    """Read all images below every class folder, or below the folder."""
    left_out: Counter[str] = Counter()
    try:
        if options.labels:
            listed = _labelled(path, left_out)
        else:
            listed = [Listed(str(file), _name(file, path), "", "all") for file in _images(path, left_out)]
    except OSError as error:
        where, why = error.filename or path, error.strerror or error
        raise UsageError(
            f"The folder {where} cannot be listed: {why}. Check that you may read it.", "dataset.unreadable", path=path
        ) from None
    _log_left_out(path, left_out)
    if not listed:
        raise UsageError(
            f"{path} has no images in it ({', '.join(loader.SUFFIXES)}). Check the path.", "dataset.empty", path=path
        )
    groups = None
    if options.group is not None:
        try:
            groups = grouping.by_pattern([one.name for one in listed], options.group, path)
        except UsageError as error:
            grouping.refuse_or_warn(options, path, error)
    names = in_order({one.label for one in listed})
    return image_files.read(listed, names, path, options, groups, None if groups is None else options.group)


def _labelled(path: Path, left_out: Counter[str]) -> list[Listed]:
    roots = _parts(path) or {"all": path}
    for root in dict.fromkeys([path, *roots.values()]):
        loose = [entry for entry in _entries(root) if not entry.is_dir()]
        left_out.update("image outside of the class folders" if loader.is_image(e) else _kind(e) for e in loose)
    names = sorted({folder.name for root in roots.values() for folder in _subfolders(root)})
    if not names:
        raise UsageError(
            expected(f"{path}", "a folder with one sub-folder per class", "no sub-folder", "Add them"),
            "dataset.no-classes",
            path=path,
        )
    check_names(names, path)
    listed = []
    for part, root in roots.items():
        for name in names:
            folder = root / name
            if not folder.is_dir():
                if part == "train":
                    raise UsageError(
                        f"{root} has no sub-folder {name}, which another part has. Add it with images.",
                        "dataset.class-missing",
                        path=root,
                    )
                continue
            files = list(_images(folder, left_out))
            if not files:
                kinds = ", ".join(loader.SUFFIXES)
                raise UsageError(
                    f"{folder} has no images in it ({kinds}), and {UNLEARNABLE}", "dataset.class-empty", path=folder
                )
            listed += [Listed(str(file), _name(file, path), name, part) for file in files]
    return listed


def _parts(path: Path) -> dict[str, Path]:
    """The folders of the parts, if no sub-folder is a class."""
    folders = _subfolders(path)
    parts: dict[str, Path] = {}
    for folder in folders:
        part = part_named(folder.name)
        if part is not None and part in parts:
            raise UsageError(
                f"{parts[part].name} and {folder.name} of {path} both mean {part}. Keep one of them.",
                "dataset.parts",
                path=path,
            )
        if part is not None:
            parts[part] = folder
    others = [folder.name for folder in folders if folder not in parts.values()]
    if len(parts) > 1 and "train" in parts and others:
        raise UsageError(
            f"{path} has parts ({', '.join(folder.name for folder in parts.values())}) beside other folders "
            f"({', '.join(others[:5])}), so it is unclear which folders are classes. Move the others elsewhere.",
            "dataset.parts",
            path=path,
        )
    if not parts or others:
        return {}
    LOG.info("%s has parts: %s.", path, ", ".join(f"{folder.name} ({part})" for part, folder in parts.items()))
    return {part: parts[part] for part in sorted(parts)}


def _images(folder: Path, left_out: Counter[str]) -> Iterator[Path]:
    """Yield all images below a folder by name; count other entries.

    A folder with several links is listed once.
    """
    seen, waiting = {_identity(folder)}, [iter(_entries(folder))]
    while waiting:
        entry = next(waiting[-1], None)
        if entry is None:
            waiting.pop()
        elif not entry.is_dir():
            if loader.is_image(entry):
                yield entry
            else:
                left_out[_kind(entry)] += 1
        elif _is_debris(entry):
            left_out["hidden folder"] += 1
        elif (identity := _identity(entry)) in seen:
            left_out["link to a folder that is listed already"] += 1
        else:
            seen.add(identity)
            waiting.append(iter(_entries(entry)))


def _identity(folder: Path) -> tuple[int, int]:
    """Device and inode, which all links to a folder share."""
    status = folder.stat()
    return status.st_dev, status.st_ino


def _kind(entry: Path) -> str:
    if entry.name.startswith("."):
        return "hidden file"
    if not entry.is_file():
        return "broken link"
    return f"{entry.suffix.lower()} file" if entry.suffix else "file without an ending"


def _log_left_out(path: Path, left_out: Counter[str]) -> None:
    if left_out:
        counted = ", ".join(f"{count} x {kind}" for kind, count in left_out.most_common())
        LOG.info("%s: %d entries are not read as images: %s.", path, left_out.total(), counted)


def _name(file: Path, path: Path) -> str:
    return file.relative_to(path).as_posix()


def _entries(path: Path) -> list[Path]:
    return sorted(path.iterdir())


def _is_debris(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _DEBRIS


def _subfolders(path: Path) -> list[Path]:
    return [entry for entry in _entries(path) if entry.is_dir() and not _is_debris(entry)]


FORMAT = Format(
    "a folder with one sub-folder per class",
    lambda path: path.is_dir() and image_lists.inside(path) is None,
    read,
    rule_unlabelled="a folder of images",
)
