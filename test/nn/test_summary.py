"""`nn.summary` of what people call: functions, methods, options, and results of any form."""
from __future__ import annotations

from dataclasses import dataclass

import pytest

from tinygrad import Tensor, nn


class Coder:
    def __init__(self) -> None:
        self.inner = nn.Linear(4, 3)
        self.outer = nn.Linear(3, 4)

    def encode(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.inner(x) * scale

    def __call__(self, x: Tensor) -> Output:
        code = self.encode(x)
        return Output(self.outer(code), [code])


@dataclass
class Output:
    image: Tensor
    codes: list[Tensor]


def test_a_method_is_summed_up_with_the_layers_of_its_object() -> None:
    found = nn.summary(Coder().encode, Tensor.rand(2, 4))
    assert [(row.name, row.parameters) for row in found.rows] == [("encode", 0), ("inner", 4 * 3 + 3)]
    assert found.rows[0].shapes == "(2, 3)" and found.total.parameters == 4 * 3 + 3 + 3 * 4 + 4


def test_a_function_is_one_row() -> None:
    found = nn.summary(lambda x: x + 1, Tensor.rand(2, 5))
    assert [(row.kind, row.shapes, row.operations) for row in found.rows] == [("function", "(2, 5)", 10)]
    assert str(found).splitlines()[-1].split()[:4] == ["all", "function", "1", "call"]


def test_options_are_given_by_name() -> None:
    coder = Coder()
    one = nn.summary(coder.encode, Tensor.rand(2, 4), scale=1.0)
    two = nn.summary(coder.encode, x=Tensor.rand(2, 4), scale=3.0)
    assert two.total.operations == one.total.operations + 2 * 3  # a product with 1 is none


def test_fields_of_a_result_are_computed_and_shown() -> None:
    found = nn.summary(Coder(), Tensor.rand(2, 4))
    assert found.rows[0].shapes == "(2, 4), (2, 3)"


def test_what_is_no_function_is_said() -> None:
    with pytest.raises(TypeError, match="takes a model that can be called, not a list"):
        nn.summary([nn.Linear(2, 2)], Tensor.rand(2, 2))  # type: ignore[arg-type]  # what is tested


def test_names_in_a_notebook_are_text() -> None:
    class Named:
        def __init__(self) -> None:
            self.layers = {"<b>": nn.Linear(2, 2)}

        def __call__(self, x: Tensor) -> Tensor:
            return self.layers["<b>"](x)

    shown = nn.summary(Named(), Tensor.rand(1, 2))._repr_html_()
    assert "layers.&lt;b&gt;" in shown and "<b>" not in shown
