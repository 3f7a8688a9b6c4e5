"""Writes tests/goldens/core/printing.json: the texts that PyTorch prints for tensors, and the properties of its dtypes.
Run: python tools/goldens/printing.py

A case has the values of a tensor, or the formula value(i) = (i * factor % modulus) * scale + offset. All values are exact in float64.
"""

import json
import math
import pathlib
import random

import torch

out = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "core" / "printing.json"
draw = random.Random(5)
FLOATS = ["float64", "float32", "float16", "bfloat16"]
INTS = ["int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"]
DEFAULTS = {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80, "sci_mode": None}
cases = []


def plain(value):
    """JSON has no infinities, and no complex numbers."""
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def add(values, shape, dtype="float32", requires_grad=False, formula=None, **options):
    """A case with the text of torch.tensor(values).view(shape)."""
    if formula:
        factor, modulus, scale, offset = formula
        numbers = [(i * factor % modulus) * scale + offset for i in range(math.prod(shape))]
        tensor = torch.tensor(numbers, dtype=torch.float64)
    else:
        exact = torch.complex128 if dtype.startswith("complex") else torch.float64 if "float" in dtype else getattr(torch, dtype)
        tensor = torch.tensor(values, dtype=exact)
    tensor = tensor.to(getattr(torch, dtype)).view(shape).requires_grad_(requires_grad)
    torch.set_printoptions(**{**DEFAULTS, **options})
    text = str(tensor)
    torch.set_printoptions(**DEFAULTS)
    case = {"shape": shape, "dtype": dtype, "text": text, "options": options, "requires_grad": requires_grad}
    case["formula" if formula else "values"] = list(formula) if formula else [plain(v) for v in values]
    cases.append(case)


def whole_numbers():
    for dtype in INTS:
        info = torch.iinfo(getattr(torch, dtype))
        add([info.min, 0, 7, info.max], [4], dtype)
        add([3], [], dtype)
        add(None, [40], dtype, formula=(37, 100, 1.0, 0.0))
    add([True, False, False, True, True, False], [2, 3], "bool")
    add([True], [], "bool")
    add(None, [1200], "int64", formula=(7919, 10007, 1.0, -5000.0))


def floats():
    inf, nan = math.inf, math.nan
    for dtype in FLOATS:
        for values in ([0.0], [1.0], [-0.0], [0.5], [inf], [-inf], [nan], [-2.25], [65504.0], [1e-5], [12345.0]):
            add(values, [], dtype)
            add(values, [1], dtype)
        for values in ([0.0, 0.0, -0.0], [1.0, 2.0, -3.0], [1.0, inf, nan], [0.5, -inf, nan], [inf, nan, -inf], [nan, 0.0, 2.0],
                       [0.1, 0.25, 100.0], [0.1, 0.25, 101.0], [1e-4, 1e-3, 1e-2], [9e-5, 1e-3, 0.0], [1.0, 1000.0, 500.0],
                       [1.0, 1001.0, 500.0], [1000.5, 2.5, -3.5], [1e-3, 1.0, -1.0], [-1e-7, 2e-7, nan], [3e4, 6e4, -inf]):
            add(values, [3], dtype)
            for options in ({"sci_mode": True}, {"sci_mode": False}, {"precision": 2}, {"precision": 0}, {"precision": 9}):
                add(values, [3], dtype, **options)
        add(None, [2, 3, 4], dtype, formula=(17, 24, 0.25, -3.0))
        add(None, [3, 1, 2, 2], dtype, formula=(5, 12, 1.0, -3.0))
    for values in ([1e8, 1.0, 2.0], [1e9, 2e9, 3e9], [1e308, 1e-308, 5e-324], [100000001.0, 100000002.0, 2e8]):
        add(values, [3], "float64")
        add(values, [3], "float64", sci_mode=False, precision=3)
    for dtype in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
        add([0.5, -2.0, 16.0], [3], dtype)


def complex_numbers():
    for dtype in ("complex64", "complex128"):
        add([1 + 2j, 0.5 - 3j, -1e-3 + 0j], [3], dtype)
        add([1 - 0j], [], dtype)
        add([complex(math.nan, -math.inf), complex(1, 1000), complex(0, -20.5), complex(-4, 0)], [2, 2], dtype, precision=3)
        add([complex(i, -i / 4) for i in range(30)], [30], dtype, linewidth=50)


def shapes():
    for dtype in FLOATS + INTS + ["bool", "complex64"]:
        for shape in ([0], [0, 3], [2, 0, 4]):
            add([], shape, dtype)
    for shape in ([1001], [1000], [11, 100], [2, 600], [600, 2], [10, 11, 12], [2, 7, 80], [5, 5, 5, 9], [1100, 1], [7, 1, 150]):
        add(None, shape, formula=(7919, 10007, 0.125, -300.0))
        add(None, shape, "int32", formula=(7919, 10007, 1.0, 0.0))
        for options in ({"edgeitems": 1}, {"edgeitems": 5, "linewidth": 40}, {"edgeitems": 0}, {"threshold": 100000}):
            if math.prod(shape) < 1200 or "threshold" not in options:
                add(None, shape, formula=(101, 997, 0.5, -30.0), **options)
    add(None, [3, 4], formula=(5, 12, 1.0, 0.0), threshold=5, edgeitems=1)
    add(None, [3, 4], formula=(5, 12, 1.0, 0.0), edgeitems=0)
    add([2.5], [], threshold=0, edgeitems=1)
    for width in (1, 9, 20, 33, 120, 200):
        add(None, [4, 20], formula=(31, 97, 0.25, -5.0), linewidth=width)
        add(None, [17], "float16", True, formula=(31, 97, 0.25, -5.0), linewidth=width)
    for count in range(6, 14):  # around the width at which dtype and requires_grad move to the next line
        add(None, [count], "float64", True, formula=(31, 97, 0.25, -5.0))


def random_cases(count=120):
    """Values over many magnitudes, in any shape, with any options."""
    for _ in range(count):
        shape = [draw.randint(1, 5) for _ in range(draw.randint(0, 4))]
        size = math.prod(shape)
        dtype = draw.choice(FLOATS)
        most = draw.choice([0, 1, 3, 4])
        values = [draw.choice([-1, 1]) * draw.randint(0, 1 << 12) * 2.0 ** draw.randint(-12, 0) * 10.0 ** draw.randint(0, most)
                  for _ in range(size)]
        options = {"precision": draw.randint(0, 6), "linewidth": draw.randint(20, 120), "threshold": draw.choice([10, 1000]),
                   "edgeitems": draw.randint(1, 3), "sci_mode": draw.choice([None, None, True, False])}
        add(values, shape, dtype, **options)


def dtypes():
    floating, whole = [], []
    for name in FLOATS + ["complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]:
        info = torch.finfo(getattr(torch, name))
        fields = ("bits", "eps", "max", "min", "smallest_normal", "tiny", "resolution", "dtype")
        floating.append({"of": name, **{field: getattr(info, field) for field in fields}})
    for name in INTS:
        info = torch.iinfo(getattr(torch, name))
        whole.append({"of": name, "bits": info.bits, "max": info.max, "min": info.min, "dtype": info.dtype})
    return floating, whole


if __name__ == "__main__":
    out.parent.mkdir(parents=True, exist_ok=True)
    for fill in (whole_numbers, floats, complex_numbers, shapes, random_cases):
        fill()
    floating, whole = dtypes()
    content = {"torch": torch.__version__, "finfo": floating, "iinfo": whole, "cases": cases}
    out.write_text(json.dumps(content, separators=(",", ":")).replace('},{"', '},\n{"') + "\n")
