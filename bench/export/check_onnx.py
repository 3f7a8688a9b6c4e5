"""Runs ONNX files in ONNX Runtime and OpenVINO, and compares the outputs with those of eager libtorch.

usage: check_onnx.py DIR [TOLERANCE]

See cases.py for the files. Exits with 1 if a file is invalid or a difference exceeds the tolerance.
"""
import sys

import onnx
import onnxruntime
import openvino
import torch

from cases import compare, files, name_of, tolerance_of


def arrays(inputs):
    return {name: (one.float() if one.dtype == torch.bfloat16 else one).numpy() for name, one in inputs.items()}


def tensors(outputs):
    return {name: torch.from_numpy(one) for name, one in outputs.items()}


def onnx_runtime(path):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: tensors(dict(zip(names, session.run(names, arrays(inputs)))))


def open_vino(path):
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    names = [output.names for output in compiled.outputs]  # an output has several names if nodes were merged

    def run(inputs):
        results = compiled(arrays(inputs))
        return tensors({name: results[i] for i, all_names in enumerate(names) for name in all_names})

    return run


def main():
    folder = sys.argv[1]
    given = float(sys.argv[2]) if len(sys.argv) > 2 else None
    good = True
    for path in files(folder, "onnx"):
        onnx.checker.check_model(path, full_check=True)
        for title, start in (("ONNX Runtime", onnx_runtime), ("OpenVINO", open_vino)):
            good = compare(folder, path, title, start, tolerance_of(name_of(path), given)) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
