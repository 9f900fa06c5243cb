"""Expected error before anything is released: the public name of `seqveil.receive.planning`."""

from seqveil.receive.planning import Plan, Row, best_period, plan, simulate, simulate_batches, smoothed, tune_opening

__all__ = ["Plan", "Row", "best_period", "plan", "simulate", "simulate_batches", "smoothed", "tune_opening"]
