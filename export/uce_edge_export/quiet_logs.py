"""Silence the logs of other packages."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def errors_only() -> Iterator[None]:
    """Log errors only inside the block."""
    level = logging.root.manager.disable
    logging.disable(max(level, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(level)
