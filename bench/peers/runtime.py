"""Model files for bench/runtime/bench_runtime.cpp. `files TASK FOLDER` writes FOLDER/net.pt, a TorchScript file, and
FOLDER/net.pt2, a package of AOTInductor, and answers with the seconds for both. TASK is one of the forward passes of
compile_tools.py, with `-bf16` at the end for a package with autocast."""

import os
import time

import torch
from torch._inductor import cpu_vec_isa

from compile_tools import FORWARD, autocast, network
from protocol import compile_from_nothing, serve


def files(task, folder):
    name = task.removesuffix("-bf16")
    net, x = network(name.split("-")[0]).eval(), FORWARD[name]()
    start = time.perf_counter()
    with torch.no_grad():
        torch.jit.trace(net, x, check_trace=False).save(os.path.join(folder, "net.pt"))
    traced = time.perf_counter()
    torch._inductor.config.freezing = True
    with torch.no_grad(), autocast(task):
        torch._inductor.aoti_compile_and_package(torch.export.export(net, (x,)), package_path=os.path.join(folder, "net.pt2"))
    return [traced - start, time.perf_counter() - traced]


def main():
    own = compile_from_nothing("torch.onnx", "torch._inductor", "torch._dynamo")  # until the peer ends
    # The check of the vector instructions fails with link_libtorch = False, and the package would have scalar code.
    cpu_vec_isa.pick_vec_isa()
    torch._inductor.config.aot_inductor.link_libtorch = False  # the loading process has libtorch, but possibly no CUDA libraries
    serve(lambda count: None, {"files": files})


if __name__ == "__main__":
    main()
