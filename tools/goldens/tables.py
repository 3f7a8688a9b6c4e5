"""Writes tests/goldens/interop/tables: what NumPy, Python's csv and json modules and torchvision's ImageFolder make of small inputs.
Run: .deps/peers/bin/python tools/goldens/tables.py
     .deps/peers/bin/python tools/goldens/tables.py --verify FOLDER   reads with them what our tests wrote there
"""
import csv
import io
import json
import math
import os
import shutil
import sys
import tempfile

import numpy as np
import torchvision
from safetensors.numpy import load_file, save_file
from torchvision.datasets import ImageFolder

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
OUT = os.path.join(ROOT, "tests", "goldens", "interop", "tables")

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64", "float64", "complex64",
          "complex128"]
CELLS = [["id", "text", "number", "real", "empty", "code", "huge", "label"],
         [1, "plain", -5, 0.1, "", "007", 18446744073709551615, 3],
         [2, 'quotes "in" it', 2**63 - 1, 1e22, "", "1", 1, 0],
         [3, "a, comma", 0, -0.0, "", "2", 2, -1],
         [4, "two\nlines", 12, 5e-324, "", "3", 3, 7],
         [5, "two\r\nlines", 1, 1e-5, "", "4", 4, 7],
         [6, "ümlaut ☃", 1, 123456789.125, "", "5", 5, 7],
         [7, "", 1, float("inf"), "", "6", 6, 7],
         [8, '"', 1, float("nan"), "", "7", 7, 7]]
RECORDS = [{"__key__": "a", "x": 1, "y": 0.5, "list": [1, 2, 3], "nested": [[1.5, 2.0], [3.0, 4.0]], "flag": True, "text": "zwölf\n\"☃\" 🔥"},
           {"__key__": "b", "x": -5, "y": 2.0, "list": [4, 5, 6], "nested": [[0.0, -0.0], [1e-05, 1e16]], "flag": False, "text": ""}]
TREE = ["b/2.png", "b/10.jpg", "b/1.PNG", "a/z.jpeg", "a/x/1.png", "a/x-y/1.png", "a/x/z/1.png", "a/notes.txt", "B/1.jpg", "é/1.png", "top.txt"]


def arrays():
    random = np.random.RandomState(5)
    return {dtype: (random.rand(5, 3) * 100 - 40).astype(dtype) if dtype != "bool" else random.rand(5, 3) > 0.5 for dtype in DTYPES}


def describe(array):
    return {"dtype": array.dtype.name, "shape": list(array.shape), "bytes": np.ascontiguousarray(array).tobytes().hex()}


def numpy_files(expected):
    np.seterr(all="ignore")
    all_arrays = arrays()
    for dtype, array in all_arrays.items():
        np.save(os.path.join(OUT, dtype), array)
        expected[dtype] = describe(array)
    for name, array in {"scalars": np.arange(7), "empty": np.zeros((0, 4), np.float32), "wide": np.zeros((1, 0, 2), np.int32),
                        "cube": np.arange(24, dtype=np.float32).reshape(2, 3, 4)}.items():
        np.save(os.path.join(OUT, name), array)
        expected[name] = describe(array)
    for version in (2, 3):
        with open(os.path.join(OUT, f"version{version}.npy"), "wb") as file:
            np.lib.format.write_array(file, np.arange(6).reshape(3, 2), version=(version, 0))
    two = {"x": all_arrays["float32"], "y": np.arange(5)}
    np.savez(os.path.join(OUT, "stored.npz"), **two)
    np.savez_compressed(os.path.join(OUT, "packed.npz"), **two)
    save_file(two, os.path.join(OUT, "two.safetensors"))
    np.save(os.path.join(OUT, "fortran"), np.asfortranarray(all_arrays["float32"]))
    np.save(os.path.join(OUT, "big"), all_arrays["float32"].astype(">f4"))
    np.save(os.path.join(OUT, "objects"), np.array([{}, 1], dtype=object), allow_pickle=True)
    np.save(os.path.join(OUT, "texts"), np.array(["a", "bc"]))
    np.save(os.path.join(OUT, "structure"), np.zeros(3, dtype=[("a", "f4"), ("b", "i8")]))
    np.save(os.path.join(OUT, "number"), np.float32(3))


def write_csv(file, rows, **options):
    csv.writer(file, **options).writerows([[repr(c) if isinstance(c, float) else c for c in row] for row in rows])


def tables(expected):
    with open(os.path.join(OUT, "cells.csv"), "w", newline="", encoding="utf-8") as file:
        write_csv(file, CELLS)
    with open(os.path.join(OUT, "cells.csv"), newline="", encoding="utf-8") as file:
        expected["cells"] = list(csv.DictReader(file))
    with open(os.path.join(OUT, "semicolons.csv"), "w", newline="", encoding="utf-8-sig") as file:
        write_csv(file, CELLS, delimiter=";", lineterminator="\n", quoting=csv.QUOTE_ALL)
    with open(os.path.join(OUT, "records.jsonl"), "w") as file:
        for record in RECORDS:
            file.write(json.dumps(record) + "\n")
    expected["records"] = RECORDS


def folder_order(expected):
    with tempfile.TemporaryDirectory() as folder:
        for path in TREE:
            os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
            open(os.path.join(folder, path), "w").close()
        data = ImageFolder(folder)
        expected["tree"] = TREE
        expected["classes"] = data.classes
        expected["samples"] = [[os.path.relpath(path, folder), label] for path, label in data.samples]


def goldens():
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    expected = {"versions": {"numpy": np.__version__, "torchvision": torchvision.__version__, "python": sys.version.split()[0]}}
    numpy_files(expected)
    tables(expected)
    folder_order(expected)
    with open(os.path.join(OUT, "expected.json"), "w") as file:
        json.dump(expected, file)


def same(found, wanted, where):
    assert found.dtype == wanted.dtype and found.shape == wanted.shape and found.tobytes() == wanted.tobytes(), where


def verify(folder):
    count = 0
    for dtype, array in arrays().items():
        path = os.path.join(folder, dtype + ".npy")
        same(np.load(path), array, path)
        same(np.load(path, mmap_mode="r"), array, path)
        count += 1
    same(np.load(os.path.join(folder, "scalars.npy")), np.arange(7), "scalars")
    for found in (np.load(os.path.join(folder, "two.npz")), load_file(os.path.join(folder, "two.safetensors"))):
        same(found["x"], arrays()["float32"], "x")
        same(found["y"], np.arange(5), "y")
        count += 1
    with open(os.path.join(folder, "cells.csv"), newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, strict=True))
    with open(os.path.join(OUT, "cells.csv"), newline="", encoding="utf-8") as file:
        assert rows == list(csv.DictReader(file)), rows
    with open(os.path.join(folder, "records.jsonl")) as file:
        records = [json.loads(line) for line in file]
    assert records == RECORDS, records
    data = ImageFolder(os.path.join(folder, "pictures"))
    assert data.classes == ["cat", "dog"] and len(data) == 4, data.classes
    for picture, label in data:
        assert picture.size == (8, 8) and label in (0, 1)
    print(f"NumPy {np.__version__}, Python's csv and json, and torchvision {torchvision.__version__} read {count} files of arrays, "
          f"{len(rows)} rows, {len(records)} lines and {len(data)} pictures as they were")


if __name__ == "__main__":
    verify(sys.argv[2]) if sys.argv[1:2] == ["--verify"] else goldens()
