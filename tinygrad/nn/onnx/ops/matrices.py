"""Products of matrices, determinants."""
from __future__ import annotations

from tinygrad.nn.onnx.registry import op, ops
from tinygrad.tensor import Tensor


@op
def Gemm_7(A: Tensor, B: Tensor, C: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0,
         transA: int = 0, transB: int = 0) -> Tensor:
    product = (A.transpose() if transA else A) @ (B.transpose() if transB else B)
    product = product if alpha == 1 else (product * alpha).cast(A.dtype)
    return product if C is None else product + (C if beta == 1 else (C * beta).cast(C.dtype))


@op
def Einsum(*Inputs: Tensor, equation: str) -> Tensor:
    return Tensor.einsum(equation, *Inputs)


ops(
    MatMul=lambda A, B: A @ B,
    Det=lambda X: X.det(),
)
