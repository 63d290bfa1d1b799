"""Write the files of one folder together, without overwriting others."""

from collections.abc import Mapping
from pathlib import Path

from uce_edge._util.atomic_files import replacing, writable_folder
from uce_edge.errors import UsageError


def write(folder: Path, files: Mapping[str, bytes], option: str) -> None:
    """Write files into a folder; equal files stay.

    Args:
        folder: Where; it is made if it is not there.
        files: Their content by their names below the folder, the one that makes the others count last.
        option: The command-line option of the folder.

    Raises:
        UsageError: A file is there with other content; nothing was written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder. Name a folder with {option}.", "folder.file")
    missing = {}
    for name, content in files.items():
        path = folder / name
        if not path.exists():
            missing[path] = content
        elif not path.is_file() or path.read_bytes() != content:
            raise UsageError(
                f"{path} already exists with other content: it belongs to another model, or was edited. Nothing was "
                f"written. Remove it, or name another folder with {option}.",
                "folder.occupied",
            )
    writable_folder(folder, option)
    for path, content in missing.items():
        with replacing(path, option) as temporary:
            temporary.write_bytes(content)
