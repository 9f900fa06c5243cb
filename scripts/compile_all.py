"""Have numba compile what tests use and keep it: once, before several workers would each do it (`make compiled`)."""

import seqveil as sv
from seqveil.core import bulk

if bulk.load():
    model = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    for policy in (sv.Policy(secrets=sv.secrets.ever(1, epsilon=0.5, window=4)), sv.Policy(epsilon=2.0, block=4)):
        sv.Streams(model, policy).release(["a", "b"], [0, 1])  # forty seconds for secrets, five for blocks
