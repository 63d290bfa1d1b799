"""Logits with a known fault, and labels that say what would be right."""

import numpy as np


def scaled(samples: int, temperature: float, images: int = 4000, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn from softmax(z), and logits that are `temperature` times too large, the same in every pass."""
    rng = np.random.default_rng(3)
    z = 2 * rng.standard_normal((images, classes))
    return np.repeat(z[None] * temperature, samples, axis=0), drawn(z, rng)


def noisy(samples: int, images: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The same with another scale for every class and with noise in every pass, as float32."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((images, classes))
    wrong = 2 * z * rng.uniform(0.6, 1.4, classes) + 2 * rng.standard_normal((samples, images, classes))
    return wrong.astype(np.float32), drawn(z, rng)


def drawn(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A label from the softmax of each row."""
    p = np.exp(z - z.max(axis=1, keepdims=True)).cumsum(axis=1)
    return (p < rng.random((len(z), 1)) * p[:, -1:]).sum(axis=1)
