"""Commands that compare and reproduce; the command line finds them where this room is installed."""
