"""Write docs/zoo.md and docs/zoo.csv from the results."""

import csv
import os
import platform
import re
from dataclasses import fields
from pathlib import Path

from networks import NETWORKS, RATE, SIZE
from route import PASSES, ROUTES, THREADS, Cell

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
_SHOWN = 160  # characters of a refusal
_TITLES = {"mc": "mc", "moments": "moments", "from": "`--from`"}

Cells = dict[tuple[str, str], Cell]
"""By network and route."""

INTRODUCTION = """# Zoo: can my network be exported?

Look your network up by its name in timm or transformers, or by its kind. Each was built with random weights for images
of {size}x{size} pixels and {classes} classes, and exported by three routes:

| route | what ran |
| --- | --- |
| mc | `gaussianize(model, p={rate})`, then `export_module` |
| moments | the same, with `Metadata(..., inference="moments")` |
| `--from` | `torch.onnx.export`, then `uce-edge export --from model.onnx --p {rate}` |

Of {count} networks, {totals}.

Written by `make zoo` (`benchmarks/zoo`) on {system}, {cores} cores, {threads} thread per process; Python
{python}, {tools}.{shared}

## Does it work, and what does a pass cost?

A number is the price: the time of one noisy pass on one image as a multiple of the plain ONNX network, with exact sigma
(calls of {passes} passes, best of five turns). For moments it is the price of the whole answer with 100 draws. `no`
leads to the reason below.

"""

NUMBERS = """
## Numbers

*Parity* is the largest difference of logits to PyTorch (mc) or to `onnx.reference` (`--from`) under the same noise, on
logits of unit scale; for moments, of mean probabilities to those of 32 exact passes. *Noisy* counts the layers with
noise among all layers with weights in the plain ONNX file: the first one never has noise. *Seconds* and *memory* (the
peak of the process) are those of the export with all its checks. [zoo.csv](zoo.csv) has the same numbers for programs.

Scales, biases, batch-norm and heads of random networks are set to the sizes that they have after training with this
noise (`benchmarks/zoo/random_weights.py`): as they are drawn, whole blocks are multiplied by 0. Networks that are
called *192 wide* are narrower than those with published weights.
"""


def write_pages(cells: Cells, tools: dict[str, str]) -> None:
    """Write both pages.

    Args:
        cells: All results.
        tools: The versions of what made them.
    """
    counts = {route: sum(cells[name, route].works for name in NETWORKS) for route in ROUTES}
    text = INTRODUCTION.format(
        size=SIZE,
        classes="1,000",
        rate=RATE,
        count=len(NETWORKS),
        totals=", ".join(f"{count} can be exported by {_TITLES[route]}" for route, count in counts.items()),
        system=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count(),
        threads=THREADS,
        python=platform.python_version(),
        tools=", ".join(f"{name} {version}" for name, version in tools.items()),
        passes=PASSES,
        shared=_shared(cells),
    )
    text += _overview(cells) + _refusals(cells) + NUMBERS
    for route in ROUTES:
        text += f"\n### {_TITLES[route]}\n\n" + _numbers({name: cells[name, route] for name in NETWORKS})
    (DOCS / "zoo.md").write_text(text, encoding="utf-8")
    with (DOCS / "zoo.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["network", "library", "route", *(field.name for field in fields(Cell))])
        for (name, route), cell in cells.items():
            values = vars(cell) | {"notes": "; ".join(cell.notes)}
            rounded = (f"{value:.3g}" if isinstance(value, float) else value for value in values.values())
            writer.writerow([name, NETWORKS[name].library, route, *rounded])


def _shared(cells: Cells) -> str:
    """A sentence about other programs on the machine, if there were any."""
    busiest, cores = max(cell.load or 0.0 for cell in cells.values()), os.cpu_count() or 1
    if busiest <= cores + 1:
        return ""
    return (
        f"\n\nThe machine was shared: up to {busiest:.0f} programs wanted its {cores} cores. Prices are ratios of "
        "turns and suffer little; seconds are too long."
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _overview(cells: Cells) -> str:
    reasons = _reasons(cells)

    def shown(cell: Cell) -> str:
        return f"{cell.price:.1f}x" if cell.works else f"no ({reasons[_reason(cell)]})"

    rows = [
        [f"`{name}`", network.library, network.kind, *(shown(cells[name, route]) for route in ROUTES)]
        for name, network in NETWORKS.items()
    ]
    return _table(["network", "library", "kind", *(_TITLES[route] for route in ROUTES)], rows)


def _reason(cell: Cell) -> str:
    """A refusal without what is particular to one network, shortened."""
    text = re.sub(r" ?\((?:node_|val_|input )[^)]*\)", "", " ".join(cell.error.split())).replace("|", "\\|")
    text = re.sub(r"\d+\.\d+(e[+-]?\d+)?|\d+e[+-]?\d+", "N", text)
    text = text if len(text) <= _SHOWN else text[:_SHOWN].rsplit(" ", 1)[0] + " ..."
    return f"`{cell.code}`: {text}" if cell.code else f"a failure, not a refusal: {text}"


def _reasons(cells: Cells) -> dict[str, int]:
    """Every reason once, numbered in the order of the table."""
    found = dict.fromkeys(_reason(cell) for cell in cells.values() if not cell.works)
    return {reason: number for number, reason in enumerate(found, 1)}


def _refusals(cells: Cells) -> str:
    reasons = _reasons(cells)
    if not reasons:
        return ""
    return "\nWhy not:\n\n" + "".join(f"{number}. {reason}\n" for reason, number in reasons.items())


def _numbers(cells: dict[str, Cell]) -> str:
    rows = [
        [
            f"`{name}`",
            f"{cell.parity:.1e}",
            f"{cell.price:.2f}x",
            f"{cell.plain_ms:.1f}",
            f"{cell.noisy} of {cell.layers}",
            f"{cell.seconds:.0f}",
            f"{cell.peak_mb:,.0f}",
            f"{cell.file_mb:.1f} ({cell.plain_mb:.1f})",
        ]
        for name, cell in cells.items()
        if cell.works
    ]
    header = ["network", "parity", "price", "plain, ms", "noisy", "seconds", "memory, MB", "file (plain), MB"]
    return _table(header, rows)
