"""Renew digests and probe images of the bundled files."""

from uce_edge._util.atomic_files import replacing
from uce_edge.models import files
from uce_edge.runtime.model import Model
from uce_edge_export.publish.draft import Draft


def seal() -> None:
    """Rewrite digests and probe images; graphs do not change."""
    for path in files():
        metadata = Model(path, "cpu").metadata
        with replacing(path.with_suffix(".json")) as described, replacing(path) as temporary:
            draft = Draft(path.read_bytes(), metadata)
            draft.seal()
            temporary.write_bytes(draft.content())
            described.write_text(draft.metadata.to_json(indent=2) + "\n")
        print(path.name, draft.metadata.digests)
