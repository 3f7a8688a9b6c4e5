"""Uses the status page of the server in headless Chromium: page.py CHROMIUM PORT TOKEN FOLDER [PICTURES]

Controls the browser through its DevTools protocol on two pipes, so no other package is needed. With PICTURES, a folder, it also
draws the page: wide and narrow, light and dark.
"""
import base64
import itertools
import json
import os
import subprocess
import sys
import time


class Browser:
    """One page in a new browser."""

    def __init__(self, program, folder):
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()

        def move_pipes():  # the browser reads descriptor 3 and writes descriptor 4
            one, two = os.dup(commands), os.dup(answers)
            os.dup2(one, 3)
            os.dup2(two, 4)

        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
             "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={folder}/profile", "about:blank"],
            preexec_fn=move_pipes, close_fds=False, stderr=open(f"{folder}/browser.log", "w"))
        os.close(commands)
        os.close(answers)
        self.numbers, self.buffer, self.events, self.session = itertools.count(1), b"", [], None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def read(self):
        while b"\0" not in self.buffer:
            piece = os.read(self.answers, 1 << 16)
            assert piece, "the browser has ended"
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        number = next(self.numbers)
        request = {"id": number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.commands, json.dumps(request).encode() + b"\0")
        while True:
            message = self.read()
            if message.get("id") == number:
                assert "error" not in message, (method, message)
                return message["result"]
            if "method" in message:
                self.events.append(message)

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, (expression, result)
        return result["result"].get("value")

    def wait(self, expression):
        """Waits until the expression is true, and returns its value."""
        for _ in range(600):
            value = self.value(expression)
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"never true: {expression}. The page: {self.value('document.body.innerText')}")

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState == 'complete' && location.href != 'about:blank'")

    def picture(self, file):
        height = self.value("document.documentElement.scrollHeight")
        width = self.value("innerWidth")
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True,
                         clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1})["data"]
        with open(file, "wb") as out:
            out.write(base64.b64decode(data))

    def close(self):
        self.session = None
        try:
            self.call("Browser.close")
        finally:
            self.process.wait(30)


def check(what, condition, found=None):
    assert condition, f"{what}: {found}"
    print("ok:", what)


def log_in(browser, token):
    browser.wait("!document.getElementById('login').hidden")
    # A wrong token first.
    browser.value("document.getElementById('token').value = 'wrong-token'; document.querySelector('#login button').click()")
    browser.wait("!document.getElementById('login-problem').hidden")
    browser.value(f"document.getElementById('token').value = {json.dumps(token)}; document.querySelector('#login button').click()")
    browser.wait("document.getElementById('login').hidden && document.querySelectorAll('#models tr').length > 0")


def check_token(browser, token):
    kept = browser.value("JSON.stringify([document.cookie, Object.entries(localStorage), Object.entries(sessionStorage), "
                         "document.documentElement.outerHTML, location.href])")
    check("the token is only in memory", token not in kept)


def check_models(browser):
    rows = browser.value("[...document.querySelectorAll('#models tr')].map(row => row.innerText)")
    check("each model has a row", any(row.startswith("identity\t1\tReady") for row in rows), rows)
    damaged = [row for row in rows if row.startswith("damaged")]
    check("a damaged model shows the reason", damaged and "Unavailable" in damaged[0] and "damaged model file" in damaged[0], rows)
    for name in ("<img src=x onerror=alert(1)>", "\"><script>alert(1)<!--"):
        check(f"the name {name} is text", any(row.startswith(name) for row in rows), rows)
    check("names add no elements", browser.value("document.querySelectorAll('img, #models script').length") == 0)


def choose(browser, name):
    browser.value("[...document.querySelectorAll('button.name')].find(b => b.textContent == %s).click()" % json.dumps(name))
    browser.wait("document.getElementById('try-model').value == JSON.stringify([%s, '1'])" % json.dumps(name))
    browser.wait("document.querySelector('#inputs legend b')?.innerText")


def run(browser, shape, data):
    browser.value(f"document.getElementById('shape-0').value = {json.dumps(shape)}; "
                  f"document.getElementById('data-0').value = {json.dumps(data)}; "
                  "document.getElementById('result').replaceChildren(); document.getElementById('run').click()")
    return browser.wait("document.querySelector('#result pre') && document.getElementById('result').innerText")


def check_form(browser):
    choose(browser, "identity")
    check("the form shows the inputs", browser.value("document.querySelector('#inputs legend').innerText") == "x FP32 [-1, 4]")
    answer = run(browser, "2, 4", "1 2 3 4, .5 -0.25 1e3 007")
    check("the form shows the outputs", "1, 2, 3, 4, 0.5, -0.25, 1000, 7" in answer and "Status 200" in answer, answer)
    check("values without sense are found", "\"abc\" is not a FP32 value" in run(browser, "1, 4", "1 2 3 abc"))
    check("missing values are found", "the shape has 4 values, but 3" in run(browser, "1, 4", "1 2 3"))
    check("wrong shapes are found", "must be a list of sizes" in run(browser, "1, x", "1"))
    answer = run(browser, "9, 4", " ".join("1" for _ in range(36)))
    check("errors of the server are shown", "Status 400" in answer and "error" in answer, answer)
    hostile = "<img src=x onerror=alert(1)>"
    choose(browser, hostile)
    check("hostile names work in URLs", "1, 2, 3, 4" in run(browser, "1, 4", "1 2 3 4"))
    choose(browser, "INT64")
    check("large integers keep their digits", "9007199254740993" in browser.value(
        "document.getElementById('shape-0').value = '1, 1'; document.getElementById('data-0').value = '9007199254740993'; request_text()"))


def check_charts(browser):
    choose(browser, "identity")
    browser.wait("document.querySelector('#latency path.one').getAttribute('d')")
    check("the charts have lines", browser.value("document.querySelectorAll('#load path').length") == 2)
    row = browser.value("[...document.querySelectorAll('#models tr')].find(r => r.innerText.startsWith('identity')).innerText")
    check("the table counts requests", row.split("\t")[8] == "1", row)


def check_events(browser, port):
    urls = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
    foreign = [url for url in urls if not url.startswith(f"http://127.0.0.1:{port}/") and not url.startswith("data:")]
    check("nothing else is loaded", not foreign, foreign)
    bad = [e for e in browser.events if e["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Page.javascriptDialogOpening")]
    # The browser logs answers with an error status; the tests above caused them.
    bad += [e for e in browser.events if e["method"] == "Log.entryAdded" and e["params"]["entry"]["source"] != "network"]
    check("no errors, no dialogs, no violations of the policy", not bad, bad)


def check_width(browser):
    for width in (390, 1280):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        found = browser.value("document.documentElement.scrollWidth")
        check(f"the page fits into {width} pixels", found <= width, found)


def draw(browser, folder):
    for width in (1280, 390):
        for scheme in ("light", "dark"):
            browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
            browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            time.sleep(1.5)
            browser.picture(f"{folder}/{width}-{scheme}.png")


def main():
    program, port, token, folder = sys.argv[1:5]
    browser = Browser(program, folder)
    try:
        browser.go(f"http://127.0.0.1:{port}/")
        log_in(browser, token)
        check_token(browser, token)
        check_models(browser)
        check_form(browser)
        check_charts(browser)
        check_width(browser)
        check_events(browser, port)
        if len(sys.argv) > 5:
            draw(browser, sys.argv[5])
        browser.call("Page.reload")
        browser.wait("document.readyState == 'complete' && !document.getElementById('login').hidden")
        print("ok: the token is gone after a reload")
    finally:
        browser.close()


main()
