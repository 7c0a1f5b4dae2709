"""From one kernel's piece of the tensor graph to a linear program.

`indexing` follows values through movement ops, `lower` makes the loop nest, `collapse` removes loops that
have a closed form, `opt/` chooses and applies a Plan, `expand` writes out unrolled and vector ranges,
`primitives` puts what the device cannot do itself into operations that it has, `linearize` puts the nest in
order. `program` goes from a planned nest to a loaded program, `compile` runs everything. Next on the path:
`renderer/`.
"""
