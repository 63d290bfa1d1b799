"""Renew digests and probe images of the bundled files; rename classes."""

from dataclasses import replace
from pathlib import Path

from imagenet import NAMES

from uce_edge._util.atomic_files import replacing
from uce_edge.metadata import Metadata
from uce_edge.models import bundled, files
from uce_edge.runtime.model import Model
from uce_edge_export.publish.draft import Draft


def seal() -> None:
    """Rewrite digests and probe images; graphs do not change."""
    for path in files():
        _rewrite(path, Model(path, "cpu").metadata)


def rename_classes() -> None:
    """Give the classes of `imagenet` their readable names; answers do not change."""
    path = bundled(name="imagenet")
    metadata = Model(path, "cpu").metadata
    classes = tuple(NAMES.get(number, name) for number, name in enumerate(metadata.classes))
    _rewrite(path, replace(metadata, classes=classes))


def _rewrite(path: Path, metadata: Metadata) -> None:
    with replacing(path.with_suffix(".json")) as described, replacing(path) as temporary:
        draft = Draft(path.read_bytes(), metadata)
        draft.seal()
        temporary.write_bytes(draft.content())
        described.write_text(draft.metadata.to_json(indent=2) + "\n")
    print(path.name, draft.metadata.digests)
