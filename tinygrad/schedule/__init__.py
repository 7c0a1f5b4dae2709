"""From a lazy graph to an ordered list of kernels and copies.

`simplify` drops what needs no computing, `fuse` decides which nodes become buffers and which kernel computes
what, `items` writes each kernel as a `ScheduleItem` and puts them in order. Next on the path: `codegen/`
makes a program of each kernel, `engine/` runs them.
"""
