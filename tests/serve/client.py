"""Uses every call of Triton's official HTTP client on tests/serve/test_server.cpp: client.py PORT GRPC_PORT"""

import sys

import ml_dtypes
import numpy as np
import tritonclient.http as http
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from triton_checks import expect_error

client = http.InferenceServerClient(f"127.0.0.1:{sys.argv[1]}", concurrency=8)


def tensor(name, values, binary=True, datatype=None):
    given = http.InferInput(name, list(values.shape), datatype or np_to_triton_dtype(values.dtype))
    given.set_data_from_numpy(values, binary_data=binary)
    return given


def infer(model, values, binary_input, binary_output, datatype=None, **options):
    wanted = [http.InferRequestedOutput("y", binary_data=binary_output)]
    return client.infer(model, [tensor("x", values, binary_input, datatype)], outputs=wanted, **options)


def check_health():
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("sum") and client.is_model_ready("sum", "1")
    assert not client.is_model_ready("damaged") and not client.is_model_ready("none")
    assert client.get_server_metadata()["name"] == "bellows"
    metadata = client.get_model_metadata("sum")
    assert [i["name"] for i in metadata["inputs"]] == ["a", "b"] and metadata["inputs"][0]["shape"] == [-1, 2]
    assert client.get_model_config("sum")["max_batch_size"] == 8
    expect_error("unknown model", client.get_model_metadata, "none")


def check_dtypes():
    random = np.random.default_rng(1)
    for name in ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"]:
        dtype = triton_to_np_dtype(name)
        values = random.integers(0, 2 if name == "BOOL" else 100, (3, 5)).astype(dtype)
        if name.startswith("FP"):
            values = (values / 7).astype(dtype)
        ways = [(True, True)] if name == "FP16" else [(a, b) for a in (True, False) for b in (True, False)]
        for binary_input, binary_output in ways:
            result = infer(name, values, binary_input, binary_output, request_id="r7")
            got = result.as_numpy("y")
            assert got.dtype == values.dtype and np.array_equal(got, values), (name, binary_input, binary_output)
            assert result.get_response()["id"] == "r7" and result.get_response()["model_name"] == name
    values = np.array([[1.5, -2.0]], dtype=ml_dtypes.bfloat16)
    assert np.array_equal(infer("BF16", values, True, True, "BF16").as_numpy("y").astype(np.float32), [[1.5, -2.0]])
    assert infer("FP32", np.zeros((0, 3), np.float32), True, True).as_numpy("y").shape == (0, 3)
    expect_error("binary", infer, "FP16", np.zeros((1, 1), np.float16), True, False)


def check_classes():
    values = np.array([[0.1, 0.7, 0.2, 0.0], [1, 2, 3, 4]], dtype=np.float32)
    for binary in (True, False):
        wanted = [http.InferRequestedOutput("y", binary_data=binary, class_count=2)]
        got = client.infer("identity", [tensor("x", values)], outputs=wanted).as_numpy("y")
        texts = [[c.decode() if isinstance(c, bytes) else c for c in row] for row in got]
        assert texts == [["0.700000:1:dog", "0.200000:2:bird"], ["4.000000:3:fish", "3.000000:2:bird"]], texts


def check_concurrent():
    operands = [(np.array([[i, 2 * i]], np.int64), np.array([[7, i]], np.int64)) for i in range(200)]
    sums = [client.async_infer("sum", [tensor("a", a), tensor("b", b)]) for a, b in operands]
    for (a, b), request in zip(operands, sums):
        assert np.array_equal(request.get_result().as_numpy("total"), a + b)
    later = [client.async_infer("identity", [tensor("x", np.full((1, 4), i, np.float32))]) for i in range(20)]
    assert [int(request.get_result().as_numpy("y")[0, 0]) for request in later] == list(range(20))
    stats = client.get_inference_statistics("sum")["model_stats"][0]
    assert stats["inference_count"] == 200 and stats["execution_count"] < 200
    assert sum(b["batch_size"] * b["compute_infer"]["count"] for b in stats["batch_stats"]) == 200
    assert len(client.get_inference_statistics()["model_stats"]) > 10


def check_errors():
    x = np.zeros((1, 4), np.float32)
    expect_error("unexpected shape", client.infer, "identity", [tensor("x", np.zeros((1, 3), np.float32))])
    expect_error("datatype", client.infer, "identity", [tensor("x", x.astype(np.float64))])
    expect_error("unexpected input", client.infer, "identity", [tensor("q", x)])
    expect_error("missing input", client.infer, "sum", [tensor("a", np.zeros((1, 2), np.int64))])
    expect_error("batch size", client.infer, "identity", [tensor("x", np.zeros((9, 4), np.float32))])
    expect_error("no version", client.infer, "identity", [tensor("x", x)], model_version="3")
    expect_error("sequences", client.infer, "identity", [tensor("x", x)], sequence_id=3)
    expect_error("sequence_start", client.infer, "accumulate", [tensor("x", x[:, :1])], sequence_id=3)
    expect_error("gzip", client.infer, "identity", [tensor("x", x)], request_compression_algorithm="gzip")
    client.infer("identity", [tensor("x", x)], priority=1, timeout=1_000_000, parameters={"own": "value"})


def check_texts():
    texts = np.array([["a"], ["bcd"]], dtype=np.object_)
    for binary in (True, False):
        given = [tensor("text", texts, binary, "BYTES")]
        got = client.infer("texts", given).as_numpy("y")
        assert np.array_equal(got, [[2 + 3 + ord("a") + 1, 3], [2 + sum(3 + ord(c) for c in "bcd") + 1, 5]]), got
        result = client.infer("ensemble", given, outputs=[http.InferRequestedOutput("text", binary_data=binary)])
        same = result.as_numpy("text")
        assert [[t.decode() if isinstance(t, bytes) else t for t in row] for row in same] == [["a"], ["bcd"]], same


def check_sequences():
    for sequence in (5, 6):
        for i, total in enumerate((1, 3, 6)):
            x = np.array([[i + 1]], np.float32) * sequence
            result = client.infer("accumulate", [tensor("x", x)], sequence_id=sequence, sequence_start=i == 0, sequence_end=i == 2)
            assert result.as_numpy("y")[0, 0] == total * sequence


def check_repository():
    states = {row["name"]: row["state"] for row in client.get_model_repository_index()}
    assert states["identity"] == "READY" and states["damaged"] == "UNAVAILABLE"
    client.unload_model("identity")
    assert not client.is_model_ready("identity")
    client.load_model("identity")
    assert client.is_model_ready("identity")
    expect_error("damaged", client.load_model, "damaged")


for check in (check_health, check_dtypes, check_classes, check_concurrent, check_errors, check_texts, check_sequences, check_repository):
    check()
client.close()
