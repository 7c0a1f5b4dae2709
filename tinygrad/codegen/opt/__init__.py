"""How a kernel runs: `plan` says what can be changed and changes it, `choose` is the cost model that picks a
Plan.

A Plan never changes what a kernel computes. It is data: printable, hashable, the same for the same nest.
"""
