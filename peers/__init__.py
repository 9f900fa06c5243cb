"""Cross-checks against code written elsewhere; each package is installed in an environment of its own."""
