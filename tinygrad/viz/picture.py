"""Graphs and kernels as SVG, for notebooks and documents, without a browser or graphviz.

In: a tensor, a node, a schedule's item, or a list of them. Out: text. Nodes stand in layers: each below all
that it is computed from, the order within a layer such that edges cross little (the median of the sources,
Eades and Wormald, 1994).
"""
from __future__ import annotations

import contextlib
from collections.abc import Sequence
from html import escape
from statistics import median
from typing import Any

from tinygrad.codegen.lower import lower
from tinygrad.graph.ops import Ops
from tinygrad.graph.printing import format_argument, format_dtype, format_expression, format_nest
from tinygrad.graph.uop import UOp
from tinygrad.schedule.items import ScheduledSteps, ScheduleItem
from tinygrad.tensor import Tensor

MOST_NODES = 300
MOST_SHOWN = 60
"""Nodes of a picture that a notebook shows at once; a larger one is opened by a click."""
MOST_LETTERS = 32
"""Of an address in a node."""
LETTER, HEIGHT, BETWEEN, LAYER, MARGIN = 7.0, 34, 14, 30, 12
"""Pixels: of a letter, a node, the space beside it, the space between layers, around all."""
SWEEPS = 6
COLOURS = {Ops.BUFFER: "#dbe9fb", Ops.PARAM: "#dbe9fb", Ops.REDUCE: "#fbdcd3", Ops.CONST: "#eeeeee",
           Ops.SINK: "#e2f1df", Ops.ASSIGN: "#e2f1df"}
STYLE = ("text{font:12px ui-monospace,monospace;fill:#1d2126;text-anchor:middle}"
         ".d{font-size:10px;fill:#59616b}"
         "rect{stroke:#7d8590;rx:5}path{fill:none;stroke:#7d8590;marker-end:url(#tip)}")


def svg(what: Any) -> str:
    """The graph of a tensor (or of several, of a node, of schedule items) as the text of an SVG picture.

    Of a tensor, down to what is in memory; of schedule items, one below the other, the memory they pass on;
    of a loop nest, loops as nodes with edges to what ends them, and addresses as text.
    Raises TypeError for anything else, ValueError for a graph of more than 300 nodes.

    >>> print(svg((Tensor([1.0, 2.0]) + 1).sum())[:4])
    <svg
    """
    items = what if isinstance(what, Sequence) else [what]
    if items and all(isinstance(item, ScheduleItem) for item in items):
        return picture(*graph_of_items(items))
    roots = [item.uop if isinstance(item, Tensor) else item for item in items]
    if not roots or not all(isinstance(root, UOp) for root in roots):
        raise TypeError(f"svg() shows tensors, nodes and schedule items, not a {type(what).__name__}")
    return picture(*graph_of_nodes(roots))


def graph_of_nodes(roots: Sequence[UOp]) -> tuple[list[tuple[str, str, str]], list[tuple[int, int]]]:
    """(title, detail, colour) of each node, and the edges between them. In a loop nest an address is text in
    the node that reads or writes there, and a loop has an edge to what ends it."""
    known = list(UOp.sink(roots).toposort(stop=lambda n: n.realized_view is not None))
    seen = set(roots)
    for node in reversed(known):
        if node in seen:
            seen.update(drawn_sources(node))
    order = [node for node in known if node in seen]
    number = {node: i for i, node in enumerate(order)}
    nodes = []
    for node in order:
        if node.op is Ops.RANGE:
            nodes.append((f"RANGE i{node.arg[0]}", f"{format_extent(node)} {node.arg[1].name}", "#fdf0dd"))
            continue
        if node.op is Ops.INDEX:
            nodes.append(("INDEX", format_address(node), "#ffffff"))
            continue
        in_memory = node.realized_view is not None and node.op is not Ops.BUFFER
        shape = " x ".join(map(str, node.shape))
        detail = " ".join(filter(None, [format_dtype(node.dtype), shape, "in memory" if in_memory else ""]))
        argument = format_argument(node) if node.op in (Ops.REDUCE, Ops.CONST, Ops.PERMUTE) else ""
        if node.op is Ops.PARAM:
            argument = format_expression(node)
        colour = COLOURS[Ops.BUFFER] if in_memory else COLOURS.get(node.op, "#ffffff")
        nodes.append((f"{node.op.name} {argument}".strip(), detail, colour))
    edges = [(number[source], number[node]) for node in order if node.realized_view is None or node in roots
             for source in dict.fromkeys(drawn_sources(node)) if source in number]
    return nodes, edges


def drawn_sources(node: UOp) -> tuple[UOp, ...]:
    """The sources that have an edge: of INDEX the memory alone, of a loop none."""
    if node.op is Ops.RANGE:
        return ()
    return node.src[:1] if node.op is Ops.INDEX else node.src


def format_extent(loop: UOp) -> str:
    """How often a loop runs, in few letters."""
    return shortened(" .. ".join(map(format_expression, loop.src[1:] or loop.src)))


def format_address(index: UOp) -> str:
    """The address and the condition of an INDEX, in few letters."""
    return shortened(" if ".join(map(format_expression, index.src[1:])))


def shortened(text: str) -> str:
    """Text that fits a node."""
    return text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS - 4] + " ..."


def graph_of_items(items: Sequence[ScheduleItem]) -> tuple[list[tuple[str, str, str]], list[tuple[int, int]]]:
    """Kernels and copies, and the memory between them."""
    nodes: list[tuple[str, str, str]] = []
    edges: list[tuple[int, int]] = []
    place: dict[UOp, int] = {}

    def memory(buffer: UOp) -> int:
        if buffer not in place:
            place[buffer] = len(nodes)
            title = f"{buffer.dtype.name}[{buffer.arg.size}]"
            nodes.append((title, str(buffer.arg.device), COLOURS[Ops.BUFFER]))
        return place[buffer]

    for item in items:
        read = [memory(b) for b in item.buffers[item.outputs:]]
        is_copy = item.ast.op is Ops.COPY
        number = len(nodes)
        reduces = sum(n.op is Ops.REDUCE for n in item.ast.toposort())
        detail = f"{reduces} reduces" if reduces else item.device
        nodes.append(("copy" if is_copy else "kernel", detail, "#fdf0dd"))
        edges += [(source, number) for source in dict.fromkeys(read)]
        for buffer in item.buffers[:item.outputs]:
            place.pop(buffer, None)  # what is written is a new value of that memory
            edges.append((number, memory(buffer)))
    return nodes, edges


def picture(nodes: Sequence[tuple[str, str, str]], edges: Sequence[tuple[int, int]]) -> str:
    """Nodes, sources first, and edges as SVG."""
    if len(nodes) > MOST_NODES:
        raise ValueError(f"a picture of {len(nodes)} nodes: svg() draws up to {MOST_NODES}; VIZ=1 shows "
                         "larger graphs")
    layers = in_layers(len(nodes), edges)
    widths = [max(48.0, LETTER * max(len(title), 0.85 * len(detail)) + 14) for title, detail, _ in nodes]
    x, y = [0.0] * len(nodes), [0.0] * len(nodes)
    total = max((sum(widths[n] + BETWEEN for n in layer) for layer in layers), default=0.0)
    for depth, layer in enumerate(layers):
        at = MARGIN + (total - sum(widths[n] + BETWEEN for n in layer)) / 2
        for n in layer:
            x[n], y[n] = at + widths[n] / 2, MARGIN + depth * (HEIGHT + LAYER)
            at += widths[n] + BETWEEN
    lines = [f'<path d="M{x[a]:.0f},{y[a] + HEIGHT}C{x[a]:.0f},{y[a] + HEIGHT + 18} {x[b]:.0f},{y[b] - 18} '
             f'{x[b]:.0f},{y[b] - 1}"/>' for a, b in edges]
    for i, (title, detail, colour) in enumerate(nodes):
        left = x[i] - widths[i] / 2
        lines.append(f'<rect x="{left:.0f}" y="{y[i]}" width="{widths[i]:.0f}" height="{HEIGHT}" '
                     f'fill="{colour}"/><text x="{x[i]:.0f}" y="{y[i] + 15}">{escape(title)}</text>'
                     f'<text class="d" x="{x[i]:.0f}" y="{y[i] + 28}">{escape(detail)}</text>')
    wide, high = total + 2 * MARGIN, 2 * MARGIN + len(layers) * (HEIGHT + LAYER) - LAYER
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide:.0f}" '
            f'style="max-width:100%;background:#fff"><style>{STYLE}</style><defs><marker id="tip" '
            'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0,0L8,4L0,8z" '
            'style="fill:#7d8590;stroke:none"/></marker></defs>' + "".join(lines) + "</svg>")


def in_layers(count: int, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Each node in a layer below those of its sources, and an order in each layer."""
    sources: list[list[int]] = [[] for _ in range(count)]
    users: list[list[int]] = [[] for _ in range(count)]
    for source, node in edges:
        sources[node].append(source)
        users[source].append(node)
    depth = [0] * count
    for node in range(count):  # sources have smaller numbers
        depth[node] = max((depth[s] + 1 for s in sources[node]), default=0)
    for node in reversed(range(count)):  # what has no source stands right above its first user
        if not sources[node] and users[node]:
            depth[node] = min(depth[u] for u in users[node]) - 1
    layers: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for node in range(count):
        layers[depth[node]].append(node)
    place = {node: i / len(layer) for layer in layers for i, node in enumerate(layer)}
    for sweep in range(SWEEPS):
        beside = sources if sweep % 2 == 0 else users
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            layer.sort(key=lambda n: median(place[b] for b in beside[n]) if beside[n] else place[n])
            place.update({node: i / len(layer) for i, node in enumerate(layer)})
    return layers


def html_of(shown: Tensor | ScheduleItem | ScheduledSteps) -> str:
    """What a notebook shows: the text of a tensor, and its graph while that is lazy and small; of a step of a
    schedule also its loop nest; of a schedule its steps and the memory between them."""
    if isinstance(shown, ScheduledSteps):
        parts = [f"<pre>{escape(chr(10).join(map(repr, shown)))}</pre>"]
        with contextlib.suppress(ValueError):  # too large for a picture
            parts.append(foldable(*graph_of_items(shown)))
        return "".join(parts)
    parts = [f"<pre>{escape(repr(shown))}</pre>"]
    graph: UOp | None = None
    if isinstance(shown, ScheduleItem):
        if shown.ast.op is not Ops.COPY:
            graph = shown.ast
            parts.append(f"<pre>{escape(format_nest(lower(graph)))}</pre>")
    elif shown.uop.realized_view is None and shown.uop.viewed.op is not Ops.BUFFER:
        graph = shown.uop
    if graph is not None:
        with contextlib.suppress(ValueError):  # too large for a picture
            parts.append(foldable(*graph_of_nodes([graph])))
    return "".join(parts)


def foldable(nodes: list[tuple[str, str, str]], edges: list[tuple[int, int]]) -> str:
    """A picture, which is opened by a click where it is large. Raises ValueError where it is too large."""
    drawn = picture(nodes, edges)
    if len(nodes) <= MOST_SHOWN:
        return drawn
    return f"<details><summary>its graph of {len(nodes)} nodes</summary>{drawn}</details>"
