#!/usr/bin/env python3
"""Writes stubs.S and symbols.h: one jump stub for every CUDA function that cudarc can call.

Usage: stubs.py CUDARC_SOURCE_DIR OUT_DIR

The names come from cudarc's own declarations, so a cudarc that learns a new function needs no change here.
Each stub jumps through a table; the first call fills its entry (loader.c). Linked in place of the NVIDIA
libraries, the stubs let one binary start on machines with and without a driver.
"""

import pathlib
import re
import sys

# Folder in cudarc/src, library in loader.c.
LIBRARIES = [("driver", "CUDA"), ("cublas", "CUBLAS"), ("cublaslt", "CUBLASLT"), ("curand", "CURAND"), ("nvrtc", "NVRTC")]
DECLARATION = re.compile(r'extern "C" \{\s*fn (\w+)\(([^;]*);')

ENTER = """\
    # Entered from a stub with its index pushed: keeps the caller's arguments, asks loader.c for the function
    # and jumps to it as if the caller had called it directly.
    .text
specgen_cuda_resolve_stub:
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %r8
    pushq %r9
    pushq %rax
    subq $136, %rsp
    movaps %xmm0, (%rsp)
    movaps %xmm1, 16(%rsp)
    movaps %xmm2, 32(%rsp)
    movaps %xmm3, 48(%rsp)
    movaps %xmm4, 64(%rsp)
    movaps %xmm5, 80(%rsp)
    movaps %xmm6, 96(%rsp)
    movaps %xmm7, 112(%rsp)
    movq 192(%rsp), %rdi
    call specgen_cuda_resolve
    movq %rax, %r11
    movaps (%rsp), %xmm0
    movaps 16(%rsp), %xmm1
    movaps 32(%rsp), %xmm2
    movaps 48(%rsp), %xmm3
    movaps 64(%rsp), %xmm4
    movaps 80(%rsp), %xmm5
    movaps 96(%rsp), %xmm6
    movaps 112(%rsp), %xmm7
    addq $136, %rsp
    popq %rax
    popq %r9
    popq %r8
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
    addq $8, %rsp
    jmp *%r11
"""

STUB = """\
    .globl {name}
    .hidden {name}
    .type {name}, @function
{name}:
    movq specgen_cuda_table+{offset}(%rip), %r11
    testq %r11, %r11
    je 1f
    jmp *%r11
1:  pushq ${index}
    jmp specgen_cuda_resolve_stub
    .size {name}, . - {name}
"""


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, out = map(pathlib.Path, sys.argv[1:])
    symbols = {}  # name -> (library, what a missing one answers)
    for folder, library in LIBRARIES:
        path = source / "src" / folder / "sys" / "mod.rs"
        text = path.read_text()
        found = DECLARATION.findall(text)
        declared = text.count('extern "C" {')
        if not found or len(found) != declared:
            sys.exit(f"{path}: read {len(found)} of {declared} declarations; the layout of cudarc changed")
        for name, signature in found:
            if name in ("cuGetErrorName", "cuGetErrorString"):
                answer = "TEXT_OUT"
            elif "c_char" in signature.rpartition("->")[2] and "->" in signature:
                answer = "TEXT"
            else:
                answer = "STATUS"
            symbols[name] = (library, answer)
    with open(out / "stubs.S", "w") as asm:
        asm.write(ENTER)
        for index, name in enumerate(symbols):
            asm.write(STUB.format(name=name, index=index, offset=8 * index))
        asm.write('    .section .note.GNU-stack,"",@progbits\n')
    with open(out / "symbols.h", "w") as header:
        for name, (library, answer) in symbols.items():
            header.write(f'SYMBOL("{name}", {library}, {answer})\n')
    print(f"{len(symbols)} stubs for {', '.join(library.lower() for _, library in LIBRARIES)}")


main()
