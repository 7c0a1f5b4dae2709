"""Running a schedule: `realize` gives nodes memory and runs the items, `jit` traces them, `replay` runs them
again.

`arguments` is what goes into a traced call and comes out, `outside` the tensors around it, which decide
whether its trace may be kept.
"""
