"""Forward passes and training steps in Python with each compiler: the peer of bench/compile/bench_compile.cpp.
`prepare TASK TOOL` compiles the function that `run` calls, with an empty cache. It answers with the seconds until the
function is ready, and with its results. `package TASK FILE` writes an AOTInductor package. Tools for forward passes are
eager, channels_last, torchscript, compile, freezing, onnxruntime and openvino. Tools for steps are eager, channels_last,
compile and compile_all."""

import contextlib
import io
import os
import tempfile
import time

import torch
import torch.nn.functional as F
import torchvision
from torch._inductor import cpu_vec_isa
from transformers import BertConfig, BertForSequenceClassification

from formula_weights import labels, set_formula_weights, uniform
from protocol import compile_from_nothing, serve
from unet import UNet

CLASSES, LR, MOMENTUM, SAMPLES = 10, 1e-3, 0.9, 8
THREADS = int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads()))


class Logits(torch.nn.Module):
    """BERT as a function that takes only ids and returns a tensor. Its names are the names of the model."""

    def __init__(self):
        super().__init__()
        config = BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0, num_labels=CLASSES)
        self.net = set_formula_weights(BertForSequenceClassification(config))

    def forward(self, ids):
        return self.net(input_ids=ids, attention_mask=torch.ones_like(ids)).logits


def images(batch, size):
    return uniform("input", (batch, 3, size, size)).float()


def ids(batch, length):
    return labels("ids", batch * length, 30521).view(batch, length) + 1


def network(name):
    if name == "bert":
        return Logits()
    return set_formula_weights(UNet() if name == "unet" else torchvision.models.resnet18(num_classes=CLASSES))


# Inputs of the forward passes and of the steps. `-bf16` at the end of a name selects autocast.
FORWARD = {"bert-128": lambda: ids(1, 128), "bert-14": lambda: ids(1, 14), "resnet18": lambda: images(1, 224), "unet": lambda: images(1, 128)}
STEP = {"resnet18": lambda: images(8, 64), "bert": lambda: ids(4, 128), "unet": lambda: images(4, 64)}


def autocast(name):
    return torch.autocast("cpu", torch.bfloat16) if name.endswith("-bf16") else contextlib.nullcontext()


def onnx_file(net, x, folder):
    path = os.path.join(folder, "model.onnx")
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(net, (x,), path, dynamo=True, input_names=["x"], output_names=["y"])
    return path


def onnxruntime_forward(net, x):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    with tempfile.TemporaryDirectory() as folder:
        session = onnxruntime.InferenceSession(onnx_file(net, x, folder), options, providers=["CPUExecutionProvider"])
    feed = {"x": x.numpy()}
    return lambda: torch.from_numpy(session.run(None, feed)[0])


def openvino_forward(net, x, bf16):
    import openvino

    core = openvino.Core()
    config = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32"}
    model = core.compile_model(openvino.convert_model(net, example_input=x, input=list(x.shape)), "CPU", config)
    request = model.create_infer_request()
    feed = [openvino.Tensor(x.numpy(), shared_memory=True)]
    return lambda: torch.from_numpy(request.infer(feed, share_outputs=True)[0].copy())


def forward(task, tool, net, x):
    name = task.removesuffix("-bf16")
    if tool == "onnxruntime":
        return onnxruntime_forward(net, x)
    if tool == "openvino":
        return openvino_forward(net, x, task != name)
    if tool == "channels_last":
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    elif tool == "torchscript":
        torch.jit.enable_onednn_fusion(True)
        with torch.no_grad(), autocast(task):
            net = torch.jit.freeze(torch.jit.trace(net, x, check_trace=False))
            net(x), net(x)
    elif tool in ("compile", "freezing"):
        torch._inductor.config.freezing = tool == "freezing"
        net = torch.compile(net)

    def run():
        with torch.no_grad() if tool == "torchscript" else torch.inference_mode(), autocast(task):
            return net(x)

    # The dynamo tools read the mode while they compile.
    if tool in ("compile", "freezing"):
        with torch.no_grad(), autocast(task):
            net(x)
    return run


def step(task, tool, net, x):
    name = task.removesuffix("-bf16")
    if tool == "channels_last":
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    y = labels("labels", x.size(0) * (x.size(2) * x.size(3) if name == "unet" else 1), 2 if name == "unet" else CLASSES)
    if name == "unet":
        y = y.view(x.size(0), x.size(2), x.size(3))
    make = torch.optim.AdamW if name == "bert" else torch.optim.SGD
    optimizer = make(net.parameters(), lr=LR, **({} if name == "bert" else {"momentum": MOMENTUM}))
    called = torch.compile(net) if tool.startswith("compile") else net
    update = torch.compile(optimizer.step) if tool == "compile_all" else optimizer.step

    def run():
        optimizer.zero_grad()
        with autocast(task):
            loss = F.cross_entropy(called(x).float(), y)
        loss.backward()
        update()
        return loss.detach()

    return run


def main():
    own = compile_from_nothing("torch.onnx", "onnxscript", "torch._inductor", "torch._dynamo")  # until the peer ends
    chosen = []

    def made(task):
        name = task.removeprefix("step-").removesuffix("-bf16")
        if task.startswith("step-"):
            return network(name).train(), STEP[name]()
        return network(name.split("-")[0]).eval(), FORWARD[name]()

    def prepare(task, tool):
        net, x = made(task)
        start = time.perf_counter()
        run = step(task.removeprefix("step-"), tool, net, x) if task.startswith("step-") else forward(task, tool, net, x)
        first = run().flatten()
        seconds = time.perf_counter() - start
        chosen[:] = [run]
        values = [first] + [run().flatten() for _ in range(4)] if task.startswith("step-") else [first[:SAMPLES]]
        return [seconds, *torch.cat(values).double().tolist()]

    def package(task, path):
        net, x = made(task)
        start = time.perf_counter()
        cpu_vec_isa.pick_vec_isa()  # the check of the vector instructions fails with the setting below, and code would be scalar
        torch._inductor.config.freezing = True
        torch._inductor.config.aot_inductor.link_libtorch = False  # the loading process has libtorch, but possibly no CUDA libraries
        with torch.no_grad(), autocast(task):
            torch._inductor.aoti_compile_and_package(torch.export.export(net, (x,)), package_path=path)
        return [time.perf_counter() - start]

    def run(count):
        for _ in range(count):
            chosen[0]()

    serve(run, {"prepare": prepare, "package": package})


if __name__ == "__main__":
    main()
