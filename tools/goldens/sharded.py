"""Reads a checkpoint of many ranks with Python's safetensors, by index.json alone, and compares it with the whole tensors.

    python tools/goldens/sharded.py FOLDER     reads back what `sharded_test` wrote there (environment variable BELLOWS_SHARDED_OUT)
"""

import json
import math
import pathlib
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file


def read_tensor(folder, index, tensor):
    """One tensor of the index, whole."""
    sizes = tensor["sizes"]
    flat, whole = None, None
    for piece in tensor["pieces"]:
        with safe_open(folder / index["files"][piece["file"]]["name"], framework="pt") as file:
            part = file.get_tensor(piece["key"])
        if flat is None:
            flat = torch.zeros(math.prod(sizes), dtype=part.dtype)
            whole = flat.view(sizes)
        if len(piece["offset"]) == len(sizes):
            whole[tuple(slice(o, o + n) for o, n in zip(piece["offset"], piece["length"]))] = part
        else:  # a run of elements, over the ends of rows
            flat[piece["offset"][0] : piece["offset"][0] + piece["length"][0]] = part
    return whole


def main(folder):
    index = json.loads((folder / "step" / "index.json").read_text())
    assert index["format"] == "bellows.sharded_checkpoint" and index["version"] == 1
    expected = load_file(folder / "expected.safetensors")
    exported = load_file(folder / "model.safetensors")
    assert exported.keys() == expected.keys()
    tensors = {t["name"]: t for t in index["tensors"]}
    for name, tensor in expected.items():
        assert torch.equal(exported[name], tensor), name
        for section in ("model", "optimizer"):
            read = read_tensor(folder / "step", index, tensors[f"{section}/{name}"])
            assert (read is None and tensor.numel() == 0) or torch.equal(read, tensor), name
    print(f"{len(expected)} tensors are as they were saved")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
