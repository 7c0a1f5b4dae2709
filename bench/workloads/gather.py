"""Items at computed places: looked up, added up or written where they belong (an embedding and its gradient),
and sorted.

The places are made of an operand, so that no library knows them before; the public tinygrad, which asks for
every place whether an item belongs there, is left out.
"""
from __future__ import annotations

from typing import Any

from bench.workloads.base import Workload, operation, without_public

SPREAD = 1e6
"""Times a normal number, as an integer, and then the rest of a division by the number of places: any place,
in no order."""


def look_up(words: int, width: int, count: int) -> Workload:
    """Rows of a matrix, by their numbers."""
    return without_public(operation(
        f"look up {count} of {words}x{width}", 0.0, [(count,), (words, width)], count * width,
        tinygrad=lambda library, x, rows: rows[(x.abs() * SPREAD).cast(library.dtypes.int32) % words],
        torch=lambda _, x, rows: rows[(x.abs() * SPREAD).int() % words],
        jax=lambda _, x, rows: rows[(abs(x) * SPREAD).astype("int32") % words]))


def add_rows(words: int, width: int, count: int) -> Workload:
    """Rows added to those of a matrix of zeros, by their numbers: the gradient of an embedding."""

    def in_tinygrad(library: Any, x: Any, given: Any) -> Any:
        at = ((x.abs() * SPREAD).cast(library.dtypes.int32) % words).reshape(count, 1).expand(count, width)
        return library.Tensor.zeros(words, width).scatter_reduce(0, at, given, "sum")

    return without_public(operation(
        f"add {count} rows to {words}x{width}", 1.0 * count * width, [(count,), (count, width)],
        words * width, tinygrad=in_tinygrad,
        torch=lambda torch, x, given: torch.zeros(words, width).index_add(
            0, (x.abs() * SPREAD).int() % words, given),
        jax=lambda jax, x, given: jax.numpy.zeros((words, width)).at[
            (abs(x) * SPREAD).astype("int32") % words].add(given)))


def add_items(places: int, count: int) -> Workload:
    """Numbers added up by the place that each belongs to."""
    return without_public(operation(
        f"add {count} items at {places} places", 1.0 * count, [(count,), (count,)], places,
        tinygrad=lambda library, x, given: library.Tensor.zeros(places).scatter_reduce(
            0, (x.abs() * SPREAD).cast(library.dtypes.int32) % places, given, "sum"),
        torch=lambda torch, x, given: torch.zeros(places).index_add(
            0, (x.abs() * SPREAD).int() % places, given),
        jax=lambda jax, x, given: jax.numpy.zeros(places).at[
            (abs(x) * SPREAD).astype("int32") % places].add(given)))


def write_items(places: int, count: int) -> Workload:
    """Numbers written at the place that each belongs to: its number, so that it does not matter which of
    several comes last."""

    def in_tinygrad(library: Any, x: Any) -> Any:
        at = (x.abs() * SPREAD).cast(library.dtypes.int32) % places
        return library.Tensor.zeros(places).scatter(0, at, at.float())

    def in_torch(torch: Any, x: Any) -> Any:
        at = (x.abs() * SPREAD).int() % places
        return torch.zeros(places).index_put((at,), at.float())

    def in_jax(jax: Any, x: Any) -> Any:
        at = (abs(x) * SPREAD).astype("int32") % places
        return jax.numpy.zeros(places).at[at].set(at.astype("float32"))

    return without_public(operation(f"write {count} items at {places} places", 0.0, [(count,)], places,
                                     tinygrad=in_tinygrad, torch=in_torch, jax=in_jax))


def write_rows(words: int, width: int, count: int) -> Workload:
    """Rows written into a matrix by their numbers: each its number, so that it does not matter which of
    several comes last."""

    def in_tinygrad(library: Any, x: Any) -> Any:
        at = (x.abs() * SPREAD).cast(library.dtypes.int32) % words
        result = library.Tensor.zeros(words, width)
        result[at] = at.float().reshape(count, 1).expand(count, width)
        return result

    def in_torch(torch: Any, x: Any) -> Any:
        at = (x.abs() * SPREAD).int() % words
        result = torch.zeros(words, width)
        result[at] = at.float().reshape(count, 1).expand(count, width)
        return result

    def in_jax(jax: Any, x: Any) -> Any:
        at = (abs(x) * SPREAD).astype("int32") % words
        return jax.numpy.zeros((words, width)).at[at].set(
            jax.numpy.broadcast_to(at.astype("float32").reshape(count, 1), (count, width)))

    return without_public(operation(f"write {count} rows of {words}x{width}", 0.0, [(count,)], words * width,
                                     tinygrad=in_tinygrad, torch=in_torch, jax=in_jax))


def search(size: int, count: int) -> Workload:
    """How many of the numbers 0, 1, 2, ... are below each value."""
    return without_public(operation(
        f"search {count} values in {size}", 0.0, [(count,)], count,
        tinygrad=lambda library, x: library.Tensor.arange(size).searchsorted(x * size),
        torch=lambda torch, x: torch.searchsorted(torch.arange(size), x * size),
        jax=lambda jax, x: jax.numpy.searchsorted(jax.numpy.arange(size), x * size)))


def sort_integers(rows: int, size: int) -> Workload:
    """Rows of integers in rising order."""
    return without_public(operation(
        f"sort {rows}x{size} integers", 0.0, [(rows, size)], rows * size,
        tinygrad=lambda library, x: (x * SPREAD).cast(library.dtypes.int32).sort(1)[0],
        torch=lambda _, x: (x * SPREAD).int().sort(1)[0],
        jax=lambda jax, x: jax.numpy.sort((x * SPREAD).astype("int32"), 1)))


def sort(rows: int, size: int) -> Workload:
    """Rows in rising order."""
    return without_public(operation(
        f"sort {rows}x{size}", 0.0, [(rows, size)], rows * size,
        tinygrad=lambda _, x: x.sort(1)[0], torch=lambda _, x: x.sort(1)[0],
        jax=lambda jax, x: jax.numpy.sort(x, 1)))


def largest(rows: int, size: int, count: int) -> Workload:
    """The largest items of each row, in falling order."""
    return without_public(operation(
        f"{count} largest of {rows}x{size}", 0.0, [(rows, size)], rows * count,
        tinygrad=lambda _, x: x.topk(count, 1)[0], torch=lambda _, x: x.topk(count, 1)[0],
        jax=lambda jax, x: jax.lax.top_k(x, count)[0]))


def median(rows: int, size: int) -> Workload:
    """The middle one of each row's odd number of items."""
    return without_public(operation(
        f"median of {rows}x{size}", 0.0, [(rows, size)], rows,
        tinygrad=lambda _, x: x.median(1)[0], torch=lambda _, x: x.median(1)[0],
        jax=lambda jax, x: jax.numpy.median(x, 1)))


WORKLOADS = (
    look_up(50257, 768, 8192), add_rows(50257, 768, 8192), add_rows(10_000, 64, 100_000),
    add_items(1000, 1 << 20), add_items(1 << 20, 1 << 20),
    write_items(1 << 20, 1 << 20), write_rows(1000, 256, 300), search(1000, 100_000),
    sort_integers(64, 1000), sort(1000, 1003), sort(1, 1 << 20), largest(1000, 1003, 5),
    largest(8, 50257, 50), median(64, 1001), median(1, (1 << 20) + 1),
)
