"""QCOM: Qualcomm's GPUs (Adreno) through their OpenCL driver, with images where those pay
(`renderer/qcom.py`). CL:IMAGES: the same kernels on any OpenCL device that has images.

An image is another view of a buffer's memory, made when a kernel takes it: nothing is copied. Memory,
compiler and queue are those of `runtime/opencl.py`.
"""
from __future__ import annotations

from collections import deque
from typing import Any

from tinygrad.device import Device
from tinygrad.renderer.launch import Launch
from tinygrad.renderer.machine import Machine
from tinygrad.renderer.qcom import IMAGE, ImageRenderer
from tinygrad.runtime.opencl import (
    OpenCLAllocator,
    OpenCLDevice,
    OpenCLProgram,
    all_devices,
    numbered_device,
    opencl,
)

PIXEL_BYTES = 16
INSTALL = ("QCOM needs the OpenCL driver of a Qualcomm GPU (libOpenCL.so, on the phone or board itself); "
           "CL:IMAGES runs the same kernels on any OpenCL device with images")


class ImageAllocator(OpenCLAllocator):
    """Buffers of which images can be made."""

    def part(self, memory: Any, offset: int, size: int) -> None:
        """None: drivers make images of whole buffers only (PoCL: INVALID_MEM_OBJECT)."""


class ImageProgram(OpenCLProgram):
    """A loaded kernel of which some arguments are images."""

    def __init__(self, queue: Any, kernel: Any, launch: Launch) -> None:
        super().__init__(queue, kernel, launch)
        kind = opencl().kernel_arg_info.TYPE_NAME
        self.in_flight: deque[tuple[Any, list[Any]]] = deque()
        """the event of a run, and the images it reads: PoCL crashes where one is released before that"""
        self.made: list[Any] = []
        self.images = {i for i in range(len(launch.slots)) if kernel.get_arg_info(i, kind) == IMAGE}

    def argument(self, place: int, address: int) -> Any:
        buffer = super().argument(place, address)
        if place not in self.images:
            return buffer
        cl = opencl()
        pixels = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.FLOAT)
        image = cl.create_image(buffer.context, cl.mem_flags.READ_ONLY, pixels,
                                shape=(buffer.size // PIXEL_BYTES,), buffer=buffer)
        self.made.append(image)
        return image

    def enqueue(self) -> Any:
        event = super().enqueue()
        self.in_flight.append((event, self.made))
        self.made = []
        complete = opencl().command_execution_status.COMPLETE
        while self.in_flight and self.in_flight[0][0].command_execution_status <= complete:
            self.in_flight.popleft()
        return event


class ImageDevice(OpenCLDevice):
    """An OpenCL device with images."""

    memory = ImageAllocator
    program = ImageProgram
    options = (*OpenCLDevice.options, "-cl-kernel-arg-info")

    def renderer_for(self, machine: Machine) -> ImageRenderer:
        """Raises RuntimeError where the device has no images."""
        if not self.device.image_support:
            raise RuntimeError(f"{self.device.name} has no images; use CL")
        return ImageRenderer(machine, self.device.image_max_buffer_size, self.device.max_read_image_args)


def open_device(name: str) -> ImageDevice:
    """The device of this number. Raises RuntimeError where OpenCL or the device is missing."""
    kind = Device.kind_of(name)
    devices = all_devices()
    if kind == "QCOM":
        devices = tuple(d for d in devices if "QUALCOMM" in f"{d.vendor} {d.platform.vendor}".upper())
        if not devices:
            raise RuntimeError(INSTALL)
    return ImageDevice(name, numbered_device(name, kind, devices))
