"""A server with FastAPI and uvicorn for bench/serve/bench_serve.cpp. `serve_fastapi.py LIBRARY TASK [FILE]` serves a task of
compile_tools.py, or the identity of 1024 numbers, in eager PyTorch or in ONNX Runtime (LIBRARY is torch or onnxruntime; FILE is the ONNX
file). It answers the inference requests of the Open Inference Protocol with binary tensors, because JSON numbers would cost it more
time. After "ready", `port` answers with the port."""

import json
import os
import socket
import sys
import threading
import time

import fastapi
import numpy
import torch
import uvicorn

from protocol import serve

THREADS = int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads()))
NUMPY = {"FP32": numpy.float32, "INT64": numpy.int64}


def torch_model(task):
    if task == "identity":
        return lambda x: x
    from compile_tools import network

    net = network(task.split("-")[0]).eval()

    def run(x):
        with torch.inference_mode():
            return net(torch.from_numpy(x)).numpy()

    return run


def onnxruntime_model(file):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})[0]


def application(run, inputs, outputs, model):
    app = fastapi.FastAPI()

    @app.get("/v2")
    async def server():
        return {"name": "fastapi", "version": fastapi.__version__}

    @app.get("/v2/models/" + model)
    async def metadata():
        return {"name": model, "versions": ["1"], "platform": "python", "inputs": inputs, "outputs": outputs}

    @app.post(f"/v2/models/{model}/infer")
    async def infer(request: fastapi.Request):
        body = await request.body()
        size = int(request.headers["inference-header-content-length"])
        tensor = json.loads(body[:size])["inputs"][0]
        x = numpy.frombuffer(body, NUMPY[tensor["datatype"]], offset=size).reshape(tensor["shape"])
        y = run(x.copy())
        data = y.tobytes()
        head = {"model_name": model, "model_version": "1", "outputs": [dict(outputs[0], shape=list(y.shape), parameters={"binary_data_size": len(data)})]}
        text = json.dumps(head).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))}
        return fastapi.Response(text + data, media_type="application/octet-stream", headers=headers)

    return app


def main():
    library, task, *files = sys.argv[1:]
    torch.set_num_threads(THREADS)
    identity = task == "identity"
    inputs = [{"name": "x" if identity else "input_ids", "datatype": "FP32" if identity else "INT64", "shape": [-1, 1024 if identity else -1]}]
    outputs = [{"name": "y", "datatype": "FP32", "shape": [-1, 1024 if identity else 10]}]
    app = application(torch_model(task) if library == "torch" else onnxruntime_model(files[0]), inputs, outputs, task)
    listener = socket.socket()
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    serve(lambda count: None, {"port": lambda: [listener.getsockname()[1]]})


if __name__ == "__main__":
    main()
