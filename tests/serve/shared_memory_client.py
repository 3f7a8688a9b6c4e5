"""Uses Triton's shared memory extension with the official clients: shared_memory_client.py PORT GRPC_PORT"""

import sys

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
import tritonclient.utils.shared_memory as shm

from triton_checks import expect_error


def check(protocol, port, names_of):
    client = protocol.InferenceServerClient(f"127.0.0.1:{port}")
    a, b = np.array([[1, 2], [3, 4]], np.int64), np.array([[10, 20], [30, 40]], np.int64)
    size = a.nbytes
    region = shm.create_shared_memory_region("inputs", f"/bellows_in_{protocol.__name__}", 2 * size)
    results = shm.create_shared_memory_region("results", f"/bellows_out_{protocol.__name__}", size)
    try:
        shm.set_shared_memory_region(region, [a, b])
        client.register_system_shared_memory("inputs", f"/bellows_in_{protocol.__name__}", 2 * size)
        client.register_system_shared_memory("results", f"/bellows_out_{protocol.__name__}", size)
        expect_error("already registered", client.register_system_shared_memory, "inputs",
                     f"/bellows_in_{protocol.__name__}", 8)
        expect_error("cannot open", client.register_system_shared_memory, "other", "/bellows_none", 8)
        assert sorted(names_of(client.get_system_shared_memory_status())) == ["inputs", "results"]
        assert names_of(client.get_system_shared_memory_status("results")) == ["results"]
        inputs = [protocol.InferInput("a", [2, 2], "INT64"), protocol.InferInput("b", [2, 2], "INT64")]
        inputs[0].set_shared_memory("inputs", size)
        inputs[1].set_shared_memory("inputs", size, offset=size)
        wanted = protocol.InferRequestedOutput("total")
        wanted.set_shared_memory("results", size)
        for _ in range(3):
            result = client.infer("sum", inputs, outputs=[wanted])
            assert result.get_output("total") is not None
            assert np.array_equal(shm.get_contents_as_numpy(results, np.int64, [2, 2]), a + b)
            a[0, 0] += 1
            shm.set_shared_memory_region(region, [a])
        # One input and the output in the request.
        inputs[1] = protocol.InferInput("b", [2, 2], "INT64")
        inputs[1].set_data_from_numpy(b)
        assert np.array_equal(client.infer("sum", inputs).as_numpy("total"), a + b)
        inputs[0].set_shared_memory("inputs", size, offset=size + 8)
        expect_error("do not fit", client.infer, "sum", inputs)
        wanted.set_shared_memory("results", size - 8)
        inputs[0] = protocol.InferInput("a", [2, 2], "INT64")  # the client keeps the offset of an earlier call
        inputs[0].set_shared_memory("inputs", size)
        expect_error("has 32 bytes", client.infer, "sum", inputs, outputs=[wanted])
        client.unregister_system_shared_memory("inputs")
        expect_error("Register it first", client.infer, "sum", inputs)
        client.unregister_system_shared_memory()
        assert names_of(client.get_system_shared_memory_status()) == []
    finally:
        shm.destroy_shared_memory_region(region)
        shm.destroy_shared_memory_region(results)
        client.close()


check(http, sys.argv[1], lambda status: [region["name"] for region in status])
if sys.argv[2] != "0":
    check(grpc, sys.argv[2], lambda status: list(status.regions))
