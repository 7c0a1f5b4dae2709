"""Linear programs as LLVM IR for GPUs: nvptx64 (PTX for NVIDIA) and amdgcn (AMD).

As `llvm.py`, on which it builds, but a kernel is what one thread of a block does: its arguments are the
buffers that it has, then its variables as i64; SPECIAL indices are registers of the hardware, SHARED memory
is a global of the block. Pointers become generic at once; LLVM finds out again which memory they are into.

`assembled` gives the machine code; nothing has to be installed for it but llvmlite.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import numbered
from tinygrad.renderer import SCRATCH_ALIGNMENT, Native, Renderer
from tinygrad.renderer.launch import SHARED_ALIGNMENT
from tinygrad.renderer.llvm import LLVM_OPTIONS, STATEMENTS, LLVMWriter
from tinygrad.renderer.llvm_exchange import Exchange, amd_word, exchanged, nvidia_word
from tinygrad.renderer.llvm_functions import memory_type, value_type
from tinygrad.renderer.machine import blocks
from tinygrad.renderer.matrix_units import MMA_SYNC, MatrixUnit

GLOBAL, SHARED = 1, 3
"""LLVM's numbers for the memory of the GPU and of a block, on both targets."""


@frozen
class Target:
    """What the two targets call things."""

    name: str
    triple: str
    kernel: str
    """the calling convention of a kernel"""
    private: int
    """the number of the memory that each thread has for itself"""
    block: str
    thread: str
    """intrinsics for the number of the block and of the thread in it, along {axis}"""
    barrier: tuple[str, ...]
    exchange: Exchange
    """what a lane of a warp reads of another one"""
    matrix_units: tuple[MatrixUnit, ...] = ()
    """that every GPU of the target has"""


NVPTX = Target(
    name="nvptx64", triple="nvptx64-nvidia-cuda", kernel="ptx_kernel", private=0,
    block="nvvm.read.ptx.sreg.ctaid.{axis}", thread="nvvm.read.ptx.sreg.tid.{axis}",
    barrier=("call void @llvm.nvvm.barrier0()",), exchange=nvidia_word, matrix_units=MMA_SYNC,
)
AMDGCN = Target(
    name="amdgcn", triple="amdgcn-amd-amdhsa", kernel="amdgpu_kernel", private=5,
    block="amdgcn.workgroup.id.{axis}", thread="amdgcn.workitem.id.{axis}",
    barrier=('fence syncscope("workgroup") release', "call void @llvm.amdgcn.s.barrier()",
             'fence syncscope("workgroup") acquire'),
    exchange=amd_word,
)


class LLVMBlocksRenderer(Renderer):
    """LLVM IR for one of the GPU targets."""

    name = "LLVM"

    def __init__(self, target: Target, matrix_units: tuple[MatrixUnit, ...] | None = None) -> None:
        self.target = target
        units = target.matrix_units if matrix_units is None else matrix_units
        self.machine = blocks(shared_bytes=48 << 10, registers=64, has_exchange=True, longest_access=16,
                              matrix_units=units, warp_threads=units[0].threads if units else 32)

    @property
    def native(self) -> Native:
        return Native(conversions=frozenset({dtypes.float16}))

    def render(self, name: str, program: list[UOp]) -> str:
        return BlocksWriter(name, program, self.target).module()


class BlocksWriter(LLVMWriter):
    """Writes one kernel for a thread of a block."""

    def __init__(self, name: str, program: list[UOp], target: Target) -> None:
        super().__init__(name, program)
        self.target = target
        self.globals: list[str] = []

    def module(self) -> str:
        """The whole text. The order of the program is the order of the statements."""
        self.name_arguments()
        for node in self.program:
            _STATEMENTS.get(node.op, BlocksWriter.refuse)(self, node)
        generic = [f"  %p{n.arg[0]} = addrspacecast ptr addrspace({GLOBAL}) %p{n.arg[0]}.global to ptr"
                   for n in self.buffers]
        body = [f"define {self.target.kernel} void @{self.name}({self.parameters()}) nounwind {{",
                "entry:", *generic, *self.declarations, "  br label %start",
                "start:", *self.lines, "  ret void", "}"]
        parts = [f'target triple = "{self.target.triple}"', "", *self.globals, "", *body]
        for function in self.functions.values():
            parts += ["", function.text]
        return "\n".join([*parts, *self.metadata(), ""])

    def parameters(self) -> str:
        buffers = [f"ptr addrspace({GLOBAL}) noalias align {SHARED_ALIGNMENT} %p{n.arg[0]}.global"
                   for n in self.buffers]
        return ", ".join([*buffers, *(f"i64 {self.values[n]}" for n in self.variables)])

    def alignment(self, dtype: DType) -> int:
        """An access of several items starts at a multiple of its size (`scalar.py`)."""
        return dtype.lane_size * dtype.count

    # --- memory of the thread and of the block -------------------------------------------------------

    def private_memory(self, name: str, text: str) -> None:
        """Memory of this thread, as a generic pointer."""
        if self.target.private == 0:
            self.declarations.append(f"  {name} = alloca {text}")
            return
        self.declarations += [
            f"  {name}.private = alloca {text}, addrspace({self.target.private})",
            f"  {name} = addrspacecast ptr addrspace({self.target.private}) {name}.private to ptr"]

    def register(self, node: UOp) -> None:
        if node not in self.values:
            self.values[node] = f"%acc{len(self.values)}"
            self.private_memory(self.values[node], value_type(node.dtype))

    def scratch_memory(self, node: UOp) -> None:
        self.private_memory(self.values[node], f"[{node.arg[1]} x {memory_type(node.dtype)}], "
                                               f"align {SCRATCH_ALIGNMENT}")

    def shared_memory(self, node: UOp) -> None:
        if node in self.values:
            return
        number = len(self.globals)
        self.values[node] = f"%shared{number}"
        place = f"@{self.name}.shared{number}"
        self.globals.append(f"{place} = internal addrspace({SHARED}) global [{node.arg[1]} x "
                            f"{memory_type(node.dtype)}] undef, align {SHARED_ALIGNMENT}")
        self.declarations.append(f"  %shared{number} = addrspacecast ptr addrspace({SHARED}) {place} to ptr")

    # --- the grid ----------------------------------------------------------------------------------------

    def special(self, node: UOp) -> None:
        name = str(node.arg[0])
        of = self.target.block if name.startswith("g") else self.target.thread
        number = self.intrinsic("id", of.format(axis="xyz"[int(name[-1])]), "i32", "")
        self.values[node] = self.emit("id", f"zext i32 {number} to i64")

    def exchange(self, node: UOp) -> None:
        self.values[node] = exchanged(self.values[node.src[0]], node.dtype, node.arg, self.target.exchange,
                                      self.emit)

    def barrier(self, node: UOp) -> None:
        self.lines += [f"  {line}" for line in self.target.barrier]


_STATEMENTS: dict[Ops, Callable[[Any, UOp], None]] = {
    **STATEMENTS,
    Ops.REGISTER: BlocksWriter.register,
    Ops.SCRATCH: BlocksWriter.scratch_memory,
    Ops.SHARED: BlocksWriter.shared_memory,
    Ops.SPECIAL: BlocksWriter.special,
    Ops.BARRIER: BlocksWriter.barrier,
    Ops.EXCHANGE: BlocksWriter.exchange,
}


# --- machine code -------------------------------------------------------------------------------------------


@cache
def _initialise_llvm() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for option in LLVM_OPTIONS:  # whichever device comes first in a process
        llvm.set_option("", option)


def _optimised(source: str, target: Target, architecture: str) -> tuple[Any, Any]:
    _initialise_llvm()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=architecture, opt=3, reloc="pic" if target is AMDGCN else "default", codemodel="default")
    try:
        module = llvm.parse_assembly(source, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise RuntimeError(f"LLVM does not accept this kernel: {error}\n{numbered(source)}") from None
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    return module, machine


def assembled(source: str, target: Target, architecture: str) -> str:
    """The assembly of LLVM IR for an architecture (sm_90, gfx942): for NVIDIA that is PTX, which the driver
    takes. Raises RuntimeError with LLVM's words and the source."""
    module, machine = _optimised(source, target, architecture)
    return str(machine.emit_assembly(module))


def object_code(source: str, target: Target, architecture: str) -> bytes:
    """As `assembled`: an object file, which the target must have (amdgcn)."""
    module, machine = _optimised(source, target, architecture)
    return bytes(machine.emit_object(module))
