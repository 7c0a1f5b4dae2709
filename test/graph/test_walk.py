"""Walks over graphs: the order of `toposort`, kept from one to the next."""
import gc
import random
import weakref

from tinygrad.dtype import dtypes
from tinygrad.graph.folding import constant_folding
from tinygrad.graph.ops import Ops
from tinygrad.graph.rewrite import RewriteTable, Rule, node, rewrite
from tinygrad.graph.uop import UOp
from tinygrad.graph.walk import MOST_WALKED


def graph_of(seed, size):
    """A random graph whose last node is above all others."""
    chance = random.Random(seed)
    nodes = [UOp.new_buffer("CPU", 4, dtypes.int32) for _ in range(3)]
    for _ in range(size):
        nodes.append(chance.choice(nodes).alu(Ops.ADD, chance.choice(nodes)))
    return UOp.sink(nodes), nodes


def test_every_walk_has_sources_first_whatever_was_done_with_the_one_before():
    for seed in range(20):
        root, nodes = graph_of(seed, 30)
        for _ in range(3):
            order = root.toposort()
            place = {node: i for i, node in enumerate(order)}
            assert set(order) == {root, *nodes}
            assert all(place[source] < place[node] for node in order for source in node.src)
            order.clear()


def test_a_walk_that_stops_is_not_taken_for_one_that_does_not():
    root, nodes = graph_of(1, 30)
    assert set(root.toposort(stop=lambda node: node is not root)) == {root, *root.src}
    assert set(root.toposort()) == {root, *nodes}
    assert set(root.toposort(stop=lambda node: node is not root)) == {root, *root.src}


def test_kept_orders_keep_no_graph_alive_and_are_few():
    roots = [graph_of(seed, 5)[0] for seed in range(MOST_WALKED + 20)]
    for root in roots:
        root.toposort()
    assert sum("_below" in root.__dict__ for root in roots) <= MOST_WALKED
    gone = [weakref.ref(node) for root in roots for node in root.src]
    gc.disable()
    try:
        del roots, root
        assert not any(reference() for reference in gone)
    finally:
        gc.enable()


def test_the_nodes_of_an_operation_are_found_again_whatever_was_done_with_the_list():
    root, _ = graph_of(2, 30)
    sums = [node for node in root.toposort() if node.op is Ops.ADD]
    for _ in range(2):
        found = root.nodes_of(Ops.ADD)
        assert found == sums
        found.clear()
    assert root.nodes_of(Ops.SINK, Ops.ADD) == [*sums, root]
    gone = weakref.ref(root)
    gc.disable()
    try:
        del root
        assert gone() is None
    finally:
        gc.enable()


def test_a_graph_that_was_rewritten_goes_without_the_collector():
    memory = UOp.new_buffer("CPU", 4, dtypes.float32)
    graph = memory.alu(Ops.NEG).alu(Ops.NEG).alu(Ops.SQRT)
    kept = weakref.ref(graph.src[0])
    gc.collect()
    gc.disable()
    try:
        assert rewrite(graph, constant_folding) is memory.alu(Ops.SQRT)
        del graph
        assert kept() is None
    finally:
        gc.enable()


def test_what_no_pattern_fits_is_not_made_again():
    asked = []
    pattern = node(Ops.ADD, where=lambda n: bool(asked.append(n)))
    table = RewriteTable("none", [Rule("never", pattern, lambda: None)])
    root, _ = graph_of(2, 30)
    assert rewrite(root, table) is root
    assert len(asked) == len(root.nodes_of(Ops.ADD)) == len(set(asked))
