"""Low-rank algebra: SVD, which layers are factorized, factor nets, Frobenius decay, spectra, what a mean of them loses.

Knows no client, no config and no method. Throughout: a factorized layer with m inputs and n
outputs runs as two layers, `u` (m -> r, applied first) and `v` (r -> n, with the bias); the
unrolled weight W (M, N) is approximated by u_matrix (M, r) @ v_matrix (r, N). (PriSM's V runs first,
so that its V is `u` here and its U is `v`.)
"""
