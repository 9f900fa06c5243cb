"""Kernels that keep declared secrets within their odds: the least error whose every release stays inside all boxes."""
