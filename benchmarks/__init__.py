"""Every figure README and docs state, measured in one run: `make bench`, or `python -m benchmarks NAME...`."""
