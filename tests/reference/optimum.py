"""The optimum for one belief as one dense linear program."""

import math

import numpy as np
from scipy.optimize import linprog


def full_lp(belief, epsilon, distortion_matrix):
    """min Σ β(x) Q(y|x) D(x,y) over row-stochastic Q with e^-ε p(y) ≤ Q(y|x) ≤ e^ε p(y), one dense LP: (value, Q)."""
    belief, cost = np.asarray(belief, dtype=float), np.asarray(distortion_matrix, dtype=float)
    n, m = cost.shape
    marginal = np.kron(belief, np.eye(m))  # (m, n·m): p = marginal @ Q.ravel()
    lower = math.exp(-epsilon) * np.tile(marginal, (n, 1)) - np.eye(n * m)
    upper = np.eye(n * m) - math.exp(epsilon) * np.tile(marginal, (n, 1))
    row_sums = np.kron(np.eye(n), np.ones(m))
    answer = linprog(
        (belief[:, None] * cost).ravel(),
        A_ub=np.vstack((lower, upper)),
        b_ub=np.zeros(2 * n * m),
        A_eq=row_sums,
        b_eq=np.ones(n),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert answer.status == 0, answer.message
    return answer.fun, answer.x.reshape(n, m)
