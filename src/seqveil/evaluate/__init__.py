"""Baselines, comparisons and adversaries. Nothing else in the package imports this layer."""
