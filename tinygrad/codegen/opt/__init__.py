"""How a kernel runs: in, a loop nest; out, a Plan, and the nest that it makes.

`opts` has the changes that there are, `plan` applies a list of them, `choose` (and `choose_gpu`, for blocks
of threads) is the cost model that picks one at once, `search` measures many (`BEAM`).

A Plan never changes what a kernel computes. It is data: printable, hashable, the same for the same nest.
"""
