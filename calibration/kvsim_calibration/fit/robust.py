"""The one optimiser: positive constants that make predictions right in ratio, outliers counting little."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kvsim.cost.line import Floats

MOST = 4_000
"""rows a fit looks at: evenly spread ones of more"""
OUTLIER = 0.1
"""relative miss from which a row's pull stops growing"""


def spread(rows: int) -> slice:
    """An even sample of at most about `MOST` of so many rows."""
    return slice(None, None, max(1, rows // MOST))


def fit(predict: Callable[[Floats], Floats], true: Floats, start: Sequence[float]) -> Floats:
    """Constants p > 0 that minimise a soft absolute value of log(predict(p) ÷ true), rounded to 4 digits."""
    from scipy.optimize import least_squares

    def miss(log_p: Floats) -> Floats:
        return np.log(predict(np.exp(log_p)) / true)

    found = least_squares(miss, np.log(start), loss="soft_l1", f_scale=OUTLIER, bounds=(-25, 25))
    return np.array([float(f"{p:.4g}") for p in np.exp(found.x)])
