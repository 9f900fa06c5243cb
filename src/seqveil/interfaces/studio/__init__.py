"""The page: what a policy does to a stream, looked at (`seqveil studio`).

A request names a source (streams with their model) and a policy, as its file has it; the answer is everything that the
page shows. All figures come from the same steps as a release, with a seed, so that they can be repeated; nothing the
page makes is a private release. The commands that it hands out carry no seed, so those are.
"""
