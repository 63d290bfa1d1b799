"""What commands say to a person."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from uce_edge.calibration.promises import Guarantee, StoredRule, StoredThreshold
    from uce_edge.metadata import Metadata
    from uce_edge.monitor import LabelCheck


def describe(guarantee: "Guarantee", rejected: str = "", at: str = "") -> str:
    """What a threshold lets through, or what is promised of it, as a sentence.

    Args:
        guarantee: The threshold.
        rejected: What else is rejected.
        at: What the threshold rejects, if it is not about the uncertainty.
    """
    from uce_edge.report.words import at_most, percent

    start = f"Rejecting {rejected}{at or f'above {guarantee.threshold:.4g}'} accepts"
    if guarantee.error is None:
        return f"{start} none of {guarantee.images:,} held-out images."
    bound = guarantee.error_bound if guarantee.target_error is None else guarantee.target_error
    return (
        f"{start} {percent(guarantee.coverage)} of the images, of which at most {at_most(bound)} are wrong, with "
        f"{percent(guarantee.confidence, 0)} confidence ({guarantee.accepted:,} of "
        f"{guarantee.images:,} held-out images, {percent(guarantee.error, 2)} wrong)."
    )


def describe_rule(rule: "StoredRule", doubt: "StoredThreshold | None" = None) -> str:
    """What `--reject auto` does, and both promises, as sentences; `doubt` stands for the threshold of the rule."""
    from uce_edge.report.words import at_most, percent

    foreign = rule.foreign
    gate = (
        f"What is foreign is rejected, and with it at most {at_most(foreign.level)} of the images that are like those "
        f"of the calibration, with {percent(foreign.confidence, 0)} confidence ({foreign.images:,} reference images)."
    )
    if doubt is not None:
        return f"{gate}\n{describe_doubt(doubt, 'these and what has ')}"
    return gate if rule.uncertain is None else f"{gate}\n{describe(rule.uncertain, 'these and what is ')}"


def describe_doubt(doubt: "StoredThreshold", rejected: str = "what has ") -> str:
    """What is promised of a threshold on the confidence."""
    return describe(doubt, rejected, f"a confidence below {100 * (1 - doubt.threshold):.4g} %")


def describe_auto(metadata: "Metadata") -> str | None:
    """What `--reject auto` does with a file; None when nothing is stored."""
    if metadata.rule is not None:
        return describe_rule(metadata.rule, metadata.doubt)
    if metadata.doubt is not None:
        return describe_doubt(metadata.doubt)
    return None if metadata.reject is None else describe(metadata.reject)


def describe_check(check: "LabelCheck", alpha: float) -> str:
    """What labelled images say of a promised error."""
    from uce_edge.report.words import percent

    promised = percent(check.target_error)
    counted = f"{check.errors} of {check.images:,} labelled and accepted images are wrong"
    if check.is_broken(alpha):
        told = f"the promised error of at most {promised} is BROKEN"
    elif check.is_kept(alpha):
        told = f"the promised error of at most {promised} is kept"
    else:
        told = f"that neither breaks nor confirms the promised error of at most {promised} yet: label more images"
    return f"Checked {check.time}: {counted}; {told} (at alpha {alpha:g})."


def quote(path: object) -> str:
    """A path as one shell word, for commands to paste."""
    import shlex

    return shlex.quote(str(path))


def say(text: str) -> None:
    """Tell a person; stdout is for data."""
    typer.echo(text, err=True)


def warn(text: str) -> None:
    """Tell a person what may harm them."""
    typer.secho(f"warning: {text}", err=True, fg=typer.colors.YELLOW)


def show_log(package: str) -> None:
    """Say on stderr what a package logs of long work."""
    import logging

    class Talk(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(self.format(record))

    log = logging.getLogger(package)
    log.setLevel(logging.INFO)
    log.handlers = [Talk()]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns as wide as they need to be: names to the left, numbers to the right; an empty line ends it."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for index, line in enumerate(lines):
        cells = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        typer.secho("  ".join([line[0].ljust(widths[0]), *cells]), bold=index == 0)
    typer.echo()
