"""The graph: what every stage from `Tensor` to machine code is written in.

`ops` names the operations, `uop` is the node (`shapes` gives its shape, `operators` its arithmetic), `spec`
says what is legal at each stage, `rewrite` is the one driver that changes graphs, `symbolic` simplifies index
arithmetic, `gradient` differentiates, `printing` shows.
"""
