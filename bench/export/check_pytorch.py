"""Opens TorchScript and .pt2 files in Python, and compares the outputs with those of eager libtorch in C++.

usage: check_pytorch.py DIR [TOLERANCE]

See cases.py for the files. Also checks the names of the tensors in DIR/NAME.names, one per line, if there is such a file.
Exits with 1 if a file cannot be opened or a difference exceeds the tolerance.
"""
import os
import sys

import torch

from cases import compare, files, name_of, tolerance_of


def signature(path):
    """Returns the names of inputs and outputs in order, from the two lines of NAME.signature."""
    with open(path.rsplit(".", 1)[0] + ".signature") as file:
        return [line.split() for line in file]


def runner(path, module):
    input_names, output_names = signature(path)

    def run(inputs):
        with torch.no_grad():
            outputs = module(*(inputs[name] for name in input_names))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return dict(zip(output_names, outputs, strict=True))

    return run


def check_names(path, tensors):
    names = path.rsplit(".", 1)[0] + ".names"
    if os.path.exists(names):
        with open(names) as file:
            expected = set(file.read().split())
        if set(tensors) != expected:
            raise ValueError(f"the names of the tensors differ: {sorted(set(tensors) ^ expected)[:5]}")


def torchscript(path):
    module = torch.jit.load(path)
    check_names(path, module.state_dict())
    return runner(path, module)


def pt2(path):
    program = torch.export.load(path)
    check_names(path, program.state_dict)
    return runner(path, program.module())


def main():
    folder = sys.argv[1]
    given = float(sys.argv[2]) if len(sys.argv) > 2 else None
    good = True
    for extension, title, start in (("torchscript", "TorchScript", torchscript), ("pt2", "pt2", pt2)):
        for path in files(folder, extension):
            good = compare(folder, path, title, start, tolerance_of(name_of(path), given)) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
