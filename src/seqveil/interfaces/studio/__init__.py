"""The page: what a policy does to a stream, looked at (`seqveil studio`).

A request names a source (streams with their model) and a policy; the answer is everything that the page shows. Figures
come from the steps of a release, with a seed: nothing the page makes is private. The commands that it hands out are.
"""
