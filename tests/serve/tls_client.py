"""Uses tests/serve/test_server.cpp over TLS with a token, from Triton's clients and from Python's own one.

tls_client.py make FOLDER       writes a certificate, a key and tokens
tls_client.py use FOLDER PORT   uses the server
"""

import asyncio
import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

TOKEN = "tls-client-token-0123"


def make(folder):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                    "-keyout", f"{folder}/key.pem", "-out", f"{folder}/certificate.pem"], check=True, stderr=subprocess.DEVNULL)
    with open(f"{folder}/tokens", "w") as file:
        file.write(f"python:{TOKEN}\n")


def trusting(folder):
    """Trusts only the certificate of the server, and checks its name."""
    return ssl.create_default_context(cafile=f"{folder}/certificate.pem")


def inputs(module):
    import numpy as np
    tensor = module.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.arange(4, dtype=np.float32).reshape(1, 4))
    return [tensor]


def use_triton(folder, port):
    import numpy as np
    import tritonclient.http as http
    from tritonclient.utils import InferenceServerException
    headers = {"Authorization": "Bearer " + TOKEN}
    client = http.InferenceServerClient(f"localhost:{port}", ssl=True, ssl_context_factory=lambda: trusting(folder))
    assert client.is_server_ready(headers=headers)
    for _ in range(20):
        result = client.infer("identity", inputs(http), headers=headers)
        assert np.array_equal(result.as_numpy("y"), [[0, 1, 2, 3]])
    try:
        client.infer("identity", inputs(http))
    except InferenceServerException as error:
        assert "Authorization: Bearer TOKEN" in str(error), error
    else:
        raise AssertionError("a request without a token was answered")


async def use_triton_async(folder, port):
    import numpy as np
    import tritonclient.http.aio as http
    headers = {"Authorization": "Bearer " + TOKEN}
    async with http.InferenceServerClient(f"localhost:{port}", ssl=True, ssl_context=trusting(folder)) as client:
        results = await asyncio.gather(*[client.infer("identity", inputs(http), headers=headers) for _ in range(20)])
        assert all(np.array_equal(result.as_numpy("y"), [[0, 1, 2, 3]]) for result in results)


def use_python(folder, port):
    def ask(path, token, context):
        request = urllib.request.Request(f"https://localhost:{port}{path}", headers={"Authorization": f"Bearer {token}"})
        return json.load(urllib.request.urlopen(request, context=context))

    assert ask("/v2", TOKEN, trusting(folder))["name"] == "bellows"
    try:
        ask("/v2", "wrong", trusting(folder))
    except urllib.error.HTTPError as error:
        assert error.code == 401 and error.headers["WWW-Authenticate"] == "Bearer"
    else:
        raise AssertionError("a wrong token was accepted")
    try:
        ask("/v2", TOKEN, ssl.create_default_context())
    except urllib.error.URLError as error:
        assert "CERTIFICATE_VERIFY_FAILED" in str(error), error
    else:
        raise AssertionError("the client did not check the certificate")


if sys.argv[1] == "make":
    make(sys.argv[2])
else:
    use_python(sys.argv[2], int(sys.argv[3]))
    use_triton(sys.argv[2], int(sys.argv[3]))
    asyncio.run(use_triton_async(sys.argv[2], int(sys.argv[3])))
