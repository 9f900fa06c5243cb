"""The commands of `seqveil`, one file each; `seqveil.cli` puts them together."""
