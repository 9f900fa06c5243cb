"""Bridges: what arrives on a message broker is released, each event once, and published (`core`)."""
