"""What can be done with releases: decode them, estimate, audit, check the model, learn a model."""
