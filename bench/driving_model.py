"""A network that could drive a car: two cameras, a backbone like EfficientNet, a GRU, weights of float16.

It is written as an ONNX model with random weights.
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FEATURES = 512
CAMERAS = {name: (1, 12, 128, 256) for name in ("input_imgs", "big_input_imgs")}
# channels, expansion, kernel, stride, blocks: EfficientNet-B0's
STAGES = ((16, 1, 3, 1, 1), (24, 6, 3, 2, 2), (40, 6, 5, 2, 2), (80, 6, 3, 2, 3), (112, 6, 5, 1, 3),
          (192, 6, 5, 2, 4), (320, 6, 3, 1, 1))


SMALL = {"cameras": {name: (1, 12, 32, 64) for name in CAMERAS}, "stages": (*STAGES[:2], (40, 6, 5, 2, 1))}
"""A network of the same parts with fewer of them, for images that end in the same 4 x 8."""


class Network:
    """Nodes and weights as they are written."""

    def __init__(self, computed: Any = np.float32, cameras: Any = CAMERAS, stages: Any = STAGES) -> None:
        self.computed, self.cameras, self.stages = np.dtype(computed), cameras, stages
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.rng = np.random.default_rng(0)

    def constant(self, array: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.constants)}"))
        return str(self.constants[-1].name)

    def weights(self, *shape: int) -> str:
        """Of float16, widened where the network is computed in float32."""
        drawn = self.rng.standard_normal(shape) * np.sqrt(1 / max(1, math.prod(shape[1:])))
        weights = self.constant(drawn.astype(np.float16))
        return weights if self.computed == np.float16 else self.add("Cast", weights, to=TensorProto.FLOAT)

    def add(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        name = out or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def conv(self, x: str, channels: int, to: int, size: int = 1, stride: int = 1, groups: int = 1) -> str:
        return self.add("Conv", x, self.weights(to, channels // groups, size, size), self.weights(to),
                        strides=[stride] * 2, pads=[size // 2] * 4, group=groups)

    def linear(self, x: str, width: int, to: int) -> str:
        return self.add("Gemm", x, self.weights(width, to), self.weights(to))

    def block(self, x: str, channels: int, to: int, expansion: int, size: int, stride: int) -> str:
        wide = channels * expansion
        h = self.add("Elu", self.conv(x, channels, wide)) if expansion > 1 else x
        h = self.add("Elu", self.conv(h, wide, wide, size, stride, wide))
        h = self.conv(self.squeezed(h, wide, max(1, channels // 4)), wide, to)
        return self.add("Add", x, h) if stride == 1 and channels == to else h

    def squeezed(self, x: str, channels: int, narrow: int) -> str:
        """Squeeze-excite: each channel times what a small network makes of the averages of all."""
        scale = self.add("Elu", self.conv(self.add("GlobalAveragePool", x), channels, narrow))
        return self.add("Mul", x, self.add("Sigmoid", self.conv(scale, narrow, channels)))

    def write(self) -> Any:
        x = self.add("Elu", self.conv(self.add("Concat", *self.cameras, axis=1), 24, 32, 3, 2))
        channels = 32
        for to, expansion, size, stride, blocks in self.stages:
            for i in range(blocks):
                x = self.block(x, channels, to, expansion, size, stride if i == 0 else 1)
                channels = to
        x = self.add("Flatten", self.add("Elu", self.conv(x, channels, 32)))
        front = self.constant([0])
        x = self.add("Unsqueeze", self.add("Elu", self.linear(x, 32 * 4 * 8, FEATURES)), front)
        gru = [self.weights(1, 3 * FEATURES, FEATURES), self.weights(1, 3 * FEATURES, FEATURES),
               self.weights(1, 6 * FEATURES)]
        state = self.add("Unsqueeze", "state", front)
        self.nodes.append(helper.make_node("GRU", [x, *gru, "", state], ["", "h"], hidden_size=FEATURES,
                                           linear_before_reset=1))
        h = self.add("Squeeze", "h", front, out="new_state")
        heads = [self.linear(self.add("Elu", self.linear(h, FEATURES, to)), to, to) for to in (256, 128, 64)]
        self.add("Concat", *heads, axis=1, out="plan")
        taken = {**self.cameras, "state": (1, FEATURES)}
        graph = helper.make_graph(
            self.nodes, "driving",
            [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(self.computed), shape)
             for n, shape in taken.items()],
            [helper.make_empty_tensor_value_info(n) for n in ("plan", "new_state")], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
