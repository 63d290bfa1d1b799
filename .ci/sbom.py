"""Write the software bill of materials of a wheel beside it: python .ci/sbom.py dist/*.whl."""

import hashlib
import sys
from pathlib import Path

from uce_edge.dossier.software import bill_of_materials

for wheel in map(Path, sys.argv[1:]):
    bill = bill_of_materials(wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest(), "library")
    path = wheel.with_suffix(".cdx.json")
    path.write_text(bill, encoding="utf-8")
    print(f"Wrote {path}")
