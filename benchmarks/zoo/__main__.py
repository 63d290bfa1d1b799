"""Which pretrained networks can be exported, and at what price? Writes docs/zoo.md and docs/zoo.csv.

    python benchmarks/zoo                 # all networks; what build/zoo has already is not run again
    python benchmarks/zoo resnet18 Cvt    # some of them, by a part of their names
    python benchmarks/zoo --again Cvt     # once more

`make zoo` makes the environment. Every network and route runs in a process of its own. A result counts as long as the
code that made it is the same; the pages are written when no result is missing.
"""

import argparse
import hashlib
import importlib.metadata
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from networks import NETWORKS
from page import write_pages
from route import PLAIN, ROUTES, Cell

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FOLDER = ROOT / "build" / "zoo"
SECONDS = 600
"""The time limit of a route."""
_MADE_BY = (
    *(ROOT / name for name in ("uce_edge", "export", "train/uce_edge_train")),
    *(HERE / f"{name}.py" for name in ("networks", "random_weights", "route")),
)
_TOOLS = ("torch", "onnx", "onnxruntime", "timm", "transformers")


def main() -> None:
    """Run what is missing, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of a network's name; default: all networks")
    parser.add_argument("--again", action="store_true", help="run these networks again")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time, each with one thread (default: 2)")
    arguments = parser.parse_args()
    chosen = [name for name in NETWORKS if not arguments.names or any(one in name for one in arguments.names)]
    if not chosen:
        parser.error(f"no network has such a name. There are: {', '.join(NETWORKS)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    code = fingerprint()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(lambda name: run_row(name, code, arguments.again), chosen))
    cells = {(name, route): stored(name, route, code) for name in NETWORKS for route in ROUTES}
    missing = [" ".join(key) for key, cell in cells.items() if cell is None]
    if missing:
        print(f"No page was written: {len(missing)} results are missing or of other code, first {missing[0]}.")
        return
    tools = {name: importlib.metadata.version(name) for name in _TOOLS}
    write_pages({key: cell for key, cell in cells.items() if cell is not None}, tools)
    print("Wrote docs/zoo.md and docs/zoo.csv.")


def run_row(name: str, code: str, again: bool) -> None:
    """Run the routes of a network that have no result yet."""
    routes = [route for route in ROUTES if again or stored(name, route, code) is None]
    if not routes:
        return
    failure = run_process(name, PLAIN)
    for route in routes:
        cell = Cell(False, f"PyTorch's own export failed: {failure.error}") if failure else run_process(name, route)
        assert cell is not None
        print(f"{name:32} {route:8} {summary(cell)}", flush=True)
        path_of(name, route).write_text(json.dumps({"code": code, "cell": vars(cell)}, indent=1), encoding="utf-8")
    for path in (f"{name}.onnx", *(f"{name}-{route}{end}" for route in ROUTES for end in (".onnx", ".json"))):
        (FOLDER / "files" / path).unlink(missing_ok=True)


def run_process(name: str, route: str) -> Cell | None:
    """Run a route in a process of its own; None for the plain network."""
    command = [sys.executable, HERE / "route.py", name, route, FOLDER / "files"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return Cell(False, f"It took more than {SECONDS} s.")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"It ended with {done.returncode}."]
        return Cell(False, next((line for line in reversed(lines) if "Error" in line), lines[-1]))
    return Cell(**json.loads(done.stdout.splitlines()[-1])) if route != PLAIN else None


def summary(cell: Cell) -> str:
    """One line about a result."""
    if not cell.works:
        return f"no: {cell.code or 'FAILED'}: {cell.error}"
    return (
        f"yes: parity {cell.parity:.1e}, price {cell.price:.2f}, {cell.seconds:.0f} s, {cell.peak_mb:.0f} MB, "
        f"{cell.noisy} of {cell.layers} layers"
    )


def path_of(name: str, route: str) -> Path:
    """The file of a result."""
    return FOLDER / f"{name}.{route}.json"


def stored(name: str, route: str, code: str) -> Cell | None:
    """The result of the present code, if there is one."""
    try:
        found: dict[str, Any] = json.loads(path_of(name, route).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return Cell(**found["cell"]) if found["code"] == code else None


def fingerprint() -> str:
    """The digest of the code that makes a result."""
    digest = hashlib.sha256()
    for place in _MADE_BY:
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
