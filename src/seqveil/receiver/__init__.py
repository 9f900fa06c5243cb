"""What can be done with releases: decode them, estimate, audit, watch for drift, learn a model."""
