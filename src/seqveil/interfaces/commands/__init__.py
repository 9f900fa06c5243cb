"""The commands of `seqveil`, one file each; `seqveil.interfaces.cli` puts them together."""
