"""Quantized forward passes in Python: the peer of bench/quant/bench_quant.cpp. `prepare TASK TOOL` quantizes the model, and answers
with the seconds until it is ready and with its results. Tools: openvino (NNCF, static int8), onnxruntime (static int8, QDQ),
onnxruntime_dynamic, torch_dynamic and torchao_dynamic with torch.compile (linears in int8, with ranges of each call)."""

import os
import tempfile
import time

import torch

from compile_tools import FORWARD, THREADS, network, onnx_file
from protocol import compile_from_nothing, serve
from formula_weights import labels, uniform

CALIBRATION = 16


def calibration(name):
    """The calibration inputs. The first one is the measured input."""
    made = [FORWARD[name]()]
    for i in range(1, CALIBRATION):
        if name == "resnet18":
            made.append(uniform(f"input{i}", (1, 3, 224, 224)).float())
        else:
            length = int(name.split("-")[1])
            made.append(labels(f"ids{i}", length, 30521).view(1, length) + 1)
    return made


def openvino_int8(net, inputs):
    import nncf
    import openvino

    core = openvino.Core()
    model = openvino.convert_model(net, example_input=inputs[0], input=list(inputs[0].shape))
    kind = nncf.ModelType.TRANSFORMER if inputs[0].dim() == 2 else None
    data = nncf.Dataset(inputs, lambda x: x.numpy())
    model = nncf.quantize(model, data, model_type=kind, subset_size=len(inputs))
    config = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", config).create_infer_request()
    feed = [openvino.Tensor(inputs[0].numpy(), shared_memory=True)]
    return lambda: torch.from_numpy(request.infer(feed, share_outputs=True)[0].copy())


def onnxruntime_int8(net, inputs, dynamic):
    import onnx
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.left = iter(inputs)

        def get_next(self):
            x = next(self.left, None)
            return None if x is None else {"x": x.numpy()}

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    with tempfile.TemporaryDirectory() as folder:
        ready, made = os.path.join(folder, "ready.onnx"), os.path.join(folder, "int8.onnx")
        model = onnx.load(onnx_file(net, inputs[0], folder))
        del model.graph.value_info[:]  # quantize_dynamic transposes weights and would find other shapes
        onnx.save(model, ready)  # weights and model in one file
        if dynamic:
            quantize_dynamic(ready, made, weight_type=QuantType.QInt8, per_channel=True)
        else:
            quantize_static(ready, made, Reader(), activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, per_channel=True)
        session = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    feed = {"x": inputs[0].numpy()}
    return lambda: torch.from_numpy(session.run(None, feed)[0])


def torch_dynamic(net, inputs):
    net = torch.ao.quantization.quantize_dynamic(net, {torch.nn.Linear}, dtype=torch.qint8)

    def run():
        with torch.inference_mode():
            return net(inputs[0])

    return run


def torchao_dynamic(net, inputs):
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    quantize_(net, Int8DynamicActivationInt8WeightConfig())
    fast = torch.compile(net)

    def run():
        with torch.inference_mode():
            return fast(inputs[0])

    return run


def main():
    own = compile_from_nothing("torch.onnx", "onnxscript", "nncf", "root")  # until the peer ends
    chosen = []

    def prepare(task, tool):
        net, inputs = network(task.split("-")[0]).eval(), calibration(task)
        start = time.perf_counter()
        if tool == "openvino":
            run = openvino_int8(net, inputs)
        elif tool == "torch_dynamic":
            run = torch_dynamic(net, inputs)
        elif tool == "torchao_dynamic":
            run = torchao_dynamic(net, inputs)
        else:
            run = onnxruntime_int8(net, inputs, tool.endswith("dynamic"))
        first = run().flatten()
        seconds = time.perf_counter() - start
        chosen[:] = [run]
        return [seconds, *first.double().tolist()]

    def run(count):
        for _ in range(count):
            chosen[0]()

    serve(run, {"prepare": prepare})


if __name__ == "__main__":
    main()
