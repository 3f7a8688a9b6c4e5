"""Compares the outputs of exported files with those of eager libtorch.

For each file DIR/NAME.EXTENSION, the files DIR/NAME.K.safetensors contain tensors in.INPUT and out.OUTPUT. The difference is
the largest absolute difference, divided by the largest magnitude of the expected output.
"""
import glob
import os

import torch
from safetensors import safe_open

TOLERANCES = {"bf16": 2e-2, "fp16": 5e-3, "int8": 5e-2}


def load(path):
    """Returns inputs and outputs by name."""
    inputs, outputs = {}, {}
    with safe_open(path, "pt") as file:
        for key in file.keys():
            kind, name = key.split(".", 1)
            (inputs if kind == "in" else outputs)[name] = file.get_tensor(key)
    return inputs, outputs


def difference(expected, actual):
    if expected.shape != actual.shape:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    expected, actual = expected.double(), actual.double()
    if (torch.isnan(expected) != torch.isnan(actual)).any():
        return float("inf")
    expected, actual = torch.nan_to_num(expected), torch.nan_to_num(actual)
    return float((expected - actual).abs().max() / max(expected.abs().max().item(), 1e-12))


def name_of(path):
    return os.path.basename(path).rsplit(".", 1)[0]


def files(folder, extension):
    return sorted(glob.glob(os.path.join(folder, "*." + extension)))


def tolerance_of(name, given):
    return given if given is not None else TOLERANCES.get(name.rsplit(".", 1)[-1], 1e-4)


def compare(folder, path, title, start, tolerance):
    """Runs a file for all its cases, and prints a line.

    start(path) returns a function from inputs to outputs, both by name. Returns whether the outputs agree.
    """
    name = name_of(path)
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
    good = bool(not problem and cases and worst <= tolerance)
    print(f"{'ok  ' if good else 'FAIL'} {name:28} {title:13} {len(cases)} sizes, difference {worst:.1e} {problem}", flush=True)
    return good
