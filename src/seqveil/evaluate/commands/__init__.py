"""The commands `attack` and `compare`; the command line finds them where this layer is installed."""
