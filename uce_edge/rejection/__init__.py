"""Rejection: the rule of a file, what it promises, how it is fitted, applied and described."""
