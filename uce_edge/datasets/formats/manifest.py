"""Read manifests: tables of path, label and optional class_id, group and split."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from uce_edge.datasets import class_order, image_files, image_lists
from uce_edge.datasets import groups as grouping
from uce_edge.datasets.image_files import LOG, Listed
from uce_edge.datasets.image_lists import CLASS_ID, LABEL, PATH, Row
from uce_edge.datasets.sources import Format, ReaderOptions, Source, check_names, part_named, part_words
from uce_edge.errors import MissingPartError, UsageError, expected
from uce_edge.images import medical

_GROUP, _SPLIT = "group", "split"
_PARQUET = ".parquet"
_SUFFIXES = (".csv", ".tsv", ".jsonl", _PARQUET)


def read(path: Path, options: ReaderOptions) -> Source:
    """Read the images that a manifest names, relative to its folder."""
    path = _table(path)
    rows = _rows(path)
    columns = list(dict.fromkeys(column for row in rows for column in row.cells))
    label = LABEL if LABEL in columns or CLASS_ID not in columns else CLASS_ID
    for column in (PATH, label) if options.labels else (PATH,):
        if column not in columns:
            known = ", ".join(columns)
            raise UsageError(
                expected(f"the columns of {path}", f"with one called {column}", known, "Rename one"),
                "manifest.columns",
                path=path,
            )
    labels = _filled(rows, label, path) if options.labels else [""] * len(rows)
    ids = None
    if options.labels and CLASS_ID in columns:
        cells = _filled(rows, CLASS_ID, path)
        ids = class_order.numbered(cells, [label.strip() for label in labels], path)
        labels = [ids[int(cell)] for cell in cells]
    check_names(list(dict.fromkeys(labels)), path)
    parts = _parts(rows, path) if options.labels and _SPLIT in columns else ["all"] * len(rows)
    names = _filled(rows, PATH, path)
    groups, group = _groups(rows, names, columns, path, options)
    listed = [
        Listed(image_lists.beside(name, str(path.parent)), name, label.strip(), part)
        for name, label, part in zip(names, labels, parts, strict=True)
    ]
    _refuse_missing(rows, listed, path)
    unused = [column for column in columns if column not in (PATH, LABEL, CLASS_ID, _SPLIT, group)]
    if unused:
        LOG.info("%s: columns that are not used: %s.", path, ", ".join(unused))
    _refuse_untrained(listed, path)
    classes = class_order.in_order({one.label for one in listed}) if ids is None else list(ids.values())
    source = image_files.read(listed, classes, path, options, groups, group)
    return source if ids is None else replace(source, class_ids=tuple(ids))


def files(path: Path) -> list[str]:
    """The files that a manifest names, existing or not."""
    path = _table(path)
    names = (row.cells.get(PATH, "") for row in _rows(path))
    return [image_lists.beside(name, str(path.parent)) for name in names if name.strip()]


def column(path: Path, name: str) -> dict[str, str]:
    """The values of a column by path, as the manifest spells both.

    Raises:
        UsageError: There is no such column, or a cell is empty.
    """
    path = _table(path)
    rows = _rows(path)
    columns = list(dict.fromkeys(known for row in rows for known in row.cells))
    if name not in columns:
        raise UsageError(
            expected(f"a column of {path}", f"one of {', '.join(columns)}", name, "Check its name"),
            "manifest.columns",
            path=path,
        )
    return dict(zip(_filled(rows, PATH, path), _filled(rows, name, path), strict=True))


def _table(path: Path) -> Path:
    """The manifest itself, or the one in a folder."""
    return (image_lists.inside(path) or path) if path.is_dir() else path


def _rows(path: Path) -> list[Row]:
    if not path.is_file():
        raise UsageError(f"There is no file {path}. Check the path given to --data.", "dataset.missing", path=path)
    rows = _parquet(path) if path.suffix.lower() == _PARQUET else _text(path)
    if not rows:
        raise UsageError(
            expected(f"{path}", "a manifest with a row per image", "no row", "Add some"), "manifest.empty", path=path
        )
    return rows


def _text(path: Path) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(
            expected(f"{path}", "a text file in UTF-8", "other bytes", "Save it as UTF-8"),
            "manifest.unreadable",
            path=path,
        ) from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}. Check that you may read it.", "manifest.unreadable", path=path
        ) from None
    return image_lists.parse(text, path.suffix.lower(), str(path))


def _parquet(path: Path) -> list[Row]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingPartError("A Parquet manifest", "pyarrow", "parquet") from None
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(
            f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}.", "manifest.unreadable", path=path
        ) from None
    columns = image_lists.columns_of(table.column_names, str(path))
    cells = [[image_lists.text_of(value) for value in column.to_pylist()] for column in table.columns]
    return [Row(n, dict(zip(columns, row, strict=True))) for n, row in enumerate(zip(*cells, strict=True), 1)]


def _filled(rows: Sequence[Row], column: str, path: Path) -> list[str]:
    """The cells of a column; refuse empty ones."""
    cells = [row.cells.get(column, "") for row in rows]
    empty = [row for row, cell in zip(rows, cells, strict=True) if not cell.strip()]
    if empty:
        shown = empty[0].cells.get(PATH) or "without a path"
        more = f", and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise UsageError(
            f"The {column} is empty in row {empty[0].line} of {path} ({shown}){more}. Fill it in.",
            "manifest.cell",
            path=path,
        )
    return cells


def _parts(rows: Sequence[Row], path: Path) -> list[str]:
    words = [row.cells.get(_SPLIT, "") for row in rows]
    parts: list[str] = []
    for row, word in zip(rows, words, strict=True):
        part = part_named(word)
        if part is None:
            remedy = "Leave the column out for a random split"
            raise UsageError(
                expected(f"the split in row {row.line} of {path}", f"one of {part_words()}", word, remedy),
                "manifest.split",
                path=path,
            )
        parts.append(part)
    found = dict.fromkeys(f"{word.strip()} ({part})" for word, part in zip(words, parts, strict=True))
    LOG.info("%s has a column split: %s.", path, ", ".join(found))
    return parts


def _groups(
    rows: Sequence[Row], names: Sequence[str], columns: Sequence[str], path: Path, options: ReaderOptions
) -> tuple[list[str] | None, str | None]:
    """The group of every row, and its column or pattern; `group` is the default column."""
    group = options.group
    if group is None:
        group = _GROUP if _GROUP in columns and options.labels else None
    if group is None:
        return None, None
    try:
        if group in columns:
            return _filled(rows, group, path), group
        return grouping.by_pattern(names, group, path, columns), group
    except UsageError as error:
        grouping.refuse_or_warn(options, path, error)
    return None, None


def _refuse_missing(rows: Sequence[Row], listed: Sequence[Listed], path: Path) -> None:
    missing = [row.line for row, one in zip(rows, listed, strict=True) if not _is_file(one.file)]
    if missing:
        first = next(one for row, one in zip(rows, listed, strict=True) if row.line == missing[0])
        raise UsageError(
            f"{len(missing)} of the {len(rows)} images that {path} names do not exist. The first, in row "
            f"{missing[0]}: {first.file}. Relative paths count from the folder of the manifest.",
            "manifest.image-missing",
            path=path,
        )


def _is_file(path: str) -> bool:
    try:
        return medical.split(Path(path))[0].is_file()  # of a frame or slice, the file that it is in
    except (OSError, ValueError):  # such as a name that is too long
        return False


def _refuse_untrained(listed: Sequence[Listed], path: Path) -> None:
    """Refuse classes that have images, but none to train on."""
    trained = {one.label for one in listed if one.part in ("train", "all")}
    for one in listed:
        if trained and one.label not in trained:
            raise UsageError(
                f"{path} has no training image of the class {one.label} ({one.name}). Add some.",
                "dataset.class-missing",
                path=path,
            )


FORMAT = Format(
    "a manifest (.csv, .tsv, .jsonl, .parquet)",
    lambda path: image_lists.inside(path) is not None if path.is_dir() else path.suffix.lower() in _SUFFIXES,
    read,
)
