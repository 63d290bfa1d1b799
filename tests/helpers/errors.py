"""Expecting an error by its code, so that a change of words edits no test."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from uce_edge.errors import UceEdgeError


@contextmanager
def raises(code: str, kind: type[UceEdgeError] = UceEdgeError) -> Iterator[pytest.ExceptionInfo[UceEdgeError]]:
    """Pass when the block raises an error of this kind with this code."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, f"code {caught.value.code!r}: {caught.value}"
