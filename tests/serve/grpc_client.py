"""Uses every call of Triton's official gRPC client on tests/serve/test_server.cpp: grpc_client.py PORT GRPC_PORT"""

import asyncio
import queue
import sys

import ml_dtypes
import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as aio
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from triton_checks import expect_error

address = f"127.0.0.1:{sys.argv[2]}"
client = grpc.InferenceServerClient(address)


def tensor(name, values, datatype=None):
    given = grpc.InferInput(name, list(values.shape), datatype or np_to_triton_dtype(values.dtype))
    given.set_data_from_numpy(values)
    return given


def infer(model, values, datatype=None, **options):
    return client.infer(model, [tensor("x", values, datatype)], **options)


def check_health():
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("sum") and client.is_model_ready("sum", "1")
    assert not client.is_model_ready("damaged") and not client.is_model_ready("none")
    assert client.get_server_metadata().name == "bellows"
    metadata = client.get_model_metadata("sum", as_json=True)
    assert [i["name"] for i in metadata["inputs"]] == ["a", "b"] and metadata["inputs"][0]["shape"] == ["-1", "2"]
    config = client.get_model_config("sum").config
    assert config.max_batch_size == 8 and config.dynamic_batching.max_queue_delay_microseconds == 50000
    assert config.backend == "test" and config.instance_group[0].count == 1
    expect_error("unknown model", client.get_model_metadata, "none")


def check_dtypes():
    random = np.random.default_rng(1)
    for name in ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"]:
        dtype = triton_to_np_dtype(name)
        values = random.integers(0, 2 if name == "BOOL" else 100, (3, 5)).astype(dtype)
        if name.startswith("FP"):
            values = (values / 7).astype(dtype)
        for wanted in (None, [grpc.InferRequestedOutput("y")]):
            result = infer(name, values, outputs=wanted, request_id="r7")
            got = result.as_numpy("y")
            assert got.dtype == values.dtype and np.array_equal(got, values), name
            assert result.get_response().id == "r7" and result.get_response().model_name == name
    values = np.array([[1.5, -2.0]], dtype=ml_dtypes.bfloat16)
    assert np.array_equal(infer("BF16", values, "BF16").as_numpy("y").astype(np.float32), [[1.5, -2.0]])
    assert infer("FP32", np.zeros((0, 3), np.float32)).as_numpy("y").shape == (0, 3)
    large = random.random((1000, 2000), np.float32)
    assert np.array_equal(infer("FP32", large).as_numpy("y"), large)


def check_classes():
    values = np.array([[0.1, 0.7, 0.2, 0.0], [1, 2, 3, 4]], dtype=np.float32)
    got = infer("identity", values, outputs=[grpc.InferRequestedOutput("y", class_count=2)]).as_numpy("y")
    texts = [[c.decode() for c in row] for row in got]
    assert texts == [["0.700000:1:dog", "0.200000:2:bird"], ["4.000000:3:fish", "3.000000:2:bird"]], texts


def check_async():
    results = queue.Queue()
    operands = [(np.array([[i, 2 * i]], np.int64), np.array([[7, i]], np.int64)) for i in range(200)]
    for i, (a, b) in enumerate(operands):
        client.async_infer("sum", [tensor("a", a), tensor("b", b)], request_id=str(i),
                           callback=lambda result, error: results.put((result, error)))
    for _ in operands:
        result, error = results.get(timeout=60)
        assert error is None, error
        a, b = operands[int(result.get_response().id)]
        assert np.array_equal(result.as_numpy("total"), a + b)
    stats = client.get_inference_statistics("sum").model_stats[0]
    assert stats.inference_count == 200 and stats.execution_count < 200
    assert sum(b.batch_size * b.compute_infer.count for b in stats.batch_stats) == 200
    assert len(client.get_inference_statistics().model_stats) > 10
    cancelled = queue.Queue()
    call = client.async_infer("sum", [tensor("a", operands[0][0]), tensor("b", operands[0][1])],
                              callback=lambda result, error: cancelled.put((result, error)))
    call.cancel()
    cancelled.get(timeout=60)  # either the result or the error of a cancelled call


def check_streaming():
    results = queue.Queue()
    client.start_stream(callback=lambda result, error: results.put((result, error)))
    for i in range(100):
        model = "none" if i == 50 else "identity"
        client.async_stream_infer(model, [tensor("x", np.full((1, 4), i, np.float32))], request_id=str(i),
                                  enable_empty_final_response=True)
    for i in range(100):
        result, error = results.get(timeout=60)
        if i == 50:
            assert "unknown model" in str(error), error
            continue
        assert error is None, error
        response = result.get_response()
        assert response.id == str(i) and int(result.as_numpy("y")[0, 0]) == i
        assert response.parameters["triton_final_response"].bool_param
    client.stop_stream()


async def check_asyncio():
    async with aio.InferenceServerClient(address) as one:
        assert await one.is_server_ready()
        x = np.full((1, 4), 5, np.float32)
        results = await asyncio.gather(*[one.infer("identity", [tensor("x", x)]) for _ in range(20)])
        assert all(np.array_equal(result.as_numpy("y"), x) for result in results)

        async def requests():
            for i in range(20):
                yield {"model_name": "identity", "inputs": [tensor("x", np.full((1, 4), i, np.float32))]}

        values = []
        async for result, error in one.stream_infer(requests()):
            assert error is None, error
            values.append(int(result.as_numpy("y")[0, 0]))
        assert values == list(range(20))


def check_errors():
    x = np.zeros((1, 4), np.float32)
    expect_error("StatusCode.INVALID_ARGUMENT", infer, "identity", np.zeros((1, 3), np.float32))
    expect_error("unexpected shape", infer, "identity", np.zeros((1, 3), np.float32))
    expect_error("datatype", infer, "identity", x.astype(np.float64))
    expect_error("unexpected input", client.infer, "identity", [tensor("q", x)])
    expect_error("missing input", client.infer, "sum", [tensor("a", np.zeros((1, 2), np.int64))])
    expect_error("batch size", infer, "identity", np.zeros((9, 4), np.float32))
    expect_error("no version", infer, "identity", x, model_version="3")
    expect_error("StatusCode.UNIMPLEMENTED", infer, "identity", x, sequence_id=3)
    expect_error("StatusCode.UNIMPLEMENTED", infer, "identity", x, compression_algorithm="gzip")
    expect_error("StatusCode.NOT_FOUND", infer, "none", x)
    infer("identity", x, priority=1, timeout=1_000_000, client_timeout=60, parameters={"own": "value"})


def check_repository():
    states = {row.name: row.state for row in client.get_model_repository_index().models}
    assert states["identity"] == "READY" and states["damaged"] == "UNAVAILABLE"
    client.unload_model("identity")
    assert not client.is_model_ready("identity")
    client.load_model("identity")
    assert client.is_model_ready("identity")
    expect_error("damaged", client.load_model, "damaged")


for check in (check_health, check_dtypes, check_classes, check_async, check_streaming, check_errors, check_repository):
    check()
asyncio.run(check_asyncio())
client.close()
