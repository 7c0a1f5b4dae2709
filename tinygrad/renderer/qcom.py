"""OpenCL C that reads memory as images, for GPUs whose texture units have a cache of their own (Adreno).

A buffer of float32 that a kernel only reads, four neighbours at a time from a multiple of four, is an
argument of type `image1d_buffer_t`: the same memory, of which one `read_imagef` gives four items. All
others stay pointers: results too, for writing an image takes the way that writing a buffer takes.
Everything else is as in `c_blocks.py`. Next on the path: `runtime/qcom.py` makes the images.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer.c_blocks import BlocksRenderer, BlockWriter
from tinygrad.renderer.c_functions import Dialect
from tinygrad.renderer.machine import Machine
from tinygrad.renderer.opencl import OPENCL

PIXEL = 4
"""Items of a pixel."""
IMAGE = "image1d_buffer_t"


class ImageRenderer(BlocksRenderer):
    """OpenCL C for a device whose images have at most `most_pixels`; a kernel takes at most `most_images`."""

    def __init__(self, machine: Machine, most_pixels: int, most_images: int) -> None:
        super().__init__(OPENCL, machine)
        self.most_pixels = most_pixels
        self.most_images = most_images

    def __repr__(self) -> str:
        return f"{super().__repr__()}, images"

    def writer(self, name: str, program: list[UOp], dialect: Dialect) -> ImageWriter:
        return ImageWriter(name, program, dialect, images_of(program, self.most_pixels)[:self.most_images])


def images_of(program: list[UOp], most_pixels: int) -> list[UOp]:
    """The PARAMs that can be images, by slot: read in whole pixels, never written, as small as an image."""
    touched = [n for n in program if n.op in (Ops.LOAD, Ops.STORE) and n.src[0].op is Ops.INDEX]
    others = {n.memory for n in touched if not is_pixel(n)}
    read = {n.memory for n in touched if is_pixel(n)}
    return sorted((p for p in read - others if p.arg[1] <= PIXEL * most_pixels), key=lambda p: int(p.arg[0]))


def is_pixel(node: UOp) -> bool:
    """Whether an access reads a pixel of a PARAM. (`scalar.py` leaves wide accesses only where they start at
    a multiple of their length.)"""
    memory = node.memory
    return node.op is Ops.LOAD and memory.op is Ops.PARAM and node.dtype is dtypes.float32.vec(PIXEL)


class ImageWriter(BlockWriter):
    """Writes one kernel whose PARAMs `images` are images."""

    statements: ClassVar[dict[Ops, Callable[[Any, UOp], None]]]

    def __init__(self, name: str, program: list[UOp], dialect: Dialect, images: list[UOp]) -> None:
        super().__init__(name, program, dialect)
        self.images = images

    def parameters(self) -> str:
        """As pointers, with the images' types put in their place."""
        given = super().parameters().split(", ")
        for place, node in enumerate(self.buffers):
            if node in self.images:
                given[place] = f"__read_only {IMAGE} {self.values[node]}"
        return ", ".join(given)

    def load(self, node: UOp) -> None:
        place = node.src[0]
        if place.op is Ops.REGISTER or place.src[0] not in self.images:
            super().load(node)
            return
        self.values[node] = name = self.fresh("wide")
        image, offset = self.values[place.src[0]], self.values[place.src[1]]
        text = f"read_imagef({image}, (int)({offset} / {PIXEL}))"
        if len(place.src) == 3:
            text = f"{self.values[place.src[2]]} ? {text} : (float{PIXEL})(0.0f)"
        self.line(f"const float{PIXEL} {name} = {text};")


ImageWriter.statements = {**BlockWriter.statements, Ops.LOAD: ImageWriter.load}
