"""Operators that the standard says by others, and that have no function of their own in `ops/`."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad.graph.sizes import Size, text_of
from tinygrad.nn.onnx.model import Graph, Node, OnnxError, _Reader, onnx_package
from tinygrad.nn.onnx.values import Value, numpy_type

_BODIES: dict[Any, Graph] = {}


def standard_body(node: Node, inputs: list[Value]) -> Graph:
    """The graph that the standard gives for a node, for inputs of these types."""
    onnx = onnx_package()
    schema = onnx.defs.get_schema(node.op, node.version, node.domain)
    types = tuple(None if x is None or isinstance(x, list) else (numpy_type(x), _described(x.shape))
                  for x in inputs)
    proto = _with_values(node)
    key = (node.domain, node.op, node.version, types, proto.SerializeToString(deterministic=True))
    if key not in _BODIES:
        if schema.has_context_dependent_function:
            protos = [onnx.TypeProto() if t is None else
                      onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(t[0]), t[1])
                      for t in types]
            versions = [v for v in schema.context_dependent_function_opset_versions if v <= node.version]
            if not versions:
                raise OnnxError(f"{node}: the standard has no body for it in version {node.version}")
            data = schema.get_context_dependent_function_with_opset_version(
                versions[-1], proto.SerializeToString(), [p.SerializeToString() for p in protos])
            body = onnx.FunctionProto()
            body.ParseFromString(data)
        else:
            body = schema.function_body
        if not body.node:
            raise OnnxError(f"{node}: the standard has no body for it with inputs {types}")
        model = onnx.ModelProto(ir_version=10)
        model.opset_import.extend([onnx.helper.make_opsetid(node.domain, node.version)])
        if not any(o.domain == "" for o in body.opset_import) and node.domain:
            body.opset_import.extend([onnx.helper.make_opsetid("", onnx.defs.onnx_opset_version())])
        reader = _Reader(model, (), f"the standard's {node.op}")
        graph = reader.function_body(body)
        for name, attribute in schema.attributes.items():
            if attribute.default_value.type:
                graph.defaults.setdefault(name, reader.attribute(attribute.default_value, frozenset(), {}))
        if reader.unsupported:
            raise OnnxError(f"{node}: its body uses {', '.join(reader.unsupported)}")
        _BODIES[key] = graph
    return _BODIES[key]


def _described(shape: Sequence[int]) -> tuple[int | str, ...]:
    """A shape as the standard writes it: sizes that are not known have names."""
    return tuple(text_of(n.node) if isinstance(n, Size) else n for n in shape)


def _with_values(node: Node) -> Any:
    """The message of a node, its references to attributes of a function replaced by what they were given."""
    onnx = onnx_package()
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    kept = [a for a in node.proto.attribute if not a.ref_attr_name]
    given = [onnx.helper.make_attribute(a.name, node.attributes[a.name]) for a in node.proto.attribute
             if a.ref_attr_name and node.attributes.get(a.name) is not None]
    del proto.attribute[:]
    proto.attribute.extend([*kept, *given])
    return proto
