"""Slow, obvious twins of the fast methods: what the tests compare with."""
