"""What a release is made of: alphabets, chains, filtering, kernels, leakage, distortions and mechanisms."""
