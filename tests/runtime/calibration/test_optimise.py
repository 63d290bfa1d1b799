"""Optimisers on functions whose minimum is known."""

import math

import numpy as np
import pytest

from uce_edge.calibration.optimise import Adam, lbfgs, newton


class Counted:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, point):
        self.calls += 1
        return self.function(point)


def rosenbrock(x: np.ndarray) -> tuple[float, np.ndarray]:
    a, b = x[1:] - x[:-1] ** 2, 1 - x[:-1]
    gradient = np.zeros_like(x)
    gradient[:-1] = -400 * x[:-1] * a - 2 * b
    gradient[1:] += 200 * a
    return float((100 * a**2 + b**2).sum()), gradient


@pytest.mark.parametrize("start", [(-1.2, 1.0), (3.0, -4.0), (0.0, 0.0), (1.0, 1.0)])
def test_lbfgs_finds_the_end_of_a_curved_valley(start: tuple[float, float]) -> None:
    function = Counted(rosenbrock)
    np.testing.assert_allclose(lbfgs(function, np.array(start)), 1, atol=1e-6)
    assert function.calls < 100


def test_lbfgs_in_ten_dimensions() -> None:
    np.testing.assert_allclose(lbfgs(rosenbrock, np.full(10, 0.5)), 1, atol=1e-6)


def test_lbfgs_solves_a_stretched_quadratic(rng: np.random.Generator) -> None:
    turned, _ = np.linalg.qr(rng.standard_normal((20, 20)))
    matrix, target = turned * np.geomspace(0.01, 100, 20) @ turned.T, rng.standard_normal(20)
    function = Counted(lambda x: (float((x - target) @ matrix @ (x - target)) / 2, matrix @ (x - target)))
    start = np.zeros(20)
    np.testing.assert_allclose(lbfgs(function, start), target, atol=1e-5)
    assert function.calls < 200
    assert not start.any(), "the start belongs to the caller"


def test_lbfgs_stays_at_a_minimum_and_stops_when_told() -> None:
    still = Counted(lambda x: (0.0, np.zeros_like(x)))
    np.testing.assert_array_equal(lbfgs(still, np.array([2.0, 3.0])), [2.0, 3.0])
    assert still.calls == 1
    far = np.array([-1.2, 1.0])
    assert rosenbrock(lbfgs(rosenbrock, far, steps=5))[0] < rosenbrock(far)[0]


def test_lbfgs_steps_back_from_where_the_function_is_not_defined() -> None:
    def barrier(x: np.ndarray) -> tuple[float, np.ndarray]:
        if x.min() <= 0:
            return math.nan, np.full_like(x, math.nan)
        return float((x - 0.01 * np.log(x)).sum()), 1 - 0.01 / x

    np.testing.assert_allclose(lbfgs(barrier, np.array([5.0, 0.5])), 0.01, atol=1e-6)


def test_newton_needs_few_calls() -> None:
    function = Counted(lambda x: (math.cosh(x - 2.5), math.sinh(x - 2.5), math.cosh(x - 2.5)))
    assert newton(function, 0.0) == pytest.approx(2.5, abs=1e-9)
    assert function.calls <= 8


@pytest.mark.parametrize("start", [0.0, 0.1, -4.0, 30.0])
def test_newton_goes_downhill_where_the_curvature_points_up(start: float) -> None:
    # Bent downwards beyond |x - 5| = 1, where a plain Newton step would run away.
    def valley(x: float) -> tuple[float, float, float]:
        y = x - 5
        return math.log1p(y * y), 2 * y / (1 + y * y), 2 * (1 - y * y) / (1 + y * y) ** 2

    assert newton(valley, start) == pytest.approx(5, abs=1e-9)


def test_newton_steps_back_when_a_step_does_not_help() -> None:
    # sqrt(1 + x^2): plain Newton takes x to -x^3 and leaves for infinity from beyond 1.
    assert newton(lambda x: (math.hypot(1, x), x / math.hypot(1, x), (1 + x * x) ** -1.5), 1.2) == pytest.approx(
        0, abs=1e-9
    )


def test_adam_takes_steps_of_its_rate_and_arrives() -> None:
    parameters = {"x": np.array([1.0, -1.0])}
    optimiser = Adam(parameters, rate=0.1, decay={})
    optimiser.step({"x": np.array([1e-3, -50.0])})
    np.testing.assert_allclose(parameters["x"], [0.9, -0.9], atol=1e-5)
    for _ in range(500):
        optimiser.step({"x": 2 * (parameters["x"] - 0.5)})
    np.testing.assert_allclose(parameters["x"], 0.5, atol=1e-3)


def test_weight_decay_pulls_what_it_is_given_for_to_zero() -> None:
    parameters = {"pulled": np.ones(1), "free": np.ones(1)}
    optimiser = Adam(parameters, rate=0.05, decay={"pulled": 0.5})
    for _ in range(200):
        optimiser.step({name: np.zeros(1) for name in parameters})
    assert abs(parameters["pulled"][0]) < 0.05
    assert parameters["free"][0] == 1
