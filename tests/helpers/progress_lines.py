"""What a program without a terminal would print during slow work."""

import pytest

from uce_edge._util import progress


def every_line(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of all steps, as if each came ten seconds after the last; the list grows."""
    lines: list[str] = []
    settings = {"EVERY": 0.0, "_AT_ONCE": 1e-4, "_is_hidden": False, "_print_line": lines.append}
    for name, value in settings.items():
        monkeypatch.setattr(progress, name, value)
    return lines


def shown(lines: list[str], task: str) -> list[str]:
    """How much of a task was done at each of its lines, such as "16 of 120 images"."""
    own = [line.removeprefix(f"{task}: ") for line in lines if line.startswith(f"{task}: ")]
    return [line.partition(", about ")[0] for line in own]
