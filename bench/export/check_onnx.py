"""Runs ONNX files in ONNX Runtime and OpenVINO, and compares the outputs with those of eager libtorch.

usage: check_onnx.py DIR [TOLERANCE]

For each DIR/NAME.onnx, the files DIR/NAME.K.safetensors contain tensors in.INPUT and out.OUTPUT. The difference is the
largest absolute difference, divided by the largest magnitude of the expected output. Exits with 1 if a file is invalid or
a difference exceeds the tolerance.
"""
import glob
import os
import sys

import numpy as np
import onnx
import onnxruntime
import openvino
from safetensors import safe_open

TOLERANCES = {"bf16": 2e-2, "fp16": 5e-3, "int8": 5e-2}


def load(path):
    inputs, outputs = {}, {}
    with safe_open(path, "pt") as file:
        for key in file.keys():
            kind, name = key.split(".", 1)
            tensor = file.get_tensor(key)
            if str(tensor.dtype) == "torch.bfloat16":
                tensor = tensor.float()
            (inputs if kind == "in" else outputs)[name] = tensor.numpy()
    return inputs, outputs


def difference(expected, actual):
    if expected.shape != actual.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    unlike = np.isnan(expected) != np.isnan(actual)
    if unlike.any():
        return float("inf")
    expected, actual = np.nan_to_num(expected), np.nan_to_num(actual)
    return float(np.abs(expected - actual).max() / max(np.abs(expected).max(), 1e-12))


def onnx_runtime(path):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs)))


def open_vino(path):
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    names = [output.names for output in compiled.outputs]  # an output has several names if nodes were merged

    def run(inputs):
        results = compiled(inputs)
        return {name: results[i] for i, all_names in enumerate(names) for name in all_names}

    return run


def main():
    folder = sys.argv[1]
    failed = False
    for path in sorted(glob.glob(os.path.join(folder, "*.onnx"))):
        name = os.path.basename(path)[: -len(".onnx")]
        tolerance = float(sys.argv[2]) if len(sys.argv) > 2 else TOLERANCES.get(name.rsplit(".", 1)[-1], 1e-4)
        onnx.checker.check_model(path, full_check=True)
        for title, start in (("ONNX Runtime", onnx_runtime), ("OpenVINO", open_vino)):
            worst, problem, cases = 0.0, "", sorted(glob.glob(os.path.join(folder, name + ".*.safetensors")))
            try:
                run = start(path)
                for case in cases:
                    inputs, outputs = load(case)
                    results = run(inputs)
                    for key, expected in outputs.items():
                        worst = max(worst, difference(expected, results[key]))
            except Exception as error:  # a runtime that cannot run the file is a result, too
                problem = str(error).replace("\n", " ")[:400]
            good = not problem and cases and worst <= tolerance
            failed = failed or not good
            print(f"{'ok  ' if good else 'FAIL'} {name:28} {title:13} {len(cases)} sizes, difference {worst:.1e} {problem}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
