"""From one kernel's piece of the tensor graph to a linear program.

`indexing` follows values through movement ops, `lower` makes the loop nest, `collapse` removes loops that
have a closed form, `opt/` chooses and applies a Plan, `expand` writes out unrolled and vector ranges,
`linearize` puts the nest in order. `compile` runs them all. Next on the path: `renderer/`.
"""
