"""The logs of other packages, kept off the screen while these work."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def errors_only() -> Iterator[None]:
    """Inside the block, nothing below an error is logged; afterwards the program's own choice holds again."""
    level = logging.root.manager.disable
    logging.disable(max(level, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(level)
